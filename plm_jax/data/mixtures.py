"""Which source example k comes from: a pure function of k, by counting, without drawing."""

import math
from collections.abc import Mapping

_ONE = 2**32


class Mixture:
    """Sources in proportion to rates, evenly interleaved.

    The first source takes its share of all examples, the second its share of the rest, and so on. A share q, in 32-bit
    fixed point, of n examples is floor(n · q): within one of n · q at every n, in exact integers, so both "how many of
    the first k" and "which one is k" cost one step a source.

    Attributes:
      names: the sources with a rate above 0.
    """

    def __init__(self, rates: Mapping[str, float]):
        rates = {name: rate for name, rate in rates.items() if rate > 0}
        self.names = tuple(rates)
        values = list(rates.values())
        shares = [rate / math.fsum(values[i:]) for i, rate in enumerate(values[:-1])]
        self._shares = [*(min(max(round(share * _ONE), 1), _ONE - 1) for share in shares), _ONE]

    def counts(self, k: int) -> dict[str, int]:
        """How many of the first k examples come from each source."""
        found = {}
        for name, share in zip(self.names, self._shares, strict=True):
            found[name] = k * share // _ONE
            k -= found[name]
        return found

    def locate(self, k: int) -> tuple[str, int]:
        """The source of example k, and its index among the examples of that source."""
        for name, share in zip(self.names, self._shares, strict=True):
            before = k * share // _ONE
            if (k + 1) * share // _ONE > before:
                return name, before
            k -= before
        raise AssertionError("the last source takes all that is left")
