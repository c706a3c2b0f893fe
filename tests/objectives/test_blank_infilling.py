import collections
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

IDS = {"pad": 1, "eos": 2, "cls": 3, "mask": 4, "sop": 5, "eop": 6, "smask": 7, "gmask": 8, "dblock": 9}
GLM = objectives.Special(**IDS, vocab_size=10_000)
MASKS = (GLM.mask, GLM.smask, GLM.gmask)


def make(tokens, seed=0, special=GLM, mask=None, sentences=None, **settings):
    example = {"tokens": np.asarray(tokens)}
    example |= {} if mask is None else {"mask": np.asarray(mask)}
    example |= {} if sentences is None else {"sentence_starts": np.asarray(sentences)}
    return objectives.get("blank_infilling", special, **settings)(example, np.random.default_rng(seed))


def part_b(result):
    """Returns (token, position, block position, target) of each token of part B, and the index after the last one."""
    first, num = int(result["prefix_lengths"]), int(result["target_weights"].sum())
    positions = result["target_positions"][:num]
    assert positions.tolist() == list(range(first, first + num))
    names = "tokens", "positions", "block_positions"
    return list(
        zip(*(result[name][positions].tolist() for name in names), result["targets"][:num].tolist(), strict=True)
    )


def fillings(result):
    """Returns (position of the mask, targets) of each span in order, and checks the invariants of spans."""
    spans = []
    for token, position, block_position, target in part_b(result):
        if block_position == 1:
            assert token == GLM.sop
            spans.append((position, []))
        else:
            assert token in (spans[-1][1][-1], GLM.dblock)
        assert (position, block_position) == (spans[-1][0], len(spans[-1][1]) + 1)
        spans[-1][1].append(target)
    return spans


def filled(result):
    """Returns the reconstructed text."""
    first = int(result["prefix_lengths"])
    assert result["positions"][:first].tolist() == list(range(first))
    assert not result["block_positions"][:first].any()
    text = [[token] for token in result["tokens"][:first].tolist()]
    for position, span in fillings(result):
        assert text[position] and text[position][0] in MASKS
        text[position] = span[:-1] if span[-1] == GLM.eop else span
    return [token for span in text for token in span]


def test_example_of_paper():
    """Figure 2 of Du et al. 2022: x3 and x5 x6 are removed from x1 … x6, and the latter is filled first."""
    cls, mask, sop, eop, pad = GLM.cls, GLM.mask, GLM.sop, GLM.eop, GLM.pad
    want = [cls, 101, 102, mask, 104, mask, sop, 105, 106, sop, 103]
    result = next(
        result
        for seed in range(10_000)
        if (result := make(range(101, 107), seed, rate=0.5))["tokens"][: len(want)].tolist() == want
    )
    # Seven tokens of text and room for three spans.
    assert result["tokens"][11:].tolist() == [pad, pad]
    assert result["positions"].tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5, 3, 3, 0, 0]
    assert result["block_positions"].tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 0, 0]
    assert result["prefix_lengths"].tolist() == 6
    assert result["targets"].tolist() == [105, 106, eop, 103, eop, 0, 0, 0, 0]
    assert result["target_positions"].tolist() == [6, 7, 8, 9, 10, 0, 0, 0, 0]
    assert result["target_weights"].tolist() == [1] * 5 + [0] * 4
    assert {result[name].dtype.name for name in result} == {"int32", "float32"}


@pytest.mark.parametrize(
    ("end_share", "want"),
    [
        (1.0, ([3, 101, 102, 8, 5, 103, 104, 105], [3] * 5, [0, 1, 2, 3, 4], [103, 104, 105, 106])),
        (0.0, ([3, 8, 105, 106, 5, 101, 102, 103, 104], [1] * 5, [1, 2, 3, 4, 5], [101, 102, 103, 104, 6])),
    ],
)
def test_long_blank_is_at_end_or_inside(end_share, want):
    tokens, positions, block_positions, targets = want
    settings = {"document_rate": 1.0, "document_end_share": end_share}
    result = next(
        result
        for seed in range(10_000)
        if (result := make(range(101, 107), seed, **settings))["tokens"][: len(tokens)].tolist() == tokens
    )
    last = slice(len(tokens) - 5, len(tokens))
    assert result["positions"][last].tolist() == positions
    assert result["block_positions"][last].tolist() == block_positions
    assert result["targets"][: len(targets)].tolist() == targets
    assert result["target_weights"].sum() == len(targets)


