"""The ids that are no text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Special:
    """Special ids of a vocabulary; None where it has none. `sentinels` in the order in which they are used."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sentinels: tuple[int, ...] | None = None
