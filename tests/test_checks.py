"""What a run's parts ask of each other is said in one line before anything begins."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import pytest

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.config import checks
from tests.support.tiny import RUNS


def phases(**changed):
    return {"train": {"phases": [{"until": 0.5}, {"until": 1.0, **changed}]}}


MISTAKES = [
    ({"train": {"phases": [{"until": math.inf}]}}, "phases.0..until is inf: must be above 0 and at most 1"),
    ({"train": {"phases": [{"until": math.nan}]}}, "phases.0..until is nan: must be above 0 and at most 1"),
    ({"train": {"phases": [{"until": 0.5}]}}, "the last must be 1.0"),
    (phases(microbatches=0), "phases.1..microbatches is 0: must be between 1 and"),
    (phases(batch_size=0), "phases.1..batch_size is 0: must be between 1 and"),
    (phases(length=-3), "phases.1..length is -3: must be between 1 and"),
    (phases(mixture={"a": -1.0}), "phases.1..mixture.a is -1.0"),
    ({"train": {"steps": 0}}, "config.train.steps is 0: must be at least 1"),
    ({"data": {"window_tokens": 0}}, "config.data.window_tokens is 0: must be between 1 and"),
    ({"data": {"threads": 0}}, "config.data.threads is 0: must be between 1 and"),
    ({"data": {"processes": -1}}, "config.data.processes is -1: must be between 0 and"),
    ({"data": {"sources": {}}}, "config.data.sources is empty: name at least one corpus"),
    ({"data": {"segmenters": {"aa": "m:f"}}}, "config.data.segmenters names 'aa': did you mean 'a'"),
    ({"data": {"validation_fraction": 1.0}}, "config.data.validation_fraction is 1.0: must be at least 0 and below 1"),
    ({"vocabulary": {"added": -1}}, "config.vocabulary.added is -1: must be between 0 and"),
    ({"evaluation": {"every": -1}}, "config.evaluation.every is -1: must be between 0 and"),
    (phases(dropout=1.0), "phases.1..dropout is 1.0: must be at least 0 and below 1"),
    ({"train": {"label_smoothing": -0.1}}, "config.train.label_smoothing is -0.1: must be at least 0 and below 1"),
    ({"checkpoint": {"save_every": 0}}, "config.checkpoint.save_every is 0: must be between 1 and"),
    ({"evaluation": {"batch_size": 0}}, "config.evaluation.batch_size is 0: must be between 1 and"),
    ({"objective": objectives.MaskedLM()}, "trains models of kind 'encoder', but config.model.kind is 'decoder'"),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_said(changes, said):
    tree = config.to_dict(RUNS["plain"])
    assert config.from_dict(tree) == RUNS["plain"]
    for section, change in changes.items():
        tree[section] = config.to_dict(tree[section] | change if isinstance(change, dict) else change)
    with pytest.raises(UserError, match=said):
        config.from_dict(tree)


UNUSED = [
    (
        "bert",
        {"data": {"layout": config.Blocks(attend_across_documents=False)}},
        "has no sentence pairs to train config.model.pooler on",
    ),
    (
        "plain",
        {"data": {"inputs_targets": config.InputsTargetsConfig(packed=True)}},
        "no source has inputs and targets",
    ),
    ("plain", {"train": {"init_names": ("a",)}}, "has no effect without config.train.init_from"),
]


@pytest.mark.parametrize(("name", "changes", "said"), UNUSED, ids=[said for _, _, said in UNUSED])
def test_unused_settings_are_rejected_before_training(name, changes, said):
    run = RUNS[name]
    checks.refuse_unused(run)
    for section, change in changes.items():
        run = dataclasses.replace(run, **{section: dataclasses.replace(getattr(run, section), **change)})
    assert config.from_saved(config.to_dict(run)) == run
    with pytest.raises(UserError, match=said):
        checks.refuse_unused(run)


@dataclasses.dataclass(frozen=True)
class Remembering(models.DecoderConfig):
    """A user's decoder with a memory of the previous rows."""

    kind: ClassVar[str] = "tests_remembering"
    architecture: ClassVar[str] = "decoder"
    slots: int = 2

    def new_carry(self, rows):
        return {"memory": jnp.zeros((rows, self.slots, 8))} if self.slots else {}


@dataclasses.dataclass(frozen=True)
class OneAfterAnother(config.Blocks):
    """A user's layout that declares that its rows follow each other."""

    kind: ClassVar[str] = "tests_one_after_another"
    continues_rows: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class ShuffledStreams(config.Streams):
    """A user's layout that returns the rows of streams in any order."""

    kind: ClassVar[str] = "tests_shuffled_streams"
    continues_rows: ClassVar[bool] = False


def remembering(slots=2, **data):
    """Returns the plain run with a memory, over one source of text."""
    run = RUNS["plain"]
    model = {f.name: getattr(run.model, f.name) for f in dataclasses.fields(run.model)}
    data = {"sources": {"a": run.data.sources["a"]}, "mixture": {}} | data
    return dataclasses.replace(run, model=Remembering(**model, slots=slots), data=dataclasses.replace(run.data, **data))


ONE = OneAfterAnother()
PAIRS = config.TableInputsTargets("pairs.jsonl")
TEXTS = dict(list(RUNS["plain"].data.sources.items())[:2])
SHUFFLED = [
    (remembering(), "'tests_remembering' keeps recurrent state .*layout 'blocks' are shuffled"),
    (remembering(layout=ONE, sources=TEXTS), "rows alternate between the sources a, b"),
    (
        remembering(layout=ONE, sources={"p": PAIRS}, inputs_targets=config.InputsTargetsConfig(target_length=4)),
        "the rows of source 'p' are shuffled",
    ),
    (
        dataclasses.replace(RUNS["elmo"], data=dataclasses.replace(RUNS["elmo"].data, layout=ShuffledStreams())),
        "'elmo' keeps recurrent state .*layout 'tests_shuffled_streams' are shuffled",
    ),
]


@pytest.mark.parametrize(("run", "said"), SHUFFLED, ids=[said for _, said in SHUFFLED])
def test_a_state_is_not_carried_over_shuffled_rows(run, said):
    with pytest.raises(UserError, match=said) as raised:
        config.from_dict(config.to_dict(run))
    assert "\n" not in str(raised.value)


def test_recurrent_models_need_consecutive_rows():
    mixed = remembering(layout=ONE, sources=TEXTS, mixture={"a": 1.0, "b": 0.0})
    for run in (remembering(layout=ONE), remembering(slots=0), mixed, RUNS["elmo"]):
        checks.check(run)


def test_a_state_that_no_loss_carries_may_meet_any_row():
    """An ELMo that reads labeled examples begins each of them with a fresh state."""
    labeled = config.LabeledTable("labeled.jsonl", form=config.ClassForm(("no", "yes")))
    run = RUNS["elmo"]
    data = dataclasses.replace(run.data, sources={"a": labeled}, layout=config.LabeledLayout())
    checks.check(dataclasses.replace(run, objective=objectives.Classification(rows="elmo"), data=data))
