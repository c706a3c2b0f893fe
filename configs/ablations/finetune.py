"""Every form of fine-tuning on real labelled rows, from models of the demo's size: that forms work, not what transfers.

    python -m plm_jax sweep --sweep=configs/ablations/finetune.py --workdir=runs/finetune --seeds=0,1,2

The runs `bert`, `gpt2`, `bart` and `elmo` pretrain on the speeches that come with the package, all others begin with
their weights: every form on the encoder, the reviews on the other three, too, of each set 2,000 rows at most. A run
`NAME-random` is the same model without the weights. A run `NAME-fits`, of one seed, is tested on the 200 rows that it
is trained on: that it learns them proves the form. The second table sets each beside a trivial predictor, one without a
network (words before logistic or ridge regression; of each word its most frequent tag; of answers a regular
expression), and the random weights. After the four, on two idle cores it should take less than an hour.

What a row shows and what it does not:

- A model of this size that read 200 speeches knows little of film reviews: only more than a trivial predictor is asked
  of it, and words alone are better. What pretraining brings is in `finetune_minilm`.
- The pairs of `inference` have 21 premises, which are on both sides of the split; the questions of `choices` lack the
  sentences that they are about. Of these two no figure on held-out rows says anything.
- Most persons of `entities` are the word "Borrower".
- The questions of `reading` are in another package's wheel; without it in `.cache/finetune` they are left out.
"""

import dataclasses
from collections.abc import Iterator

from plm_jax import config, models
from plm_jax.configs import demo
from plm_jax.configs.ablations import labelled_sets
from plm_jax.experiments.comparison import Rivals

base = "../tasks/sentiment.py"
TRAIN, TEST, FITS = 2000, 1000, 200
FAMILIES = ("bert", "gpt2", "bart", "elmo")
# Of the mean of all tokens a small encoder tells more than of the first, and a decoder of its last one.
HEADS = {
    "classes": models.ClassesHead(feature="mean"),
    "score": models.ScoreHead(feature="mean"),
    "choice": models.ChoiceHead(feature="mean"),
    "tags": models.TagsHead(),
    "span": models.SpanHead(),
}


def overrides() -> Iterator[tuple[str, dict]]:
    """(name, changes) of each run."""
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


def rivals() -> list[Rivals]:
    """What runs are judged by."""
    found = []
    for name in _sets():
        metric = f"{name}/{labelled_sets.SETS[name].metric}"
        others = {"trivial": f"{name}/trivial_{labelled_sets.SETS[name].metric}"}
        found.append(Rivals(name, metric, others | {"no network": labelled_sets.without_network(name, TRAIN, TEST)}))
    first, *rest = found
    own = dict(first.columns)
    made = [Rivals(first.run, first.metric, own | {"random weights": "sentiment-random"}), *rest]
    for family in FAMILIES[1:]:
        run = f"sentiment-{family}"
        made.append(Rivals(run, first.metric, own | {"random weights": f"{run}-random"}))
    return made


def _sets() -> list[str]:
    """Those that are there; entities without roles are asked of larger models."""
    return [name for name in labelled_sets.SETS if name != "names" and labelled_sets.is_there(name)]


def _encoder() -> config.Run:
    """The demo's BERT with 256 positions, of which the last part of its steps reads all."""
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
    """A run that tunes a family's model on a set."""
    of = labelled_sets.SETS[name]
    source = labelled_sets.source(name, FITS if fits else TRAIN, TEST, fits)
    head = HEADS[of.form.kind]
    if family == "gpt2":
        head = dataclasses.replace(head, feature="last")
    if family == "elmo":
        head = models.ClassesHead(feature="max", layers=models.MixedLayers(), recurrent=models.BiLstmConfig(cell=64))
    changes = {
        "model": models.FromCheckpointConfig(dropout=0.1, heads=(("task", head),)),
        "objective": of.objective,
        "data.sources": {name: source},
        "data.cache_dir": f"../../.cache/finetune/{name}-{FITS if fits else TRAIN}-{fits}",
        "data.length": of.length,
        "train.init_from": family,
        "train.epochs": 10.0 if family == "elmo" else 3.0,  # Its recurrent head begins slowly.
        "train.batch_size": 16 if of.length > 64 else 32,
        "schedule.learning_rate": 1e-3,
        "checkpoint.save_every": 10_000,
        "evaluation": config.EvaluationConfig(batch_size=64),
    }
    return changes | ({"train.epochs": of.fits_epochs, "train.seed": 0} if fits else {})
