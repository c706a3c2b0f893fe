"""GLUE (Wang et al. 2019), a task after the colon: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli.

    python -m plm_jax.finetune --config=configs/tasks/glue.py:sst2 --checkpoint=SRC --workdir=runs/sst2

The recipe is that of Hugging Face's run_glue.py: 2e-5, batches of 32, 3 epochs (MRPC and WNLI 5), rows of 128 tokens.
With bert-base-cased it reports on validation splits: CoLA 56.5 (Matthews), SST-2 92.3, MRPC 88.9/84.1 (F1/accuracy),
STS-B 88.6/88.5 (Pearson/Spearman), QQP 90.7/87.5 (accuracy/F1), MNLI 83.9/84.1 (matched/mismatched), QNLI 90.7, RTE
65.7, WNLI 56.3. The rows come from TensorFlow Datasets, and classes are in its order.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes


class Task(NamedTuple):
    """A task's form, how often its rows are read, and what its validation split is called."""

    form: config.Form
    epochs: int = 3
    validation: str = "validation"


def _pair(*labels: str, first: str = "sentence1", second: str = "sentence2") -> config.Classes:
    return config.Classes(labels, text=first, pair=second)


TASKS = {
    "cola": Task(config.Classes(("unacceptable", "acceptable"), text="sentence")),
    "sst2": Task(config.Classes(("negative", "positive"), text="sentence")),
    "mrpc": Task(_pair("not_equivalent", "equivalent"), epochs=5),
    "stsb": Task(config.Score(text="sentence1", pair="sentence2", score="label")),
    "qqp": Task(_pair("not_duplicate", "duplicate", first="question1", second="question2")),
    "mnli": Task(
        _pair("entailment", "neutral", "contradiction", first="premise", second="hypothesis"),
        validation="validation_matched",
    ),
    "qnli": Task(_pair("entailment", "not_entailment", first="question", second="sentence")),
    "rte": Task(_pair("entailment", "not_entailment")),
    "wnli": Task(_pair("not_entailment", "entailment"), epochs=5),
}


def get_config(task: str = "sst2"):
    """The run of one of TASKS."""
    of = config.choose(TASKS, task)
    is_score = isinstance(of.form, config.Score)
    sources = {task: config.LabelledTfds(f"glue/{task}", of.form, validation=of.validation)}
    run = recipes.run("bert", objectives.Regression() if is_score else objectives.Classification(), sources, length=128)
    schedule = config.LinearSchedule(learning_rate=2e-5)
    optimizer = config.AdamW()
    train = dataclasses.replace(run.train, epochs=of.epochs)
    return config.to_config_dict(dataclasses.replace(run, schedule=schedule, optimizer=optimizer, train=train))
