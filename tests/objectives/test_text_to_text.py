"""T5's objectives other than span corruption, and its language models: worked examples, properties, closed forms."""

import itertools
import math
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.common.errors import UserError

T5 = objectives.Special(pad=0, eos=1, unk=2, sentinels=tuple(range(32_099, 31_999, -1)), vocab_size=32_100)
S1, S2, S3 = T5.sentinels[:3]
KINDS = ("replace_spans", "drop_tokens", "mask_tokens", "deshuffling", "prefix_lm")
TEXT = [10, 11, 12, 13, 14, 15]


class Draws(np.random.Generator):
    """A random generator whose first draws select noise positions, followed by given draws."""

    def __init__(self, size, noise, *draws):
        super().__init__(np.random.PCG64(0))
        self._draws = [np.where(np.isin(np.arange(size), noise), 0.0, 0.999), *draws]

    def random(self, size):
        drawn = self._draws.pop(0)
        assert len(drawn) == size
        return drawn

    def integers(self, high, size):
        drawn = self._draws.pop(0)
        assert (high, len(drawn)) == (32_100 - 3, size)
        return drawn


def make(kind, rng, tokens=TEXT, special=T5, padding=0, **settings):
    example = {"tokens": np.pad(np.array(tokens), (0, padding))}
    if padding:
        example["mask"] = np.pad(np.ones(len(tokens), np.int32), (0, padding))
    return objectives.get(kind, special, **settings)(example, rng)


def texts(result):
    """Returns inputs and targets up to eos, and checks the surrounding tokens."""
    parts = []
    for row, real in (("tokens", "mask"), ("targets", "target_weights")):
        end = result[row].tolist().index(1)
        assert result[real].tolist() == [1] * (end + 1) + [0] * (len(result[row]) - end - 1)
        assert not result[row][end + 1 :].any()
        parts.append(result[row][:end].tolist())
    assert result["decoder_tokens"].tolist() == [0, *result["targets"][:-1]]
    return parts


@pytest.mark.parametrize(
    "kind, noise, inputs, targets",
    [
        ("replace_spans", [1, 2, 4], [10, S1, 13, S2, 15], [S1, 11, 12, S2, 14, S3]),
        ("replace_spans", [0, 5], [S1, 11, 12, 13, 14, S2], [10, S1, 15]),
        ("replace_spans", [], TEXT, [S1]),
        ("drop_tokens", [1, 2, 4], [10, 13, 15], [11, 12, 14]),
        ("mask_tokens", [1, 2, 4], [10, S1, S1, 13, S1, 15], TEXT),
    ],
)
def test_worked_examples(kind, noise, inputs, targets):
    settings = {"random_share": 0.0} if kind == "mask_tokens" else {}
    result = make(kind, Draws(6, noise), noise_density=0.5, **settings)
    assert texts(result) == [inputs, targets]
    assert {k: v.dtype.name for k, v in result.items()} == dict.fromkeys(
        ("tokens", "mask", "decoder_tokens", "targets"), "int32"
    ) | {"target_weights": "float32"}


def test_some_noise_becomes_random_tokens():
    draws = Draws(6, [1, 2, 4], np.array([0.5, 0.05, 0.2]), np.array([0]))
    assert texts(make("mask_tokens", draws, noise_density=0.5)) == [[10, S1, 3, 13, S1, 15], TEXT]


def test_prefixes():
    assert texts(make("prefix_lm", types.SimpleNamespace(integers=lambda low, high: 4))) == [TEXT[:4], TEXT[4:]]
    rng = np.random.default_rng(0)
    draws = 4000
    parts = [texts(make("prefix_lm", rng)) for _ in range(draws)]
    assert all(a + b == TEXT for a, b in parts)
    counts = np.bincount([len(a) for a, _ in parts], minlength=6)
    assert counts[0] == 0 and len(counts) == 6
    assert (abs(counts[1:] - draws / 5) < 4 * np.sqrt(draws * 4 / 25)).all()
    assert texts(make("prefix_lm", rng, tokens=[10])) == [[], [10]]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_alone_has_neither_inputs_nor_targets(kind):
    assert texts(make(kind, np.random.default_rng(0), tokens=[], padding=9)) == [[], []]


