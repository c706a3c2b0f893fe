"""Calls within tests fail if an array has another shape or type than its annotation; other functions cost nothing."""

import dataclasses
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
