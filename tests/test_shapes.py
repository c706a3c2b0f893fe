"""Calls within tests fail if an array has another shape or type than its annotation; other functions cost nothing."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, Int

from plm_jax.losses import vocabulary
from plm_jax.models import attention
from plm_jax.objectives import packing, rows
from tests.support import shapes

checked = shapes.decorator(typechecker=shapes.check)


def join(first: Int[np.ndarray, "rows length"], second: Int[np.ndarray, " rows"] | None = None) -> None:
    del first, second


def double(values: "Float[np.ndarray, ' length']") -> "Float[np.ndarray, ' length']":
    return np.concatenate([values, values])


@dataclasses.dataclass
class Table:
    rows: Float[np.ndarray, "rows columns"] | None = None


def test_wrong_shapes_and_types_are_rejected():
    ids = np.zeros((2, 3), np.int32)
    checked(join)(ids, ids[:, 0])
    for wrong in ((ids[0],), (ids.astype(np.float32),), (ids, ids[0])):
        with pytest.raises(TypeError, match=r"first|second"):
            checked(join)(*wrong)
    with pytest.raises(TypeError, match="return value"):
        checked(double)(np.zeros(3, np.float32))
    checked(Table)(np.zeros((1, 2)))
    with pytest.raises(TypeError, match="rows"):
        Table(np.zeros(2))


def test_calls_that_resemble_an_accepted_call_are_checked():
    joined = checked(join)
    ids = np.zeros((2, 3), np.int32)
    for _ in range(2):
        joined(ids, second=ids[:, 0])
        with pytest.raises(TypeError, match="second"):
            joined(ids, second=ids[0])
        with pytest.raises(TypeError, match="first"):
            joined(ids.astype(np.float32), second=ids[:, 0])

    def zeros(length: int) -> Float[np.ndarray, " {length}"]:
        return np.zeros(max(length, 3))

    zeros = checked(zeros)
    for number in (int, np.int64):
        assert (len(zeros(number(3))), len(zeros(number(4)))) == (3, 4)
        with pytest.raises(TypeError, match="return value"):
            zeros(number(2))


def test_results_of_repeated_calls_are_checked_and_no_call_is_repeated():
    calls = []

    def cut(values: Float[np.ndarray, " length"], sizes: list[int]) -> Float[np.ndarray, " length"]:
        calls.append(sizes[0])
        return values[: sizes[0]]

    cut = checked(cut)
    assert len(cut(np.zeros(3), [3])) == len(cut(np.zeros(3), [3])) == 3
    with pytest.raises(TypeError, match="return value"):
        cut(np.zeros(3), [2])
    assert calls == [3, 3, 2]


def test_accepted_calls_are_not_checked_again():
    checks = []

    def typechecker(function):
        def check(*args, **kwargs):
            checks.append(function.__name__)
            return shapes.check(function)(*args, **kwargs)

        return functools.wraps(function)(check)

    joined = shapes.decorator(typechecker)(join)
    joined(np.zeros((2, 3), np.int32))
    number = len(checks)
    joined(np.ones((2, 3), np.int32))
    assert len(checks) == number > 0
    joined(np.ones((2, 4), np.int32))
    assert len(checks) == 2 * number


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (rows.segment_positions, (np.zeros((1, 2), np.int32),)),
        (attention.causal_positions, (2, np.zeros(2, np.int32))),
        (vocabulary.at_targets, (np.zeros((1, 2), np.float32), {})),
    ],
    ids=["objectives", "models", "losses"],
)
def test_the_package_is_checked(function, wrong):
    with pytest.raises(TypeError, match="Type-check error"):
        function(*wrong)


def test_functions_and_classes_without_arrays_are_not_decorated():
    def count(values: list[int], more: Any = None) -> int:
        return len(values)

    init = vars(Plain)["__init__"]
    assert checked(count) is count
    assert checked(Plain) is Plain and vars(Plain)["__init__"] is init
    assert not hasattr(packing.PackedFormat.__init__, "__wrapped__")


@dataclasses.dataclass
class Plain:
    size: int
