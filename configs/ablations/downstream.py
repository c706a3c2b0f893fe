"""Tasks for fine-tuning the models of an ablation: published ones, or the film reviews that come with the package.

A run NAME-TASK starts from the weights of the run NAME, and its metrics count for NAME. The sweeps of this folder
import this module; their base is a config of the parent folder.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plm_jax import config, models
from plm_jax.configs import demo
from plm_jax.configs.ablations.skeleton import by_size
from plm_jax.configs.tasks import glue, reading, sentiment
from plm_jax.data import mixtures
from plm_jax.data.sources import corpora
from plm_jax.data.text_to_text import sizes
from plm_jax.experiments.comparison import SubstituteMetric
from plm_jax.experiments.setups import NOT_STATED, Setup

Changes = dict[str, Any]
# Metrics of `of_encoder` by their names in RoBERTa's and ALBERT's tables. RACE is missing: its questions about articles
# fit no form of labeled rows.
ENCODER_METRICS = {
    "SQuAD1 F1": "squad/f1",
    "SQuAD2 F1": "squad2/f1",
    "MNLI-m": "mnli/accuracy",
    "SST-2": "sst2/accuracy",
}
# Film reviews, which demos compare with a paper's task.
REVIEWS = SubstituteMetric("sentiment/accuracy")
# The `compared` of pages whose models are tuned by `tuned`.
compared_encoders = by_size(paper=ENCODER_METRICS, demo={"SST-2": REVIEWS})
# BERT's corpora, as changes of a config.
BERT_TEXT = {f"data.{name}": value for name, value in corpora.mixture("bert").items()}
_MODULE = "plm_jax.data.text_to_text.tfds_tasks"
_TRANSLATIONS = {"EnDe": "wmt_t2t_ende", "EnFr": "wmt15_enfr", "EnRo": "wmt16_enro"}


# Tasks of `of_encoder`, and the kind of task where it is not classification.
ENCODER_TASKS = ("squad", "squad2", "mnli", "sst2")
_KINDS = {"squad": "span_extraction", "squad2": "span_extraction"}


def tuned(
    name: str, size: str, tasks: Sequence[str] = ENCODER_TASKS, feature: str = "mean"
) -> Iterator[tuple[str, Changes]]:
    """Yields the runs that tune a model other than T5: `of_encoder` at the paper's scale, `of_reviews` in a demo."""
    return of_encoder(name, tasks) if size == "paper" else of_reviews(name, feature)


def of_encoder(name: str, tasks: Sequence[str] = ENCODER_TASKS) -> Iterator[tuple[str, Changes]]:
    """Yields runs on MNLI and SST-2 by the recipe of `tasks/glue`, on SQuAD 1.1 and 2.0 by that of `tasks/reading`."""
    squad = run_of(reading.get_config())
    answers = config.LabeledTfds("squad/v2.0", config.AnswerForm())
    squad2 = dataclasses.replace(
        squad,
        data=dataclasses.replace(squad.data, sources={"squad2": answers}),
        objective=dataclasses.replace(squad.objective, unanswerable=True),
    )
    runs = {"squad": squad, "squad2": squad2} | {task: run_of(glue.get_config(task)) for task in ("mnli", "sst2")}
    for task in tasks:
        yield f"{name}-{task}", begun(runs[task], name, task)


def steps_of(learning_rate: float, batch_size: int, steps: int, warmup_steps: int, length: int) -> Changes:
    """Returns overrides for the runs of `of_encoder` that set a number of steps instead of epochs, and no dropout."""
    return {
        "model": models.FromCheckpointConfig(dropout=0.0),
        "schedule.learning_rate": learning_rate,
        "schedule.warmup_fraction": 0.0,
        "schedule.warmup_steps": warmup_steps,
        "train.batch_size": batch_size,
        "train.epochs": None,
        "train.steps": steps,
        "data.length": length,
    }


def unstated(paper: str, tasks: Sequence[str] = ENCODER_TASKS) -> dict[str, Setup]:
    """Returns the set-ups of tuned runs, by name suffix, for a paper that does not state them for its table."""
    setups = {}
    for task in tasks:
        script = "run_qa.py" if task in _KINDS else "run_glue.py"
        names = ("batch_size", "epochs", "learning_rate", "warmup", "length")
        setups[f"-{task}"] = Setup(
            source=paper,
            objective={"kind": _KINDS.get(task, "classification")},
            sources=[task],
            **dict.fromkeys(names, NOT_STATED),
            reasons=dict.fromkeys(names, f"as Hugging Face's {script} tunes BERT")
            | ({"warmup": "a tenth of the steps, as in BERT's own code"} if task in _KINDS else {}),
        )
    return setups


