"""Every number of every settings class has a range, and values out of range are rejected anywhere in a config."""

import copy
import dataclasses
import math
import typing

import pytest

import plm_jax.common.users
from plm_jax.cleaning.settings import CleaningConfig
from plm_jax.common import ranges, roles, trees
from plm_jax.common.errors import UserError
from plm_jax.config import DecodingConfig, Run, from_dict
from plm_jax.config import files as pages

NAMES = ("demo:t5", "electra:small", "elmo:original", "glm:10b")
WRONG = (math.nan, math.inf, -math.inf, 10**400, -(10**30), 1e300, 10**22, "7", True, [], {}, [[1]])


def _settings_classes(kind, found):
    """Adds every settings class that a type can contain."""
    if choices := trees.choices(kind):
        for choice in choices.values():
            _settings_classes(choice, found)
    elif dataclasses.is_dataclass(kind):
        if kind not in found:
            found.add(kind)
            for hint in typing.get_type_hints(kind).values():
                _settings_classes(hint, found)
    else:
        for argument in typing.get_args(kind):
            _settings_classes(argument, found)
    return found


def _classes():
    classes = set()
    for kind in (Run, CleaningConfig, DecodingConfig, *roles.Role.__subclasses__()):
        _settings_classes(kind, classes)
    # Files of users, which other tests load, are modules below `plm_jax.common.users`.
    users = f"{plm_jax.common.users.__name__}."
    return [k for k in classes if k.__module__.startswith("plm_jax.") and not k.__module__.startswith(users)]


def _numbers(hint, accepted=None):
    """Yields the (type, range) of each number in an annotation."""
    if typing.get_origin(hint) is typing.Annotated:
        return [(hint.__origin__, hint.__metadata__[0])]
    if hint in (int, float):
        return [(hint, accepted)]
    return [number for argument in typing.get_args(hint) for number in _numbers(argument)]


def _fields():
    for kind in _classes():
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            for number, accepted in _numbers(hints[field.name]):
                yield f"{kind.__module__}.{kind.__name__}.{field.name}", number, accepted


def test_every_number_has_a_finite_range():
    fields = list(_fields())
    assert len(fields) > 150
    assert [name for name, _, accepted in fields if not isinstance(accepted, ranges.Range)] == []
    for name, _, accepted in fields:
        assert math.isfinite(accepted.least) and math.isfinite(accepted.most), name
        assert -(2**63) <= accepted.least < accepted.most < 2**63, name


def test_ranges_reject_what_is_beyond_their_limits():
    for _, number, accepted in set(_fields()):
        step = 1 if number is int else 1e-3
        inside = [] if accepted.above else [accepted.least]
        inside += [] if accepted.below else [accepted.most]
        for value in inside:
            assert trees.parse(typing.Annotated[number, accepted], number(value), "x") == value
        outside = [accepted.least] if accepted.above else []
        outside += [accepted.most] if accepted.below else []
        outside += [math.nan, math.inf, -math.inf] if number is float else []
        for value in (*outside, accepted.least - step * max(1, abs(accepted.least)), accepted.most * 2 + 1, 10**400):
            with pytest.raises(UserError, match=r"^x is "):
                trees.parse(typing.Annotated[number, accepted], value if value == 10**400 else number(value), "x")


def _leaves(tree, path=()):
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _leaves(value, (*path, name))
    elif type(tree) in (int, float):
        yield path


@pytest.mark.parametrize("name", NAMES)
def test_no_wrong_number_is_accepted_anywhere(name):
    tree = pages.load(name).config().to_dict()
    from_dict(tree)
    leaves = list(_leaves(tree))
    assert len(leaves) > 25
    for path in leaves:
        for value in WRONG:
            wrong = copy.deepcopy(tree)
            section = wrong
            for part in path[:-1]:
                section = section[part]
            section[path[-1]] = value
            with pytest.raises(UserError) as raised:
                from_dict(wrong)
            message = str(raised.value)
            assert message.startswith(f"config.{'.'.join(path)} is ") and "\n" not in message and len(message) < 250


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.z_loss", -1.0),
        ("train.batch_size", 10**9),
        ("train.epochs", 1e300),
        ("train.steps", 10**22),
        ("schedule.warmup_steps", 10**22),
        ("optimizer.clip_norm", -1.0),
        ("optimizer.b1", 1.0),
        ("schedule.learning_rate", math.nan),
        ("model.stack.layers", 0),
        ("model.stack.layers", 10**7),
        ("model.embedding.width", 0),
        ("model.embedding.vocab_size", 0),
        ("model.attention.heads", 0),
        ("model.attention.head_dim", 0),
        ("model.feed_forward.width", 0),
        ("model.initializer.std", math.nan),
        ("evaluation.decoding.num_beams", 10**9),
    ],
)
def test_numbers_that_were_accepted_are_rejected(path, value):
    tree = pages.load("demo:gpt2").config().to_dict()
    section = tree
    *parts, name = path.split(".")
    for part in parts:
        section = section[part]
    section[name] = value
    with pytest.raises(UserError, match=f"^config.{path} is .*: must be "):
        from_dict(tree)


def test_a_batch_of_more_tokens_than_any_is_rejected():
    tree = pages.load("demo:gpt2").config().to_dict()
    tree["train"]["batch_size"], tree["model"]["attention"]["position"]["length"] = 2**20, 2**12
    tree["data"]["length"] = 2**12
    with pytest.raises(UserError, match="tokens"):
        from_dict(tree)


def test_a_users_class_takes_any_finite_number():
    @dataclasses.dataclass(frozen=True)
    class Mine:
        rate: float = 1.0

    assert trees.parse(Mine, {"rate": -1e300}, "mine") == Mine(-1e300)
    for value in (math.nan, math.inf, 10**400):
        with pytest.raises(UserError, match=r"mine\.rate"):
            trees.parse(Mine, {"rate": value}, "mine")
