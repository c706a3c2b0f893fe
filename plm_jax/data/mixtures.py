"""Which source example k comes from, a pure function of k, by counting, without drawing; and by which rates."""

import math
from collections.abc import Iterable, Mapping

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

    def place(self, name: str, index: int) -> int:
        """Which example is the one of a source with this index among its own: the inverse of `locate`."""
        low, high = index, 2 * index + 2
        while self.counts(high)[name] <= index:
            high *= 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.counts(middle + 1)[name] > index else (middle + 1, high)
        return low


def equal(names: Iterable[str]) -> dict[str, float]:
    """The same rate for each source."""
    return dict.fromkeys(names, 1.0)


def proportional(
    examples: Mapping[str, float], *, scale: float = 1.0, maximum: float | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """Rates by how many examples each source has (Raffel et al. 2020 §3.5.2, arXiv:1910.10683).

    In the order of seqio's `mixing_rate_num_examples`: count × `scale`, at most `maximum` (the paper's K), to the power
    of 1 / `temperature` (the paper's T; the larger, the more alike the rates are).
    """
    limit = math.inf if maximum is None else maximum
    return {name: min(count * scale, limit) ** (1 / temperature) for name, count in examples.items()}


def nested(*mixtures: tuple[Mapping[str, float], float]) -> dict[str, float]:
    """One mixture of several, each given with its rate as a whole; a source that is in several gets the sum.

    `nested(({"c4": 1.0}, 0.5), (proportional(GLUE, maximum=2**21), 0.5))`: half from C4, half from GLUE's tasks.
    """
    found: dict[str, float] = {}
    for mixture, rate in mixtures:
        total = math.fsum(mixture.values())
        for name, share in mixture.items():
            found[name] = found.get(name, 0.0) + rate * share / total
    return found
