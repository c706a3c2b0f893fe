"""Accepted ranges of numbers in settings, declared in the annotation of each field and checked by `trees.parse`.

    layers: Annotated[int, Range(1, 4096)]        rate: Share        windows: tuple[Length, ...]

Limits are several times larger than in any published model or run, and small enough for arithmetic in 64 bits.
"""

import reprlib
from typing import Annotated, NamedTuple

from plm_jax.common.errors import UserError


class Range(NamedTuple):
    """Accepted values of a number. NaN and infinities are always rejected.

    Attributes:
      least, most: limits of the range.
      above: whether `least` itself is rejected.
      below: whether `most` itself is rejected.
      also: one more accepted value.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False
    also: int | None = None

    def check(self, value: float, field: str) -> None:
        """Raises a `UserError` with the field, its value and the range if the value is out of range."""
        is_above = self.least < value if self.above else self.least <= value
        is_below = value < self.most if self.below else value <= self.most
        if not (is_above and is_below) and value != self.also:
            raise UserError(f"{field} is {shown(value)}: must be {self.requirement()}")

    def requirement(self) -> str:
        """Returns the text that follows "must be" in error messages, such as "between 0 and 1"."""
        also = "" if self.also is None else f", or {self.also}"
        if not (self.above or self.below):
            return f"between {_number(self.least)} and {_number(self.most)}{also}"
        least = f"above {_number(self.least)}" if self.above else f"at least {_number(self.least)}"
        most = f"below {_number(self.most)}" if self.below else f"at most {_number(self.most)}"
        return f"{least} and {most}{also}"

    def __str__(self) -> str:
        least = f"above {_number(self.least)}" if self.above else _number(self.least)
        most = f"below {_number(self.most)}" if self.below else _number(self.most)
        also = "" if self.also is None else f", or {self.also}"
        return f"{least} to {most}{also}"


def shown(value: object) -> str:
    """Returns the `repr` of a value, shortened to at most 60 characters.

    An integer that is too long for Python to print becomes a text without digits.
    """
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python converts no integer of more than 4,300 digits to text.
        return "an integer of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _number(value: float) -> str:
    is_whole = isinstance(value, int) or (value.is_integer() and abs(value) < 2**53)
    return f"{int(value):,}" if is_whole else f"{value:g}"


# Formats no more of a large value than is shown.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 60

# Range of numbers whose field declares none, as in a user's class.
FINITE = Range(-1.7976931348623157e308, 1.7976931348623157e308)

Layers = Annotated[int, Range(1, 4096)]
# Size of an axis of a model.
Width = Annotated[int, Range(1, 2**20)]
# Number of tokens, or of ids in a vocabulary.
Length = Annotated[int, Range(1, 2**24)]
LengthOrZero = Annotated[int, Range(0, 2**24)]
# Number of rows.
Batch = Annotated[int, Range(1, 2**20)]
# Number of training steps.
Steps = Annotated[int, Range(1, 10**9)]
StepsOrZero = Annotated[int, Range(0, 10**9)]
# Number of things that are counted but not allocated.
Count = Annotated[int, Range(1, 10**9)]
CountOrZero = Annotated[int, Range(0, 10**9)]
Workers = Annotated[int, Range(0, 1024)]

Share = Annotated[float, Range(0, 1)]
ShareBelowOne = Annotated[float, Range(0, 1, below=True)]
ShareAboveZero = Annotated[float, Range(0, 1, above=True)]
InnerShare = Annotated[float, Range(0, 1, above=True, below=True)]
Scale = Annotated[float, Range(0, 1e6)]
Positive = Annotated[float, Range(0, 1e6, above=True)]
# Above the least normal float32, below which it would count as 0.
Epsilon = Annotated[float, Range(1.2e-38, 1)]
# Weight of a source in a mixture.
MixtureRate = Annotated[float, Range(0, 1e12)]
