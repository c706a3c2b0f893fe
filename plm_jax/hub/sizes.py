"""Plausibility checks of downloaded settings and special ids, before anything is traced or memory is allocated."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.common.errors import UserError, one_line
from plm_jax.hub.files import StoredTensor
from plm_jax.models.protocol import ModelConfig

_MAX_SENTINELS = 2**20
# Special ids that may be lists.
_FRAME = ("begins_with", "separates_with", "ends_with")
_LISTS = (*_FRAME, "eos_token_id")
_EXPECTED = dict.fromkeys(_FRAME, "a list of token ids") | {"sentinels": "their number"}


@contextlib.contextmanager
def report_as_damaged(path: str) -> Iterator[None]:
    """Context manager that converts errors caused by invalid content of a file to a `UserError`.

    Raises:
      UserError: the file is damaged.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{path} is damaged ({cause}): fetch it again") from error


def check(path: str, model: ModelConfig, tensors: Mapping[str, StoredTensor]) -> None:
    """Raises a `UserError` if a layer has more blocks than there are tensors.

    Other sizes need no check here, because the ranges of the settings limit them.

    Args:
      path: file that contains the settings.
    """
    for stack in model.stacks:
        if stack.inner > len(tensors):
            raise UserError(
                f"{path}: a layer would have {stack.inner:,} blocks, but there are {len(tensors):,} tensors: fetch "
                "both again"
            )


def check_ids(path: str, ids: Mapping[str, Any]) -> None:
    """Checks the types of the special ids in `Pretrained.special_ids`. Some entries may be lists.

    Raises:
      UserError: an id is not a 32-bit integer, or there are more than `_MAX_SENTINELS` sentinels.
    """
    for name, value in ids.items():
        if not name.endswith("_token_id") and name not in (*_FRAME, "sentinels"):
            continue
        is_list = isinstance(value, list | tuple)
        numbers = value if is_list and name in _LISTS else [value]
        is_number = all(type(i) is int and abs(i) < 2**31 for i in numbers) and (is_list or name not in _FRAME)
        is_count = name != "sentinels" or (type(value) is int and 0 <= value <= _MAX_SENTINELS)
        if not (is_number and is_count):
            raise UserError(f"{path}: {name} is {str(value)[:100]}: expected {_EXPECTED.get(name, 'a token id')}")