KINDS = {
    "short": {},
    "hidden": {"block_mask_rate": 0.5},
    "sentences": {"sentence_rate": 1.0},
    "long": {"document_rate": 1.0, "document_end_share": 0.5},
    "all": {"sentence_rate": 0.3, "document_rate": 0.3, "block_mask_rate": 0.1},
}


@st.composite
def rows(draw):
    """Returns a padded row of documents, each but possibly the last followed by eos, and the starts of sentences."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    tokens, sentences = [], []
    for number, size in enumerate(sizes):
        begins = draw(st.sets(st.integers(0, size - 1), max_size=5)) if size else set()
        sentences += [len(tokens) + begin for begin in sorted(begins)]
        tokens += [100 + number] * size
        tokens += [GLM.eos] if number < len(sizes) - 1 or draw(st.booleans()) else []
    tokens = [token if token == GLM.eos else 100 + i for i, token in enumerate(tokens)]
    padding = draw(st.integers(0, 10))
    return tokens, sentences, padding


@hypothesis_settings(deadline=None)
@given(rows(), st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.floats(0.05, 0.6), st.booleans())
def test_filled_part_a_is_the_text(row, kind, seed, rate, has_cls):
    tokens, sentences, padding = row
    special = GLM if has_cls else objectives.Special(**IDS | {"cls": None})
    mask = [1] * len(tokens) + [0] * padding
    result = make([*tokens, *[GLM.pad] * padding], seed, special, mask, sentences, rate=rate, **KINDS[kind])
    text = [GLM.cls] * has_cls + tokens
    assert filled(result) == text
    used = int(result["prefix_lengths"] + result["target_weights"].sum())
    assert set(result["tokens"][used:].tolist()) <= {GLM.pad}
    for name in ("positions", "block_positions"):
        assert not result[name][used:].any()
    whole = make([100] * (len(tokens) + padding), rate=rate, **KINDS[kind])
    assert {name: value.shape for name, value in result.items()} == {name: value.shape for name, value in whole.items()}
    part_a = result["tokens"][: int(result["prefix_lengths"])].tolist()
    blanks = [token for token in part_a if token in MASKS]
    if set(blanks) == {GLM.gmask}:
        assert len(blanks) == 1
        return
    spans = [span for _, span in fillings(result)]
    assert all(span[-1] == GLM.eop and GLM.eos not in span and GLM.cls not in span for span in spans)
    if any(token != GLM.eos for token in tokens):
        assert spans
    if set(blanks) == {GLM.mask}:
        assert (GLM.mask, GLM.mask) not in itertools.pairwise(part_a)


@hypothesis_settings(deadline=None)
@given(rows(), st.integers(0, 99), st.floats(0.05, 0.9))
def test_whole_sentences_are_removed_up_to_budget(row, seed, rate):
    tokens, sentences, _ = row
    begins = sorted({*sentences, 0, *(i + 1 for i, token in enumerate(tokens) if token == GLM.eos)} - {len(tokens)})
    whole = []
    for begin, following in itertools.pairwise([*begins, len(tokens)]):
        sentence = [token for token in tokens[begin:following] if token != GLM.eos]
        whole += [sentence] if sentence else []
    result = make(tokens, seed, sentences=sentences, sentence_rate=1.0, rate=rate)
    spans = [span[:-1] for _, span in fillings(result)]
    assert all(span in whole for span in spans)
    budget = max(1, int((len(tokens) + 1) * rate))
    total = sum(map(len, spans))
    slots = objectives.BlankInfilling(rate=rate)._spans(len(tokens) + 1)
    assert total >= budget or len(spans) in (len(whole), slots)
    if spans and len(spans) < slots:
        assert total - max(map(len, spans)) < budget
    rng = np.random.default_rng(seed)
    rng.random(2)  # Keeps the length of the text and selects sentences as blanks.
    order = rng.permutation(len(whole)).tolist()
    ends = np.cumsum([len(whole[i]) for i in order])
    chosen = sorted(order[: min(slots, 1 + sum(ends < budget))])
    assert spans == [whole[chosen[i]] for i in rng.permutation(len(chosen))]


@hypothesis_settings(deadline=None)
@given(st.integers(3, 700), st.sampled_from([(0.15, 3.0), (0.3, 3.0), (0.15, 8.0)]), st.sampled_from([0.0, 0.4]))
def test_rows_have_requested_lengths(num_tokens, settings, sentence_rate):
    rate, mean = settings
    objective = objectives.get("blank_infilling", GLM, rate=rate, mean_span_length=mean, sentence_rate=sentence_rate)
    result = objective({"tokens": np.full(num_tokens - 1, 100)}, np.random.default_rng(0))
    length = len(result["tokens"])
    assert objective.settings.text_length(length) == num_tokens
    assert (objective.input_length(length), objective.stride(length)) == (num_tokens - 1, num_tokens - 1)
    assert objective.settings.target_length(length) == len(result["targets"])


def test_published_lengths():
    short, mixed = objectives.BlankInfilling(), objectives.BlankInfilling(sentence_rate=0.3, document_rate=0.2)
    assert [settings.text_length(592) for settings in (short, mixed)] == [512, 512]
    assert objectives.get("blank_infilling", GLM).separator == GLM.eos
    # At least 76 tokens are removed, the last span may add 38; each of up to 40 spans has an eop.
    assert (short.target_length(592), mixed.target_length(592)) == (76 + 38 + 40, 511 + 40)


def truncated_poisson(mean, most=39):
    weights = [mean**k / math.factorial(k) for k in range(1, most + 1)]
    return np.array(weights) / sum(weights)


def expected_draws(probabilities, budget):
    """Returns the mean number of lengths that are drawn until they add up to a budget."""
    totals = [0.0]
    for total in range(1, budget + 1):
        below = min(total - 1, len(probabilities))
        totals.append(1 + sum(probabilities[k - 1] * totals[total - k] for k in range(1, below + 1)))
    return totals[budget]


def near(draws, want):
    """Whether the mean of draws is within four standard errors of the expected value."""
    draws = np.asarray(draws, float)
    return abs(draws.mean() - want) < 4 * draws.std() / len(draws) ** 0.5


def test_short_spans_follow_their_distribution():
    """400,000 tokens. By Wald's equation, the mean of a draw is multiplied by the number of draws."""
    lengths = []
    for seed in range(800):
        result = make(np.full(511, 100), seed)
        blocks = result["block_positions"][result["target_positions"][result["target_weights"] > 0]]
        lengths.append(np.diff(np.append(np.flatnonzero(blocks == 1), len(blocks))) - 1)
    probabilities = truncated_poisson(3.0)
    draws = expected_draws(probabilities, 76)
    assert near([len(row) for row in lengths], draws)
    assert near([row.sum() for row in lengths], draws * (probabilities @ np.arange(1, 40)))
    for length in range(1, 9):
        assert near([(row == length).sum() for row in lengths], draws * probabilities[length - 1]), length
    assert min(row.sum() for row in lengths) >= 76


