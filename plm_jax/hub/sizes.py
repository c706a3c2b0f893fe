"""Whether a description of a model can be of the tensors beside it, before anything is traced or made of it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.common.errors import UserError, one_line
from plm_jax.hub.files import StoredTensor
from plm_jax.models.protocol import ModelConfig

_MOST_SENTINELS = 2**20
# The special ids of which there may be several.
_FRAME = ("begins_with", "ends_with")
_LISTS = (*_FRAME, "eos_token_id")
_WANTED = dict.fromkeys(_FRAME, "a list of the ids of tokens") | {"sentinels": "how many there are"}


@contextlib.contextmanager
def described_by(path: str) -> Iterator[None]:
    """Within it what a file of others says is taken for what it should say; where it does not, the file is damaged.

    Raises:
      UserError: it is.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{path} is damaged ({what}): fetch it again") from error


def check(path: str, model: ModelConfig, tensors: Mapping[str, StoredTensor]) -> None:
    """Raises a `UserError` if layers have more blocks than there are tensors.

    The ranges of settings limit other sizes.

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
    """Refuses special ids, as `Pretrained` has them, that are no integers, or more sentinels than any model has.

    Raises:
      UserError: there is one.
    """
    for name, value in ids.items():
        if not name.endswith("_token_id") and name not in (*_FRAME, "sentinels"):
            continue
        several = value if isinstance(value, list | tuple) and name in _LISTS else [value]
        is_number = all(type(i) is int and abs(i) < 2**31 for i in several)
        is_count = name != "sentinels" or (type(value) is int and 0 <= value <= _MOST_SENTINELS)
        if not (is_number and is_count):
            raise UserError(f"{path}: {name} is {str(value)[:100]}: give {_WANTED.get(name, 'the id of a token')}")
