"""Mixtures of sources. The source of example k is a pure function of k, without random draws."""

import math
from collections.abc import Iterable, Mapping

_ONE = 2**32


class Mixture:
    """Interleaving of sources in proportion to their rates, at least one of which must be above 0.

    The first source gets its share of all examples, the second its share of the rest, and so on. The last source gets
    everything that is left. A share q of n examples is floor(n · q), where q is rounded to a multiple of 2^-32, but
    not to 0 or 1. `counts` and `locate` take one step per source.

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
        """Returns the number of examples of each source with a rate above 0 among the first k examples."""
        counts = {}
        for name, share in zip(self.names, self._shares, strict=True):
            counts[name] = k * share // _ONE
            k -= counts[name]
        return counts

    def locate(self, k: int) -> tuple[str, int]:
        """Returns the source of example k, and the index of the example among the examples of that source."""
        for name, share in zip(self.names, self._shares, strict=True):
            before = k * share // _ONE
            if (k + 1) * share // _ONE > before:
                return name, before
            k -= before
        raise AssertionError("the share of the last source is not 1")

    def position(self, name: str, index: int) -> int:
        """Returns the number k of the example that has this index among the examples of source `name`.

        This is the inverse of `locate`. The rate of the source must be above 0.
        """
        low, high = index, 2 * index + 2
        while self.counts(high)[name] <= index:
            high *= 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.counts(middle + 1)[name] > index else (middle + 1, high)
        return low


def equal(names: Iterable[str]) -> dict[str, float]:
    """Returns the rate 1 for each source."""
    return dict.fromkeys(names, 1.0)


def proportional(
    examples: Mapping[str, float], *, scale: float = 1.0, maximum: float | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """Returns rates based on the number of examples of each source (Raffel et al. 2020 §3.5.2, arXiv:1910.10683).

    A rate is min(count × `scale`, `maximum`)^(1 / `temperature`), as in seqio's `mixing_rate_num_examples`. Without
    `maximum`, counts are not limited. The paper calls the maximum K and the temperature T. The larger the temperature,
    the more equal the rates.
    """
    limit = math.inf if maximum is None else maximum
    return {name: min(count * scale, limit) ** (1 / temperature) for name, count in examples.items()}


def nested(*mixtures: tuple[Mapping[str, float], float]) -> dict[str, float]:
    """Returns the combination of several mixtures. Each argument is a pair of a mixture and its total rate.

    The rates of a mixture are scaled so that they add up to its total rate. If a source is in several mixtures, its
    scaled rates are added.

    `nested(({"c4": 1.0}, 0.5), (proportional(GLUE, maximum=2**21), 0.5))` takes half of the examples from C4 and half
    from the tasks of GLUE.
    """
    rates: dict[str, float] = {}
    for mixture, rate in mixtures:
        total = math.fsum(mixture.values())
        for name, share in mixture.items():
            rates[name] = rates.get(name, 0.0) + rate * share / total
    return rates