@pytest.mark.parametrize(
    "kind, num_tokens, target_length",
    [
        ("replace_spans", 511, 192),
        ("drop_tokens", 511, 106),
        ("mask_tokens", 511, 512),
        ("deshuffling", 511, 512),
        ("prefix_lm", 511, 512),
        ("full_lm", 512, 512),
    ],
)
def test_lengths_of_a_row_of_512(kind, num_tokens, target_length):
    """The sizes of T5, except for 104 slots if tokens are dropped."""
    objective = objectives.get(kind, T5)
    assert (objective.input_length(512), objective.stride(512)) == (num_tokens, num_tokens)
    assert objective.settings.target_length(512) == target_length
    result = objective({"tokens": np.arange(100, 100 + num_tokens)}, np.random.default_rng(0))
    assert len(result["tokens"]) == (1 if kind == "full_lm" else 512)
    assert len(result["targets"]) == len(result["decoder_tokens"]) == len(result["target_weights"]) == target_length


@hypothesis_settings(deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 200), st.integers(0, 40), st.floats(0.05, 0.6), st.integers(0, 99))
def test_inputs_and_targets_reconstruct_the_text(kind, num_tokens, padding, density, seed):
    text = list(range(100, 100 + num_tokens))
    settings = {"noise_density": density} if kind in KINDS[:3] else {}
    special = objectives.Special(pad=0, eos=1, sentinels=tuple(range(10**6, 10**6 - 300, -1)), vocab_size=10**6 + 1)
    result = make(kind, np.random.default_rng(seed), text, special, padding, **settings)
    objective = objectives.get(kind, special, **settings)
    length, target_length = len(result["tokens"]), len(result["targets"])
    assert objective.input_length(length) == num_tokens + padding
    assert objective.settings.target_length(length) == target_length
    inputs, targets = texts(result)
    if kind == "prefix_lm":
        assert inputs + targets == text
    elif kind == "deshuffling":
        assert sorted(inputs) == targets == text
    elif kind == "mask_tokens":
        assert targets == text and len(inputs) == num_tokens
    elif len(targets) < target_length - 1:  # Longer targets are truncated.
        taken = {i for i in inputs if i < 10**5}
        assert sorted(taken | {t for t in targets if t < 10**5}) == text
        if kind == "drop_tokens":
            assert [t for t in text if t not in taken] == targets
        else:
            seams = [t for t in inputs if t > 10**5], [t for t in targets if t > 10**5]
            assert all(sentinels == list(special.sentinels[: len(sentinels)]) for sentinels in seams)
            assert abs(len(seams[0]) - len(seams[1])) <= 1
            assert not any(a > 10**5 and b > 10**5 for row in (inputs, targets) for a, b in itertools.pairwise(row))


def test_shares_equal_closed_forms():
    """Over 1e6 tokens, within four standard errors: noise, its spans, random tokens."""
    rng, rows, num = np.random.default_rng(0), 2000, 511
    tokens = np.full(num, 5)
    lengths, stretches, replaced, random = [], 0, 0, []
    for _ in range(rows):
        targets = make("replace_spans", rng, tokens)["targets"]
        lengths.append(np.count_nonzero(targets) - 1)
        stretches += np.count_nonzero(targets >= 32_000)
        inputs = make("mask_tokens", rng, tokens)["tokens"][:num]
        replaced += np.count_nonzero(inputs != 5)
        random.append(inputs[(inputs != 5) & (inputs != S1)])
    d, total = 0.15, rows * num
    assert abs(replaced - total * d) < 4 * math.sqrt(total * d * (1 - d)) + 5
    random = np.concatenate(random)
    share = 0.1
    assert abs(len(random) - replaced * share) < 4 * math.sqrt(replaced * share * (1 - share))
    assert (
        random.min() > 2 and random.max() < 32_100 and abs(random.mean() - 16_051) < 4 * 9267 / math.sqrt(len(random))
    )
    # A clean span begins after noise, or at the start of the text.
    begins = d * (1 - d)
    expected = rows * ((num - 1) * begins + (1 - d))
    assert abs(stretches - expected) < 4 * math.sqrt(rows * num * begins * (1 - 3 * begins) + rows * d)
    # There are slots for 3.5 standard errors above the mean, so two rows in 10,000 fill them.
    mean, deviation = num * d * (2 - d), np.std(lengths)
    assert abs(np.mean(lengths) - mean) < 4 * deviation / math.sqrt(rows) + 1
    assert abs((191 - mean) / deviation - 3.5) < 0.2
    assert np.mean(np.array(lengths) >= 191) < 0.003


