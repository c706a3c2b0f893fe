"""The special tokens that a vocabulary may have, listed once."""

from dataclasses import dataclass, fields

from plm_jax.common import ranges
from plm_jax.common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of a vocabulary's special tokens, None where it has none.

    Attributes:
      sop, eop: what begins and ends the filling of a blank (GLM).
      smask, gmask: masks of a blank that is a sentence, and of a long one.
      dblock: what hides a token of a filling.
    """

    pad: ranges.LengthOrZero | None = None
    bos: ranges.LengthOrZero | None = None
    eos: ranges.LengthOrZero | None = None
    unk: ranges.LengthOrZero | None = None
    cls: ranges.LengthOrZero | None = None
    sep: ranges.LengthOrZero | None = None
    mask: ranges.LengthOrZero | None = None
    sop: ranges.LengthOrZero | None = None
    eop: ranges.LengthOrZero | None = None
    smask: ranges.LengthOrZero | None = None
    gmask: ranges.LengthOrZero | None = None
    dblock: ranges.LengthOrZero | None = None

    def required(self, name: str) -> int:
        """Returns a special id.

        Raises:
          UserError: the vocabulary has none of this name.
        """
        found = getattr(self, name)
        if found is None:
            raise UserError(f"the vocabulary has no special id {name}: set config.vocabulary.{name}")
        return found


NAMES = tuple(f.name for f in fields(SpecialIds))