def of_reviews(name: str, feature: str = "mean") -> Iterator[tuple[str, Changes]]:
    """Yields a run on film reviews of two classes, predicted by a `models.ClassesHead` from `feature` of the tokens."""
    run = run_of(sentiment.get_config())
    run = dataclasses.replace(
        run,
        model=models.FromCheckpointConfig(dropout=0.1, heads=(("task", models.ClassesHead(feature=feature)),)),
        schedule=dataclasses.replace(run.schedule, learning_rate=1e-3),
        train=config.TrainConfig(epochs=1.0, batch_size=32),
    )
    yield f"{name}-sentiment", begun(run, name, "sentiment")


def of_text_to_text(name: str) -> Iterator[tuple[str, Changes]]:
    """Yields a run for each benchmark of T5: 2^18 steps of 128 packed rows at 0.001 (Raffel et al. 2020 §3.1.2)."""
    parts = {"glue": sizes.GLUE, "super_glue": sizes.SUPER_GLUE}
    parts |= {task: {task: 1} for task in ("squad", "cnn_dailymail", *_TRANSLATIONS.values())}
    for benchmark, examples in parts.items():
        yield (
            f"{name}-{benchmark}",
            text_to_text(examples)
            | {
                "model": models.FromCheckpointConfig(dropout=0.1),
                "schedule": config.ConstantSchedule(learning_rate=1e-3),
                "train.steps": 2**18,
                "train.batch_size": 128,
                "train.init_from": name,
            },
        )


def text_to_text(examples: Mapping[str, float]) -> Changes:
    """Returns tasks of the suite, mixed by their numbers of examples and packed into rows of 512 tokens."""
    sources = {task: config.SeqioInputsTargets(f"plm_jax:{task}", _MODULE) for task in examples}
    return {
        "data.sources": sources,
        "data.mixture": mixtures.proportional(examples, maximum=2**21),
        "data.cache_dir": "../.cache/text-to-text",
        "data.inputs_targets": config.InputsTargetsConfig(target_length=512, packed=True),
        "train.phases": (),
    }


# MNLI's validation splits; T5 reports the mean of both.
MNLI = ("glue_mnli:validation_matched", "glue_mnli:validation_mismatched")
# Metrics of `of_text_to_text` by their names in T5's tables: means over tasks of the means over their metrics.
TEXT_TO_TEXT_METRICS = {
    "GLUE": (
        "glue_cola/matthews_corrcoef",
        "glue_sst2/accuracy",
        ("glue_mrpc/f1", "glue_mrpc/accuracy"),
        ("glue_stsb/pearson_corrcoef", "glue_stsb/spearman_corrcoef"),
        ("glue_qqp/f1", "glue_qqp/accuracy"),
        tuple(f"{split}/accuracy" for split in MNLI),
        "glue_qnli/accuracy",
        "glue_rte/accuracy",
    ),
    "CNNDM": "cnn_dailymail/rouge2",
    "SQuAD": "squad/em",
    "SGLUE": (
        "super_glue_boolq/accuracy",
        ("super_glue_cb/mean_3class_f1", "super_glue_cb/accuracy"),
        "super_glue_copa/accuracy",
        ("super_glue_multirc/f1", "super_glue_multirc/exact_match"),
        ("super_glue_record/f1", "super_glue_record/em"),
        "super_glue_rte/accuracy",
        "super_glue_wic/accuracy",
        "super_glue_wsc/accuracy",
    ),
} | {name: f"{task}/bleu" for name, task in _TRANSLATIONS.items()}


def in_words(name: str, steps: int) -> tuple[str, Changes]:
    """Returns a run on the reviews as text to text, for T5s of the demo's size, which answer positive or negative."""
    run = demo.t5_tasks()
    changes = vars(run) | {
        "model": models.FromCheckpointConfig(dropout=0.1),
        "data.sources": {"sentiment": run.data.sources["sentiment"]},
        "data.mixture": {},
        "data.cache_dir": "../.cache/ablations/in-words",
        "train.steps": steps,
        "train.init_from": name,
    }
    return f"{name}-sentiment", changes


def run_of(tree: Any) -> config.Run:
    """Converts the tree that a page's `get_config` returns to a run."""
    return config.from_dict(config.to_dict(tree))


def begun(run: config.Run, name: str, task: str) -> Changes:
    """Returns the changes that make a run start from the weights of run `name`, with its caches next to the base's."""
    data = dataclasses.replace(run.data, cache_dir=f"../.cache/tasks/{task}")
    train = dataclasses.replace(run.train, init_from=name)
    return vars(run) | {"data": data, "train": train, "checkpoint": config.CheckpointConfig(save_every=100_000)}
