"""The special tokens that a vocabulary may have, listed once."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of a vocabulary's special tokens, None where it has none.

    Attributes:
      sop, eop: what begins and ends the filling of a blank (GLM).
      smask, gmask: masks of a blank that is a sentence, and of a long one.
      dblock: what hides a token of a filling.
    """

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sop: int | None = None
    eop: int | None = None
    smask: int | None = None
    gmask: int | None = None
    dblock: int | None = None


NAMES = tuple(f.name for f in fields(SpecialIds))