def test_tokens_are_dropped_independently():
    """Numbers of dropped tokens per row and of drops per position are binomial."""
    rng, rows, num = np.random.default_rng(0), 2000, 511
    text = np.arange(100, 100 + num)
    is_dropped = np.array([~np.isin(text, make("drop_tokens", rng, text)["tokens"]) for _ in range(rows)])
    variance = 0.15 * 0.85
    assert abs(is_dropped.sum(1).mean() - num * 0.15) < 4 * math.sqrt(num * variance / rows)
    assert (abs(is_dropped.sum(0) - rows * 0.15) < 4 * math.sqrt(rows * variance)).all()


def test_permutations_are_uniform():
    rng, draws = np.random.default_rng(0), 3000
    orders = [tuple(texts(make("deshuffling", rng, [10, 11, 12]))[0]) for _ in range(draws)]
    counts = np.array([orders.count(order) for order in set(orders)])
    assert len(counts) == 6 and (abs(counts - draws / 6) < 4 * np.sqrt(draws * 5 / 36)).all()


def test_text_beyond_last_sentinel_stays_clean():
    few = objectives.Special(pad=0, eos=1, sentinels=(99, 98), vocab_size=100)
    result = make("replace_spans", Draws(6, [0, 2, 4]), special=few, noise_density=0.01)
    assert texts(result) == [[99, 11, 12, 13, 14, 15], [10, 99]]


def test_full_lm_predicts_the_whole_text():
    example = {"tokens": np.array([10, 11, 1, 12, 0]), "mask": np.array([1, 1, 1, 1, 0])}
    result = objectives.get("full_lm", T5)(example, np.random.default_rng(0))
    assert {k: v.tolist() for k, v in result.items()} == {
        "tokens": [1],
        "mask": [1],
        "decoder_tokens": [0, 10, 11, 1, 12],
        "targets": [10, 11, 1, 12, 0],
        "target_weights": [1, 1, 1, 1, 0],
    }
    assert objectives.get("full_lm", T5).separator == 1


