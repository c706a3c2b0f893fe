import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax.data.mixtures import Mixture

RATES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).map(lambda r: {str(i): x for i, x in enumerate(r)})


@given(RATES, st.integers(1, 500))
def test_locate_counts_each_source_up_from_zero(rates, n):
    mixture, seen = Mixture(rates), collections.Counter()
    for k in range(n):
        assert mixture.counts(k) == {name: seen[name] for name in rates}
        name, index = mixture.locate(k)
        assert index == seen[name]
        seen[name] += 1


@given(RATES, st.integers(0, 10**15))
def test_counts_add_up_and_agree_with_locate_far_out(rates, k):
    mixture = Mixture(rates)
    before, after = mixture.counts(k), mixture.counts(k + 1)
    assert sum(before.values()) == k
    name, index = mixture.locate(k)
    assert index == before[name]
    assert after == before | {name: index + 1}


def test_rates_hold_over_a_million_and_at_every_prefix():
    rates = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    mixture, seen = Mixture(rates), collections.Counter()
    for k in range(10**6):
        seen[mixture.locate(k)[0]] += 1
        if k % 997 == 0:
            assert all(abs(seen[name] - rate * (k + 1)) < len(rates) for name, rate in rates.items())
    assert all(abs(seen[name] / 10**6 - rate) < 1e-5 for name, rate in rates.items())


def test_two_even_sources_alternate():
    assert [Mixture({"a": 2, "b": 2}).locate(k)[0] for k in range(4)] == ["b", "a", "b", "a"]


@pytest.mark.parametrize("rates", [{"a": 0.0, "b": 1.0, "c": 2.0}, {"b": 1.0, "c": 2.0, "a": 0.0}])
def test_zero_rate_is_never_read(rates):
    assert {Mixture(rates).locate(k)[0] for k in range(1000)} == {"b", "c"}


def test_a_tiny_rate_is_read_at_last():
    mixture = Mixture({"tiny": 1e-12, "big": 1.0})
    assert mixture.counts(2**33)["tiny"] == 2
