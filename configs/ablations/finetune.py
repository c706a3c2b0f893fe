"""Every form of fine-tuning on real labeled rows, with models of the demo's size, to show that each form works.

    python -m plm_jax sweep --sweep=configs/ablations/finetune.py --workdir=runs/finetune --seeds=0,1,2

The runs `bert`, `gpt2`, `bart` and `elmo` pretrain on the speeches that come with the package. The other runs start
from their weights: every form on the encoder, the reviews on all four, with at most 2,000 rows of each set. A run
`NAME-random` is the same model with random weights. A run `NAME-fits`, of one seed, is tested on the 200 rows that it
is trained on, to show that the form works. The second table compares each run with a trivial predictor, with one
without a network (logistic or ridge regression over words; the most frequent tag of each word; a regular expression for
answers), and with random weights. After the first four runs the sweep should take less than an hour on two idle cores.

Limits of the rows:

- A model of this size that read 200 speeches knows little about film reviews: it has to beat the trivial predictor
  only, and words alone are better. `finetune_minilm` shows the effect of pretraining.
- The pairs of `inference` have 21 premises, which are on both sides of the split, and the questions of `choices` lack
  the sentences that they are about. Results of these two on held-out rows are meaningless.
- Most persons of `entities` are the word "Borrower".
- The questions of `reading` are in another package's wheel; without it in `.cache/finetune` they are left out.
"""

import dataclasses
from collections.abc import Iterator

from plm_jax import config, models
from plm_jax.configs import demo
from plm_jax.configs.ablations import labeled_sets
from plm_jax.experiments.comparison import Baselines

base = "../tasks/sentiment.py"
TRAIN, TEST, FITS = 2000, 1000, 200
FAMILIES = ("bert", "gpt2", "bart", "elmo")
# The mean of all tokens works better than the first token of a small encoder; a decoder needs its last token.
HEADS = {
    "classes": models.ClassesHead(feature="mean"),
    "score": models.ScoreHead(feature="mean"),
    "choice": models.ChoiceHead(feature="mean"),
    "tags": models.TagsHead(),
    "span": models.SpanHead(),
}


def overrides() -> Iterator[tuple[str, dict]]:
    """Yields (name, changes) of each run."""
    yield "bert", vars(_encoder())
    for family in FAMILIES[1:]:
        yield family, vars(getattr(demo, family)())
    for name in _sets():
        yield name, _tuned(name, "bert")
        yield f"{name}-fits", _tuned(name, "bert", fits=True)
    yield "sentiment-random", _tuned("sentiment", "bert") | {"train.init_names": ()}
    for family in FAMILIES[1:]:
        yield f"sentiment-{family}", _tuned("sentiment", family)
        yield f"sentiment-{family}-random", _tuned("sentiment", family) | {"train.init_names": ()}


def baselines() -> list[Baselines]:
    """Returns what each run is compared with."""
    first, *rest = (labeled_sets.baselines_of(name, TRAIN, TEST) for name in _sets())
    runs = [first.run, *(f"sentiment-{family}" for family in FAMILIES[1:])]
    random, *random_others = (
        Baselines(run, first.metric, dict(first.columns) | {"random weights": f"{run}-random"}) for run in runs
    )
    return [random, *rest, *random_others]


def _sets() -> list[str]:
    """Returns the sets that can be read, except entities without roles, which only larger models learn."""
    return [name for name in labeled_sets.SETS if name != "names" and labeled_sets.is_there(name)]


def _encoder() -> config.Run:
    """Returns the demo's BERT with 256 positions; only the last part of its steps reads rows of this length."""
    run = demo.bert()
    model = run.model
    position = dataclasses.replace(model.attention.position, length=256)
    phases = (
        config.PhaseConfig(until=0.5, length=8, batch_size=256),
        config.PhaseConfig(until=0.9, length=64, batch_size=64),
        config.PhaseConfig(until=1.0),
    )
    return dataclasses.replace(
        run,
        model=dataclasses.replace(model, attention=dataclasses.replace(model.attention, position=position)),
        data=dataclasses.replace(run.data, length=256),
        train=dataclasses.replace(run.train, batch_size=16, phases=phases),
        evaluation=config.EvaluationConfig(batch_size=64),
    )


def _tuned(name: str, family: str, fits: bool = False) -> dict:
    """Returns the changes that tune a family's model on a set."""
    chosen = labeled_sets.SETS[name]
    head = HEADS[chosen.form.kind]
    if family == "gpt2":
        head = dataclasses.replace(head, feature="last")
    if family == "elmo":
        head = models.ClassesHead(feature="max", layers=models.MixedLayers(), recurrent=models.BiLstmConfig(cell=64))
    rows = FITS if fits else TRAIN
    changes = labeled_sets.run_on(name, rows, TEST, family, f"{name}-{rows}-{fits}", fits) | {
        "model": models.FromCheckpointConfig(dropout=0.1, heads=(("task", head),)),
        "train.epochs": 10.0 if family == "elmo" else 3.0,  # Its recurrent head learns slowly at first.
        "train.batch_size": 16 if chosen.length > 64 else 32,
    }
    return changes | ({"train.epochs": chosen.fits_epochs, "train.seed": 0} if fits else {})
