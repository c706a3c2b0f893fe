"""FLOPs of the matrix products of a compiled TPU program. The compiler writes matrix products as convolutions."""

import math
import re

import numpy as np

from plm_jax.planning import hlo

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def filled_share(convolution: hlo.Instruction, instructions: dict[str, hlo.Instruction], size: int) -> float:
    """Returns the share of a square matrix unit that a convolution fills.

    The unit holds `size` × `size` entries of one operand; rows of the other operand pass through the unit in groups of
    8. Either operand may be held, and the better choice is assumed.

    Args:
      instructions: instructions, by name, of the computation that contains the convolution.
      size: number of rows, and of columns, of the unit.
    """
    weights = instructions[convolution.operands[1]].arrays[0].dimensions
    result = convolution.arrays[0]
    _, of_weights, of_result = _labels(convolution)
    contracted, columns = weights[of_weights.index("i")], result.dimensions[of_result.index("f")]
    rows = result.size // columns
    filled = max(
        _filled(columns, size) * _filled(rows, 8),
        _filled(rows, size) * _filled(columns, 8),
    )
    return _filled(contracted, size) * filled


def _filled(length: int, group: int) -> float:
    """Returns `length` divided by `length` rounded up to a multiple of `group`."""
    return length / (-(-length // group) * group)


def _labels(convolution: hlo.Instruction) -> tuple[str, str, str]:
    """Returns the labels of the axes of three arrays: the data, the weights and the result."""
    match = _LABELS.search(convolution.rest)
    assert match is not None  # Every convolution has them.
    data, weights, result = match.groups()
    return data, weights, result


def convolution_flops(convolution: hlo.Instruction, instructions: dict[str, hlo.Instruction]) -> float:
    """Returns the FLOPs of a convolution, counted as in `_pairs` along each axis of its window.

    Args:
      instructions: instructions, by name, of the computation that contains the convolution.
    """
    data, weights = (instructions[name].arrays[0].dimensions for name in convolution.operands[:2])
    (result,) = (array.dimensions for array in convolution.arrays)
    of_data, of_weights, of_result = _labels(convolution)
    window = _window(convolution)
    count = 2.0 * result[of_result.index("b")] * result[of_result.index("f")] * weights[of_weights.index("i")]
    for axis in range(len(of_data) - 2):
        sizes = (data[of_data.index(str(axis))], result[of_result.index(str(axis))])
        count *= _pairs(*sizes, **{name: values[axis] for name, values in window.items()})
    return count


def _window(convolution: hlo.Instruction) -> dict[str, list[int]]:
    """Returns the arguments of `_pairs` that describe a window, by name; each is a list over axes."""
    match = _WINDOW.search(convolution.rest)
    fields = dict(field.split("=") for field in match[1].split()) if match else {"size": ""}
    axes = [int(size) for size in fields["size"].split("x") if size]
    window = {"size": axes, "padding": [0] * len(axes)}
    if "pad" in fields:
        window["padding"] = [int(pair.split("_")[0]) for pair in fields["pad"].split("x")]
    for name, field in (("stride", "stride"), ("gaps", "lhs_dilate"), ("spread", "rhs_dilate")):
        window[name] = [int(value) for value in fields[field].split("x")] if field in fields else [1] * len(axes)
    return window


def _pairs(data: int, result: int, size: int, padding: int, stride: int, gaps: int, spread: int) -> int:
    """Counts the multiplications along one axis: the pairs of a result and a window position on a data element.

    Window positions in the padding, or in the gaps between data elements, are not counted.

    Args:
      data: number of data elements.
      result: number of results.
      size: number of window positions.
      padding: padding before the first data element.
      stride: distance between the windows of consecutive results.
      gaps: distance between data elements (dilation of the data).
      spread: distance between window positions (dilation of the window).
    """
    if math.prod((padding + 1, stride, gaps, spread)) == 1 and result + size - 1 <= data:
        return result * size
    positions = np.arange(result)[:, None] * stride - padding + np.arange(size)[None, :] * spread
    return int(np.sum((positions >= 0) & (positions <= (data - 1) * gaps) & (positions % gaps == 0)))
