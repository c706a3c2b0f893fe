import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax.data import mixtures
from plm_jax.data.mixtures import Mixture

RATES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).map(lambda r: {str(i): x for i, x in enumerate(r)})


@given(RATES, st.integers(1, 500))
def test_locate_counts_each_source_up_from_zero(rates, n):
    mixture, expected = Mixture(rates), collections.Counter()
    for k in range(n):
        assert mixture.counts(k) == {name: expected[name] for name in rates}
        name, index = mixture.locate(k)
        assert index == expected[name]
        expected[name] += 1


@given(RATES, st.integers(0, 10**15))
def test_counts_add_up_and_agree_with_locate_far_out(rates, k):
    mixture = Mixture(rates)
    before, after = mixture.counts(k), mixture.counts(k + 1)
    assert sum(before.values()) == k
    name, index = mixture.locate(k)
    assert index == before[name]
    assert after == before | {name: index + 1}


def test_rates_hold_at_every_prefix():
    rates = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    mixture, counts = Mixture(rates), collections.Counter()
    for k in range(10**5):
        counts[mixture.locate(k)[0]] += 1
        if k % 997 == 0:
            assert all(abs(counts[name] - rate * (k + 1)) < len(rates) for name, rate in rates.items())
    assert all(abs(counts[name] / 10**5 - rate) < 1e-4 for name, rate in rates.items())


def test_locate_of_special_rates():
    assert [Mixture({"a": 2, "b": 2}).locate(k)[0] for k in range(4)] == ["b", "a", "b", "a"]
    for rates in ({"a": 0.0, "b": 1.0, "c": 2.0}, {"b": 1.0, "c": 2.0, "a": 0.0}):
        assert {Mixture(rates).locate(k)[0] for k in range(1000)} == {"b", "c"}
    for rates in ({"tiny": 1e-12, "big": 1.0}, {"big": 1.0, "tiny": 1e-12}):
        assert Mixture(rates).counts(2**33)["tiny"] == 2


COUNTS = {"cola": 8551, "sst2": 67349, "rte": 2490, "c4": 364_868_892}  # Examples; c4 as in Raffel et al. 2020.


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"maximum": 2**21},
        {"temperature": 2.0},
        {"scale": 3.0, "maximum": 10_000, "temperature": 4.0},
        {"scale": 0.5, "maximum": 2**16},
    ],
    ids=str,
)
def test_rates_are_those_of_seqio(settings):
    task = collections.namedtuple("Task", ["name", "cache_dir", "num_input_examples"])
    seqio = pytest.importorskip("seqio")
    theirs = {
        name: seqio.mixing_rate_num_examples(task(name, None, lambda split, count=count: count), **settings)
        for name, count in COUNTS.items()
    }
    assert mixtures.proportional(COUNTS, **settings) == pytest.approx(theirs, rel=1e-12)


def test_rates_written_out():
    # min(2 × 8,551, 10,000) and min(2 × 2,490, 10,000), then their square roots.
    rates = mixtures.proportional({"cola": 8551, "rte": 2490}, scale=2, maximum=10_000, temperature=2)
    assert rates == {"cola": 100.0, "rte": pytest.approx(70.5691150575094)}
    assert mixtures.equal(["a", "b"]) == {"a": 1.0, "b": 1.0}
    inner = {"a": 3.0, "b": 1.0}
    assert mixtures.nested((inner, 2.0), ({"b": 5.0}, 1.0)) == {"a": 1.5, "b": 1.5}
    assert mixtures.nested((mixtures.nested((inner, 9.0), ({"c": 1.0}, 3.0)), 1.0)) == {
        "a": 0.5625,
        "b": 0.1875,
        "c": 0.25,
    }


def test_a_nested_mixture_has_the_rates_of_seqios():
    seqio = pytest.importorskip("seqio")
    feature = {"targets": seqio.Feature(seqio.PassThroughVocabulary(0))}
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    tasks = {n: seqio.Task(n, source, feature, preprocessors=[]) for n in "abc"}
    inner = seqio.Mixture("inner", [(tasks["a"], 3.0), (tasks["b"], 1.0)])
    outer = seqio.Mixture("outer", [(inner, 2.0), (tasks["b"], 0.25), (tasks["c"], 1.0)])
    ours = mixtures.nested(({"a": 3.0, "b": 1.0}, 2.0), ({"b": 1.0}, 0.25), ({"c": 1.0}, 1.0))
    assert ours == pytest.approx({name: outer.get_rate(task) for name, task in tasks.items()}, rel=1e-12)
