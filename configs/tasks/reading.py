"""Extractive question answering on SQuAD 1.1: the words of a context that answer a question.

    python -m plm_jax finetune --config=configs/tasks/reading.py --checkpoint=SRC --workdir=runs/reading

Rows have 384 tokens, with windows that overlap by 128. With batches of 12, two epochs at 3e-5, Hugging Face's run_qa.py
reports an F1 of 88.52 and an exact match of 81.22 for bert-base-uncased; `tasks/reading:bert` is that run. SQuAD comes
from TensorFlow Datasets; other questions are a `config.LabeledTable` of `config.AnswerForm`. Set
`objective.unanswerable` where questions may have no answer, as in SQuAD 2.0.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`; `bert` is the published recipe for this task."""
    prompt = config.PromptConfig("{context}\nQuestion: {question}\nAnswer:")
    sources = {"squad": config.LabeledTfds("squad", config.AnswerForm(), prompt=prompt)}
    run = recipes.run(recipe, objectives.SpanExtraction(), sources, length=384)
    if recipe == "bert":
        run = dataclasses.replace(run, train=config.TrainConfig(epochs=2, batch_size=12))
    return config.to_config_dict(run)