def test_placements_of_short_spans_are_equally_likely():
    """Spans of one and two of seven tokens with a gap: three free clean tokens in three positions, in two orders."""
    counts = collections.Counter()
    for seed in range(2000):
        result = make(range(101, 108), seed, rate=0.4, mean_span_length=1.0)
        spans = sorted(span[:-1] for _, span in fillings(result))
        if sorted(map(len, spans)) == [1, 2]:
            counts[str(spans)] += 1
    total, share = sum(counts.values()), 1 / 20
    assert len(counts) == 20 and total > 500
    assert all(abs(n - total * share) < 4 * (total * share * (1 - share)) ** 0.5 for n in counts.values())


def test_blanks_are_spread_over_documents_in_any_order():
    """Two documents of 100 and 300 tokens."""
    tokens = np.array([100] * 100 + [GLM.eos] + [200] * 300)
    shares, ranks = [], []
    for seed in range(1000):
        spans = fillings(make(tokens, seed))
        cut = [sum(span.count(token) for _, span in spans) for token in (100, 200)]
        shares.append(cut[0] - sum(cut) * 0.25)
        starts = [position for position, _ in spans]
        ranks.append((sorted(starts).index(starts[0]) + 0.5) / len(starts))
    # Spans fill the remaining space, so the shares are slightly more even than by chance.
    assert abs(np.mean(shares)) < 0.02 * 60 and near(ranks, 0.5)
    assert abs(np.std(ranks) - 12**-0.5) < 0.03


