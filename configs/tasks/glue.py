"""GLUE (Wang et al. 2019), a task after the colon: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli.

    python -m plm_jax finetune --config=configs/tasks/glue.py:sst2 --checkpoint=SRC --workdir=runs/sst2

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
    """A task's form, its prompt, its number of epochs, and the name of its validation split."""

    form: config.Form
    prompt: config.PromptConfig
    epochs: int = 3
    validation: str = "validation"


_SENTENCES = "Sentence 1: {sentence1}\nSentence 2: {sentence2}\n"


def _pair(*labels: str, first: str = "sentence1", second: str = "sentence2") -> config.ClassForm:
    return config.ClassForm(labels, text=first, pair=second)


# The forms of lm-eval 0.4.13's tasks (`lm_eval/tasks/glue`); STS-B, which it lacks, has ours.
TASKS = {
    "cola": Task(
        config.ClassForm(("unacceptable", "acceptable"), text="sentence"),
        config.PromptConfig("{sentence}\nQuestion: Does this sentence make sense?\nAnswer:", ("no", "yes")),
    ),
    "sst2": Task(
        config.ClassForm(("negative", "positive"), text="sentence"),
        config.PromptConfig("{sentence}\nQuestion: Is this sentence positive or negative?\nAnswer:"),
    ),
    "mrpc": Task(
        _pair("not_equivalent", "equivalent"),
        config.PromptConfig(f"{_SENTENCES}Question: Do both sentences mean the same thing?\nAnswer:", ("no", "yes")),
        epochs=5,
    ),
    "stsb": Task(
        config.ScoreForm(text="sentence1", pair="sentence2", score="label"),
        config.PromptConfig(f"{_SENTENCES}How alike they are, from 0 to 5:", tuple("012345")),
    ),
    "qqp": Task(
        _pair("not_duplicate", "duplicate", first="question1", second="question2"),
        config.PromptConfig(
            "Question 1: {question1}\nQuestion 2: {question2}\nQuestion: Do both questions ask the same thing?\n"
            "Answer:",
            ("no", "yes"),
        ),
    ),
    "mnli": Task(
        _pair("entailment", "neutral", "contradiction", first="premise", second="hypothesis"),
        config.PromptConfig(
            "{premise}\nQuestion: {hypothesis} True, False or Neither?\nAnswer:", ("True", "Neither", "False")
        ),
        validation="validation_matched",
    ),
    "qnli": Task(
        _pair("entailment", "not_entailment", first="question", second="sentence"),
        config.PromptConfig(
            "{question}\n{sentence}\nQuestion: Does this response answer the question?\nAnswer:", ("yes", "no")
        ),
    ),
    "rte": Task(
        _pair("entailment", "not_entailment"),
        config.PromptConfig("{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:", ("True", "False")),
    ),
    "wnli": Task(
        _pair("not_entailment", "entailment"),
        config.PromptConfig("{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:", ("False", "True")),
        epochs=5,
    ),
}


def get_config(task: str = "sst2"):
    """Returns the run of one of TASKS."""
    of = config.choose(TASKS, task)
    is_score = isinstance(of.form, config.ScoreForm)
    sources = {task: config.LabeledTfds(f"glue/{task}", of.form, validation=of.validation, prompt=of.prompt)}
    run = recipes.run("bert", objectives.Regression() if is_score else objectives.Classification(), sources, length=128)
    schedule = config.LinearSchedule(learning_rate=2e-5)
    optimizer = config.AdamWConfig()
    train = dataclasses.replace(run.train, epochs=of.epochs)
    return config.to_config_dict(dataclasses.replace(run, schedule=schedule, optimizer=optimizer, train=train))
