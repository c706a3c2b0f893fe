"""Whether a description of a model can be of the tensors beside it, before anything is traced or made of it."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.common.errors import UserError, one_line
from plm_jax.hub.files import StoredTensor
from plm_jax.models.protocol import ModelConfig

# Four times those of the deepest model that was published (Wang et al. 2022, arXiv:2203.00555).
MOST_LAYERS = 4096
# The most tokens, places or labels that need no tensor of that size, as the length that rotary positions are meant for.
_MOST = 2**24
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
    """Refuses settings that no model with these tensors has; `path` is the file that has the settings.

    Raises:
      UserError: a size is larger than any axis and any length, or there are more layers than any model has.
    """
    longest = max((axis for tensor in tensors.values() for axis in tensor.shape), default=0)
    for name, value in _integers(model):
        field = name.rpartition(".")[2]
        most = MOST_LAYERS if field.endswith("layers") else len(tensors) if field == "inner" else _MOST
        if value > most and not (most == _MOST and value <= min(longest, 2**31 - 1)):
            raise UserError(f"{path}: {name} would be {value:,}, the tensors have room for {most:,}: fetch both again")


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
        if not is_number or (name == "sentinels" and not 0 <= value <= _MOST_SENTINELS):
            raise UserError(f"{path}: {name} is {str(value)[:100]}: give {_WANTED.get(name, 'the id of a token')}")


def _integers(part: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """The integers of settings with their dotted names."""
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from _integers(getattr(part, field.name), f"{path}.{field.name}" if path else field.name)
    elif isinstance(part, tuple):
        for item in part:
            yield from _integers(item, path)
    elif type(part) is int:
        yield path, part
