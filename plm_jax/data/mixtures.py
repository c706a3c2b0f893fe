"""Mixtures of sources, in which the source of example k is a pure function of k, without random draws."""

import math
from collections.abc import Iterable, Mapping

_ONE = 2**32


class Mixture:
    """Interleaving of sources in proportion to their rates.

    The first source takes its share of all examples, the second its share of the rest, and so on. A share q of n
    examples is floor(n · q), computed exactly after q is rounded to 32-bit fixed point. `counts` and `locate` take one
    step per source.

    Attributes:
      names: sources with a rate above 0.
    """

    def __init__(self, rates: Mapping[str, float]):
        rates = {name: rate for name, rate in rates.items() if rate > 0}
        self.names = tuple(rates)
        values = list(rates.values())
        shares = [rate / math.fsum(values[i:]) for i, rate in enumerate(values[:-1])]
        self._shares = [*(min(max(round(share * _ONE), 1), _ONE - 1) for share in shares), _ONE]

    def counts(self, k: int) -> dict[str, int]:
        """Returns the number of examples of each source among the first k examples."""
        counts = {}
        for name, share in zip(self.names, self._shares, strict=True):
            counts[name] = k * share // _ONE
            k -= counts[name]
        return counts

    def locate(self, k: int) -> tuple[str, int]:
        """Returns the source of example k, and its index among the examples of that source."""
        for name, share in zip(self.names, self._shares, strict=True):
            before = k * share // _ONE
            if (k + 1) * share // _ONE > before:
                return name, before
            k -= before
        raise AssertionError("the share of the last source is not 1")

    def position(self, name: str, index: int) -> int:
        """Returns the position k of the example with this index in its source; the inverse of `locate`."""
        low, high = index, 2 * index + 2
        while self.counts(high)[name] <= index:
            high *= 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.counts(middle + 1)[name] > index else (middle + 1, high)
        return low


def equal(names: Iterable[str]) -> dict[str, float]:
    """Returns the same rate for each source."""
    return dict.fromkeys(names, 1.0)


def proportional(
    examples: Mapping[str, float], *, scale: float = 1.0, maximum: float | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """Returns rates based on the number of examples of each source (Raffel et al. 2020 §3.5.2, arXiv:1910.10683).

    A rate is min(count × `scale`, `maximum`)^(1 / `temperature`), as in seqio's `mixing_rate_num_examples`. The paper
    calls the maximum K and the temperature T; the larger the temperature, the more equal the rates.
    """
    limit = math.inf if maximum is None else maximum
    return {name: min(count * scale, limit) ** (1 / temperature) for name, count in examples.items()}


def nested(*mixtures: tuple[Mapping[str, float], float]) -> dict[str, float]:
    """Combines mixtures into one. Each argument is a pair of a mixture and its total rate.

    If a source is in several mixtures, its rates are added.

    `nested(({"c4": 1.0}, 0.5), (proportional(GLUE, maximum=2**21), 0.5))` takes half of the examples from C4 and half
    from the tasks of GLUE.
    """
    rates: dict[str, float] = {}
    for mixture, rate in mixtures:
        total = math.fsum(mixture.values())
        for name, share in mixture.items():
            rates[name] = rates.get(name, 0.0) + rate * share / total
    return rates