def test_decoder_prefix_is_not_predicted():
    objective = objectives.get("decoder_prefix_lm", T5)
    assert (objective.input_length(8), objective.stride(8), objective.separator) == (9, 8, 1)
    rng, draws, sizes = np.random.default_rng(0), 3000, []
    example = {"tokens": np.array([*TEXT, 0, 0, 0]), "mask": np.array([1] * 6 + [0] * 3)}
    for _ in range(draws):
        result = objective(example, rng)
        length = int(result["prefix_lengths"])
        assert (result["prefix_lengths"].dtype, result["prefix_lengths"].shape) == (np.int32, ())
        predicted = result["targets"][result["target_weights"] > 0].tolist()
        assert result["tokens"][:length].tolist() + predicted == TEXT
        sizes.append(length)
    counts = np.bincount(sizes, minlength=6)
    assert counts[0] == 0 and (abs(counts[1:] - draws / 5) < 4 * np.sqrt(draws * 4 / 25)).all()
    result = objective({"tokens": np.array([5, 0]), "mask": np.array([1, 0])}, rng)
    assert (result["prefix_lengths"], result["target_weights"].tolist()) == (0, [0])


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("noise", [objectives.SpanCorruption(), objectives.ReplaceSpans(), objectives.PrefixLM()])
@given(size=st.integers(2, 40), padding=st.integers(0, 5), seed=st.integers(0, 99))
def test_decoder_continues_inputs_with_targets(noise, prefix, size, padding, seed):
    text = np.random.default_rng(seed).integers(10, 99, size)
    example = {"tokens": np.pad(text, (0, padding)), "mask": np.arange(size + padding) < size}
    apart = objectives.BoundObjective(noise, T5)(example, np.random.default_rng(seed))
    objective = objectives.get("decoder_text_to_text", T5, noise=noise, prefix=prefix)
    result = objective(example, np.random.default_rng(seed))
    inputs = apart["tokens"][apart["mask"] > 0].tolist()
    targets = apart["targets"][apart["target_weights"] > 0].tolist()
    number = len(inputs) + len(targets) - 1
    length = sum(noise.lengths(size + padding)) - 1
    assert objective.input_length(length) == size + padding
    assert result["tokens"].tolist() == (inputs + targets)[:-1] + [0] * (length - number)
    assert result["targets"].tolist() == (inputs + targets)[1:] + [0] * (length - number)
    assert result["targets"][result["target_weights"] > 0].tolist() == targets
    assert result["tokens"][result["target_weights"] > 0].tolist() == [1, *targets[:-1]]
    assert [int(result["prefix_lengths"])] == [len(inputs)] if prefix else "prefix_lengths" not in result
    assert objective.settings.has_prefix == prefix and objective.separator is None


def test_decoder_row_has_length_of_inputs_and_targets():
    """T5's lengths 512 and 114. The last eos is only a target."""
    objective = objectives.DecoderTextToText()
    assert objective.input_length(512 + 114 - 1) == objectives.SpanCorruption().input_length(512) == 568
    with pytest.raises(UserError, match=r"cannot make a row of length 11: set config.data.length to 10 or 13$"):
        objectives.DecoderTextToText(objectives.SpanCorruption(0.5, 1.0)).input_length(11)
    with pytest.raises(UserError, match=r"cannot make a row of length 1: set config.data.length to 3$"):
        objectives.DecoderTextToText(objectives.PrefixLM()).input_length(1)
    tree = {"kind": "decoder_text_to_text", "noise": {"kind": "causal"}}
    with pytest.raises(UserError, match=r"objective.noise.kind is 'causal': choose from: deshuffling"):
        trees.parse(objectives.Objective, tree, "objective")
    parsed = trees.parse(objectives.Objective, tree | {"noise": {"kind": "prefix_lm"}, "prefix": True}, "objective")
    assert parsed == objectives.DecoderTextToText(objectives.PrefixLM(), prefix=True)


def test_invalid_settings_are_rejected():
    rng, bare = np.random.default_rng(0), objectives.Special(vocab_size=9)
    for kind in (*KINDS, "full_lm"):
        name = kind.replace("_", " ")
        with pytest.raises(UserError, match=rf"{name} .*eos.*: set config.vocabulary.eos"):
            make(kind, rng, special=bare)
    for kind in (*KINDS, "full_lm", "decoder_prefix_lm", "decoder_text_to_text"):
        with pytest.raises(UserError, match="attend_across_documents to True"):
            objectives.get(kind, T5)({"tokens": np.arange(9), "segment_ids": np.ones(9)}, rng)
    with pytest.raises(UserError, match=r"replace spans needs 89 sentinels per row, but the vocabulary has 1: set"):
        make("replace_spans", rng, range(511), objectives.Special(eos=1, sentinels=(9,)))
    with pytest.raises(UserError, match=r"mask tokens needs 1 sentinels per row"):
        make("mask_tokens", rng, special=objectives.Special(eos=1))
    for kind in KINDS[:3]:
        with pytest.raises(UserError, match=r"config.objective.noise_density is 1.5: must be"):
            objectives.get(kind, T5, noise_density=1.5)
    with pytest.raises(UserError, match=r"config.objective.random_share is 2: must be"):
        objectives.get("mask_tokens", T5, random_share=2)
