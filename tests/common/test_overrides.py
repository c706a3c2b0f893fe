"""What the command line and sweeps may change in a config, and what is said of each mistake."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common import command_line, overrides
from plm_jax.common.errors import UserError
from tests.support.tiny import RUNS

PHASES = dataclasses.replace(
    RUNS["plain"],
    train=dataclasses.replace(
        RUNS["plain"].train, phases=(config.PhaseConfig(0.5, length=16), config.PhaseConfig(1.0))
    ),
)


def changed(*changes, run=PHASES):
    """The run with changes as a command line gives them."""
    pairs = [tuple(change.split("=", 1)) for change in changes]
    return config.from_dict(overrides.apply(config.to_dict(run), pairs, config.Run))


# What is given, where to look, and what is there then.
VALUES = [
    ("train.steps=7", "train.steps", 7),
    ("train.steps=1e5", "train.steps", 100_000),
    ("train.steps=1_000", "train.steps", 1000),
    ("train.seed=-3", "train.seed", -3),
    ("schedule.learning_rate=3e-4", "schedule.learning_rate", 3e-4),
    ("schedule.learning_rate=1", "schedule.learning_rate", 1.0),
    ("model.scan_layers=no", "model.scan_layers", False),
    ("model.scan_layers=0", "model.scan_layers", False),
    ("model.scan_layers=False", "model.scan_layers", False),
    ("optimizer.bias_correction=yes", "optimizer.bias_correction", True),
    ("optimizer.bias_correction=1", "optimizer.bias_correction", True),
    ("optimizer.bias_correction=true", "optimizer.bias_correction", True),
    ("precision.compute=bfloat16", "precision.compute", "bfloat16"),
    ("train.init_from=a=b", "train.init_from", "a=b"),
    ("train.init_from=None", "train.init_from", "None"),
    ("train.init_from=", "train.init_from", ""),
    ("vocabulary.pad=None", "vocabulary.pad", None),
    ("vocabulary.cls=3", "vocabulary.cls", 3),
    ("train.init_names=a.*", "train.init_names", ("a.*",)),
    ("train.init_names=('a', 'b')", "train.init_names", ("a", "b")),
    ("train.init_names=a train.init_names=b", "train.init_names", ("a", "b")),
    ("train.init_names=(('a/(.*)', 'b/\\\\1'),)", "train.init_names", (("a/(.*)", r"b/\1"),)),
    ("train.average.decay=0.9", "train.average", config.AverageConfig(0.9)),
    (
        "train.references.teacher.source=a train.loss.kind=distillation train.loss.alpha_lm=0",
        "train",
        dataclasses.replace(
            PHASES.train,
            references={"teacher": config.ReferenceConfig("a")},
            loss=losses.Distillation(alpha_lm=0.0),
        ),
    ),
    ("train.steps=5 train.steps=6", "train.steps", 6),
    ("mesh.rules=(('batch','data'),)", "mesh.rules", (("batch", "data"),)),
    ("train.phases=()", "train.phases", ()),
    ("train.phases.0.length=8", "train.phases", (config.PhaseConfig(0.5, length=8), config.PhaseConfig(1.0))),
    (
        "train.phases[1].batch_size=4",
        "train.phases",
        (config.PhaseConfig(0.5, length=16), config.PhaseConfig(1.0, batch_size=4)),
    ),
    (
        "train.phases.0.mixture.a=1",
        "train.phases",
        (config.PhaseConfig(0.5, 16, mixture={"a": 1.0}), config.PhaseConfig(1.0)),
    ),
    ("data.mixture.a=2", "data.mixture", {"a": 2.0}),
    ("data.mixture={'a':1,'b':3}", "data.mixture", {"a": 1.0, "b": 3.0}),
    ("data.sources.c.kind=text data.sources.c.path=c", "data.sources.c", config.TextFiles("c")),
    ("data.sources.a.kind=text", "data.sources.a", config.TextFiles("a.jsonl")),
    ("optimizer.kind=adafactor", "optimizer", config.AdafactorConfig()),
    ("optimizer.kind=adamw", "optimizer", PHASES.optimizer),
    ("optimizer.kind=lamb optimizer.b1=0.8", "optimizer", config.LambConfig(b1=0.8)),
    ("optimizer.b1=0.8 optimizer.kind=lamb", "optimizer", config.LambConfig(b1=0.8)),
    ("optimizer.kind=lamb optimizer.kind=adagrad", "optimizer", config.AdagradConfig()),
    ("schedule.kind=linear schedule.decay_steps=9", "schedule", config.LinearSchedule(1e-3, decay_steps=9)),
    ("objective.kind=decoder_prefix_lm", "objective", objectives.DecoderPrefixLM()),
    ("data.layout.kind=blocks", "data.layout", PHASES.data.layout),
    ("model.attention.position.kind=none", "model.attention.position", models.NoPositions()),
    ("model.attention.position.kind=rotary", "model.attention.position", models.Rotary()),
    ("model.attention.position.theta=5 model.attention.position.kind=rotary", "model.attention.position.theta", 5.0),
]


@pytest.mark.parametrize(("given", "path", "value"), VALUES, ids=[given for given, _, _ in VALUES])
def test_a_change_is_made_and_nothing_else_changes(given, path, value):
    given = [given] if "(" in given else given.split()
    run = changed(*given)
    field_value = run
    for name in path.split("."):
        field_value = field_value[name] if isinstance(field_value, dict) else getattr(field_value, name)
    assert field_value == value and type(field_value) is type(value)
    differing = config.differences(config.to_dict(PHASES), config.to_dict(run))
    assert all(f"{each.field}.".startswith(f"{path}.") or f"{path}.".startswith(f"{each.field}.") for each in differing)


MISTAKES = [
    ("train.step=3", "there is no field config.train.step: did you mean 'steps'?"),
    ("learning_rate=1", r"there is no field config.learning_rate: did you mean config.schedule.learning_rate\?$"),
    ("train.learning_rate=1", r"no field config.train.learning_rate: did you mean config.schedule.learning_rate\?$"),
    ("batch_size=1", r"did you mean config.train.batch_size or config.evaluation.batch_size\?$"),
    ("trian.learning_rate=1", r"there is no field config.trian: did you mean 'train'\?$"),
    ("trian.steps=3", "there is no field config.trian: did you mean 'train'?"),
    ("train.steps.more=3", "there is no field config.train.steps.more: config.train.steps is not a section"),
    ("train.steps=many", "config.train.steps is 'many': must be an integer"),
    ("train.steps=2.5", "config.train.steps is '2.5': must be an integer"),
    ("train.steps=", "config.train.steps is '': must be an integer"),
    ("train.steps=None", "config.train.steps is 'None': must be an integer"),
    ("train.steps=inf", "config.train.steps is 'inf': must be an integer"),
    ("schedule.learning_rate=fast", "config.schedule.learning_rate is 'fast': must be a number"),
    ("model.scan_layers=maybe", "config.model.scan_layers is 'maybe': must be yes or no"),
    ("precision.compute=float16", "config.precision.compute is 'float16': did you mean 'bfloat16'?"),
    ("optimizer=lamb", "config.optimizer is a section: set its fields, as in config.optimizer.NAME="),
    ("optimizer.kind=lam", "config.optimizer.kind is 'lam': did you mean 'lamb'?"),
    ("optimizer.kind=adagrad optimizer.b1=0.8", "there is no field config.optimizer.b1: "),
    ("schedule.kind=cosin", "config.schedule.kind is 'cosin': did you mean 'cosine'?"),
    ("train.kind=long", "there is no field config.train.kind: "),
    ("model.attention.position.kind=absent", "config.model.attention.position.kind is 'absent': choose from: "),
    ("train.phases.2.length=8", "there is no field config.train.phases.2: use a number from 0 to 1"),
    ("train.phases.last.length=8", "there is no field config.train.phases.last: use a number from 0 to 1"),
    ("train.phases.0.size=8", "there is no field config.train.phases.0.size: "),
    ("mesh.rules.0=('batch',)", r"config.mesh.rules.0 is \('batch',\): must have 2 values"),
    ("data.sources.c.path=x", "there is no field config.data.sources.c: choose from: a, b"),
    ("data.sources.c.kind=table", "config.data.sources.c.kind is 'table', which has no default for path: set that too"),
    ("data.mixture.books=2", "config.data.mixture names 'books': choose from: a, b"),
    ("data.mixture.a=some", "config.data.mixture.a is 'some': must be a number"),
    ("data.mixture=a", "config.data.mixture is a section"),
    (
        "train.steps=3 train={}",
        "config.train comes after config.train.steps and would overwrite it: pass",
    ),
    ("model.kind=elmo", "config.model.kind is 'elmo', which has no default for embedding: set that too"),
]


@pytest.mark.parametrize(("given", "said"), MISTAKES, ids=[given for given, _ in MISTAKES])
def test_a_mistake_is_one_line(given, said):
    with pytest.raises(UserError, match=said) as raised:
        changed(*given.split())
    assert "\n" not in str(raised.value)


def test_a_sweep_gives_values_of_python_in_the_same_way():
    changes = {
        "train.steps": 9,
        "train.phases": (config.PhaseConfig(1.0, length=8),),
        "optimizer.kind": "lamb",
        "optimizer.b1": 0.5,
        "objective": objectives.DecoderPrefixLM(),
    }
    tree = config.to_dict(PHASES)
    run = config.from_dict(overrides.apply(tree, list(changes.items()), config.Run))
    train = dataclasses.replace(PHASES.train, steps=9, phases=(config.PhaseConfig(1.0, length=8),))
    want = {"train": train, "optimizer": config.LambConfig(b1=0.5), "objective": objectives.DecoderPrefixLM()}
    assert run == dataclasses.replace(PHASES, **want)
    assert tree == config.to_dict(PHASES)


def test_required_fields_keep_their_values_when_the_kind_changes():
    @dataclass(frozen=True)
    class Text:
        kind: ClassVar[str] = "text"
        size: int
        name: str = "a"

    @dataclass(frozen=True)
    class Number:
        kind: ClassVar[str] = "number"
        size: int
        name: Literal["b"]
        digits: int = 3

    @dataclass(frozen=True)
    class Part:
        what: Text | Number | None = None
        parts: tuple[Text | Number, ...] = ()
        named: dict[str, Text | Number] = field(default_factory=dict)

    def made(tree, *changes):
        return overrides.apply(tree, [change.split("=") for change in changes], Part, "part")

    text = {"what": {"kind": "text", "size": 4, "name": "z"}}
    number = {"kind": "number", "size": 4, "name": "b", "digits": 3}
    assert made(text, "what.kind=number", "what.name=b") == {"what": number}
    with pytest.raises(UserError, match=r"part.what.kind is 'number', which has no default for name: set that too"):
        made(text, "what.kind=number")
    assert made({"what": None}, "what.kind=text", "what.size=1")["what"] == {"kind": "text", "size": 1, "name": "a"}
    with pytest.raises(UserError, match=r"part.what is None: set part.what.kind too"):
        made({"what": None}, "what.size=1")
    assert made(text, "what=None") == {"what": None}
    assert made({"parts": [text["what"]]}, "parts.0.kind=number", "parts.0.name=b") == {"parts": [number]}


def test_dotted_flags_are_parsed_like_absl_flags(monkeypatch):
    below = ["--config.a.b=c=d", "-config.e", "5", "--config.f", "-3", "--noconfig.g", "--config.h", "--config.i="]
    line = ["verb", "--config=page.py:size", *below, "--workdir", "w", "--", "--config.j=1"]
    monkeypatch.setattr("sys.argv", line)
    remaining, changes = command_line._split_dotted(command_line._arguments(), "config")
    assert changes == [("a.b", "c=d"), ("e", "5"), ("f", "-3"), ("g", "no"), ("h", "yes"), ("i", "")]
    assert remaining == ["--config=page.py:size", "--workdir", "w"]
