"""The special tokens that a vocabulary may have, listed once."""

from dataclasses import dataclass, fields

from plm_jax.common import ranges
from plm_jax.common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Ids of a vocabulary's special tokens. An id is None if the vocabulary lacks the token.

    Attributes:
      pad: padding.
      bos: beginning of a text.
      eos: end of a text.
      unk: unknown token.
      cls: first token of a row, for classification (BERT).
      sep: separator between texts (BERT).
      mask: replacement of a masked token.
      sop: beginning of a filled blank (GLM).
      eop: end of a filled blank (GLM).
      smask: mask of a blank that is a sentence (GLM).
      gmask: mask of a long blank (GLM).
      dblock: replacement of a hidden token in a filled blank (GLM).
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
          UserError: the vocabulary has no special token of this name.
        """
        special_id = getattr(self, name)
        if special_id is None:
            raise UserError(f"the vocabulary has no special id {name}: set config.vocabulary.{name}")
        return special_id


NAMES = tuple(f.name for f in fields(SpecialIds))
