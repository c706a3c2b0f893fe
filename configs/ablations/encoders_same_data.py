"""Encoders of six recipes on the same text, compared by fine-tuned accuracy.

    python -m plm_jax sweep --sweep=ablations/encoders_same_data --workdir=runs/encoders
    python -m plm_jax sweep --sweep=ablations/encoders_same_data:demo --workdir=runs/encoders-demo --seeds=0,1,2

Antoun et al. 2025 (arXiv:2504.08716) compared encoders on the same data and found differences that their papers, with
other data each, do not show. Here BERT, RoBERTa, ELECTRA, DeBERTaV3, ModernBERT, and in the demo XLNet, have the same
text, size of the vocabulary, number of layers and width, number of tokens and seeds. At full size each has the rows,
the objective, the optimizer and the learning rate of its recipe, in 125,000 steps of 256 rows of 512 tokens of BERT's
corpora. ModernBERT's feed-forward layers are narrower, so that each block has about the same number of parameters.

In the demo all models read the same speeches that come with the package, all but XLNet short rows first, and are tuned
on film reviews. Each tuned model is compared with the most frequent class of its rows, with logistic regression on bags
of words, and with the same architecture tuned from random weights.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from plm_jax import config, models, objectives
from plm_jax.configs import bert, deberta, demo, electra, modernbert, roberta
from plm_jax.configs.ablations import downstream, labeled_sets
from plm_jax.configs.ablations.skeleton import by_size
from plm_jax.data.sources import corpora
from plm_jax.experiments.comparison import Baselines

base = "../tasks/sentiment.py"
TRAIN, TEST = 6000, 2000
STEPS, ROWS, LENGTH = 125_000, 256, 512
DEMO_STEPS = 400
TASKS = ("mnli", "sst2", "squad")
ARMS = ("bert", "roberta", "electra", "deberta-v3", "xlnet", "modernbert")
compared = by_size(
    paper={name: downstream.ENCODER_METRICS[name] for name in ("MNLI-m", "SST-2", "SQuAD1 F1")},
    demo={"reviews": "sentiment/accuracy"},
)


def overrides(size="paper") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, changes) of each run."""
    arms = by_size(paper=_published, demo=_demo)(size)()
    for name in [name for name in ARMS if name in arms]:
        yield name, vars(arms[name])
        if size == "paper":
            yield from downstream.tuned(name, size, TASKS)
            continue
        tuned = labeled_sets.run_on("sentiment", TRAIN, TEST, name, f"encoders-{name}") | {
            "model": models.FromCheckpointConfig(dropout=0.1, heads=(("task", models.ClassesHead(feature="mean")),)),
            "train.epochs": 2.0,
            "train.batch_size": 32,
        }
        yield f"{name}-sentiment", tuned
        yield f"{name}-random", tuned | {"train.init_names": ()}


def baselines(size="paper") -> list[Baselines]:
    """Returns what each tuned model of the demo is compared with."""
    if size == "paper":
        return []
    words = labeled_sets.without_network("sentiment", TRAIN, TEST)
    return [
        Baselines(
            f"{name}-sentiment",
            "sentiment/accuracy",
            {"trivial": "sentiment/trivial_accuracy", "logistic regression": words, "random weights": f"{name}-random"},
        )
        for name in ARMS
    ]


def _published() -> dict[str, config.Run]:
    """Returns the runs of base size, each by its recipe, on BERT's corpora and vocabulary."""
    pages = {"bert": bert, "roberta": roberta, "electra": electra, "modernbert": modernbert}
    runs = {name: downstream.run_of(page.get_config("base")) for name, page in pages.items()}
    runs["deberta-v3"] = downstream.run_of(deberta.get_config("v3-base"))
    reference = runs["bert"]
    text = {"cache_dir": "../.cache/encoders-same-data", "length": LENGTH} | corpora.mixture("bert")

    def on_same_text(run: config.Run) -> config.Run:
        embedding = dataclasses.replace(run.model.embedding, vocab_size=reference.model.vocab_size)
        schedule = dataclasses.replace(run.schedule, warmup_steps=STEPS // 100)
        return dataclasses.replace(
            run,
            model=dataclasses.replace(run.model, embedding=embedding),
            vocabulary=reference.vocabulary,
            data=dataclasses.replace(run.data, **text),
            train=config.TrainConfig(steps=STEPS, batch_size=ROWS, microbatches=4, updates=run.train.updates),
            schedule=schedule,
        )

    runs = {name: on_same_text(run) for name, run in runs.items()}
    # Its first phase ends before the rate falls.
    modern = runs["modernbert"]
    dimensions = (12, 768, 12, 2048, reference.model.vocab_size)
    runs["modernbert"] = dataclasses.replace(
        modern,
        model=modernbert.model(*dimensions, thetas=(10_000.0,)),
        schedule=config.WsdSchedule(
            modern.schedule.learning_rate, warmup_steps=STEPS // 100, cooldown_fraction=0.1, shape="sqrt"
        ),
    )
    return runs


def _demo() -> dict[str, config.Run]:
    """Returns the runs of the demo's size; ELECTRA's discriminator is the encoder that is tuned."""
    run = _shortened(demo.bert())
    vocab_size = run.vocabulary.train_size
    dimensions = {"layers": 3, "width": 128, "heads": 4, "vocab_size": vocab_size}
    spread = models.InitializerConfig(demo.INITIAL_STD, truncated=True)
    roberta_model = roberta.model(**dimensions, length=64, dropout=0.0)
    # Three matrices of 344 columns have as many parameters as two of 512.
    modern = modernbert.model(**dimensions, feed_forward=344, thetas=(10_000.0,))
    return {
        "bert": dataclasses.replace(run, objective=objectives.MaskedLM(duplicates=2)),
        "roberta": dataclasses.replace(run, model=dataclasses.replace(roberta_model, initializer=spread)),
        "electra": _shortened(demo.electra()),
        "deberta-v3": _shortened(demo.deberta()),
        # Its rows have full length from the start, so it reads as many tokens in fewer steps.
        "xlnet": _shortened(demo.xlnet(), DEMO_STEPS * 3 // 4),
        "modernbert": dataclasses.replace(
            run,
            model=dataclasses.replace(modern, initializer=spread, dropout=models.DropoutConfig()),
            objective=objectives.MaskedLM(rate=0.3, independent=True),
            optimizer=config.StableAdamWConfig(weight_decay=0.01),
            schedule=config.WsdSchedule(
                run.schedule.learning_rate, warmup_steps=100, cooldown_fraction=0.3, shape="sqrt"
            ),
        ),
    }


def _shortened(run: config.Run, steps: int = DEMO_STEPS) -> config.Run:
    """Returns the run with fewer steps, so that no arm takes more than ten minutes on two CPU cores."""
    return dataclasses.replace(run, train=dataclasses.replace(run.train, steps=steps))