def test_kinds_of_blanks_have_their_rates():
    """Over 400,000 tokens."""
    settings = {"sentence_rate": 0.3, "document_rate": 0.2, "block_mask_rate": 0.1, "short_probability": 0.02}
    kinds, shares, at_end, hidden, short = [], [], [], [], []
    for seed in range(800):
        result = make(np.full(511, 100), seed, sentences=range(0, 511, 5), **settings)
        at, part_a = (
            result["target_positions"][result["target_weights"] > 0],
            result["tokens"][: result["prefix_lengths"]],
        )
        blocks, inputs, targets = result["block_positions"][at], result["tokens"][at], result["targets"][: len(at)]
        text = len(part_a) - np.count_nonzero(blocks == 1) + np.count_nonzero(targets != GLM.eop)
        short.append(text < 512)
        kinds.append(part_a[np.isin(part_a, MASKS)][0])
        if kinds[-1] == GLM.mask:
            hidden += (inputs[blocks > 1] == GLM.dblock).tolist()
        else:
            assert GLM.dblock not in result["tokens"]
        if kinds[-1] == GLM.gmask and not short[-1]:
            at_end.append(targets[-1] != GLM.eop)
            shares.append(len(at) - (not at_end[-1]))
    for kind, rate in ((GLM.mask, 0.5), (GLM.smask, 0.3), (GLM.gmask, 0.2)):
        assert near(np.array(kinds) == kind, rate)
    assert near(short, 0.02) and near(hidden, 0.1) and near(at_end, 0.5)
    # Uniform from 512 / 4 to 510.
    assert min(shares) >= 128 and 480 < max(shares) <= 510 and near(shares, (128 + 510) / 2)


def test_shorter_text_is_a_span_with_moved_sentences():
    for seed in range(50):
        tokens = np.arange(100, 355)
        result = make(tokens, seed, sentences=range(0, 255, 5), short_probability=1.0, sentence_rate=1.0)
        text = filled(result)
        assert text == [GLM.cls, *range(text[1], text[1] + len(text) - 1)]
        assert 32 <= len(text) < 256
        assert all(span[0] in (text[1], *range(100, 355, 5)) for _, span in fillings(result))


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match=r"cannot make a row of length 16: set config.data.length to 18"):
        objectives.get("blank_infilling", GLM).input_length(16)
    assert objectives.BlankInfilling().input_length(18) > 0
    for name, settings in (("sop", {}), ("smask", {"sentence_rate": 0.1}), ("dblock", {"block_mask_rate": 0.1})):
        with pytest.raises(UserError, match=rf"needs an id for {name}: set config.vocabulary.{name}"):
            make(range(100, 120), special=objectives.Special(**IDS | {name: None}), **settings)
    with pytest.raises(UserError, match=r"attend_across_documents to True"):
        objectives.get("blank_infilling", GLM)({"tokens": np.arange(9), "segment_ids": np.ones(9)}, None)
    for wrong in ({"rate": 1.0}, {"sentence_rate": -0.1}, {"mean_span_length": 0.0}, {"max_span_length": 0}):
        with pytest.raises(UserError, match=rf"config.objective.{next(iter(wrong))} is .*: must be"):
            objectives.get("blank_infilling", GLM, **wrong)
    with pytest.raises(UserError, match="their sum must be at most 1"):
        objectives.get("blank_infilling", GLM, sentence_rate=0.6, document_rate=0.6)
