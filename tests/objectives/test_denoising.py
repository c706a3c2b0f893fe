"""BART's noises: the figure of the paper, fairseq's spans, closed forms, and properties."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import models, objectives
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.objectives import denoising
from plm_jax.objectives.denoising import NoNoise, TextInfilling, TokenDeletion, TokenMasking
from tests.support.random_models import random_params

# Text ids are above the vocabulary, so that random ids differ from them.
MASK, TEXT = 4, 10_000
BART = objectives.Special(pad=1, bos=0, eos=2, mask=MASK, vocab_size=1000)


def apply(num_tokens, rng, sentence_starts=(), padding=0, special=BART, **settings):
    """Applies noise, by default none, to the tokens TEXT, TEXT + 1, …"""
    tokens = np.pad(TEXT + np.arange(num_tokens), (0, padding))
    example = {"tokens": tokens, "sentence_starts": np.array(sentence_starts, np.int64)}
    example |= {"mask": tokens > 0} if padding else {}
    settings = {"permute_sentences": 0.0, "noise": NoNoise(), **settings}
    return objectives.get("denoising", special, **settings)(example, rng)


def text_of(result):
    """Returns the tokens that the encoder reads between bos and eos."""
    return result["tokens"][1 : result["mask"].sum() - 1]


# Figure 2 of Lewis et al. 2020; a share of 0.2 is two tokens of seven.
FIGURE = "A B C . D E ."
ONE_BY_ONE = {
    "A _ C . _ E .": {"noise": TokenMasking(0.2)},
    "A C . E .": {"noise": TokenDeletion(0.2)},
    "A _ . D _ E .": {"noise": TextInfilling(0.2)},
    "D E . A B C .": {"permute_sentences": 1.0},
    "C . D E . A B": {"rotate": 1.0},
    "A B _ C . D _ E .": {"insert": 0.2},
}
TOGETHER = {
    "D _ . A B _ .": {"permute_sentences": 1.0, "noise": TokenMasking(0.2)},
    "_ . D E . A": {"noise": TextInfilling(0.2), "rotate": 1.0},
    ". A B _ C . D E": {"permute_sentences": 1.0, "insert": 0.1, "rotate": 1.0},
}


def figure(seed, **settings):
    """Returns the text of the figure with noise, and the input and target of the decoder, as letters."""
    names = [*FIGURE.split()[:-1], "."]
    ids = {name: TEXT + i for i, name in enumerate(names)}
    letters = {i: name for name, i in ids.items()} | {0: "<s>", 2: "</s>", MASK: "_", 1: "<pad>"}
    example = {"tokens": np.array([ids[name] for name in FIGURE.split()]), "sentence_starts": np.array([0, 4])}
    settings = {"permute_sentences": 0.0, "noise": NoNoise(), **settings}
    result = objectives.get("denoising", BART, **settings)(example, np.random.default_rng(seed))
    texts = {key: " ".join(letters[i] for i in result[key]) for key in ("tokens", "decoder_tokens", "targets")}
    return texts | {"tokens": texts["tokens"].replace(" <pad>", "")}


@pytest.mark.parametrize("expected", [*ONE_BY_ONE, *TOGETHER])
def test_figure_of_paper(expected):
    settings = (ONE_BY_ONE | TOGETHER)[expected]
    result = (figure(seed, **settings) for seed in range(20_000))
    match = next(texts for texts in result if texts["tokens"] == f"<s> {expected} </s>")
    assert match["targets"] == "<s> A B C . D E . </s>"
    assert match["decoder_tokens"] == "</s> <s> A B C . D E ."


def test_each_noise_gives_exactly_its_rows():
    text, pairs = FIGURE.split(), list(itertools.combinations(range(7), 2))
    expected = {
        "A _ C . _ E .": {" ".join("_" if i in pair else t for i, t in enumerate(text)) for pair in pairs},
        "A C . E .": {" ".join(t for i, t in enumerate(text) if i not in pair) for pair in pairs},
        "D E . A B C .": {FIGURE, "D E . A B C ."},
        "C . D E . A B": {" ".join(text[i:] + text[:i]) for i in range(7)},
    }
    for name, rows in expected.items():
        outputs = {figure(seed, **ONE_BY_ONE[name])["tokens"] for seed in range(250)}
        assert {row.removeprefix("<s> ").removesuffix(" </s>") for row in outputs} == rows


def test_noises_are_applied_in_order_of_fairseq():
    together = {"permute_sentences": 1.0, "noise": TextInfilling(), "insert": 0.1, "rotate": 1.0, "random_share": 0.2}
    for seed in range(20):
        rng, text = np.random.default_rng(seed), TEXT + np.arange(50)
        for number, name in enumerate(("permute_sentences", "noise", "insert", "rotate")):
            alone = {"permute_sentences": 0.0, "noise": NoNoise(), name: together[name], "random_share": 0.2}
            example = {"tokens": text, "sentence_starts": np.array([0, 10, 30])[: 3 if number == 0 else 0]}
            text = text_of(objectives.get("denoising", BART, **alone)(example, rng))
        np.testing.assert_array_equal(text_of(apply(50, np.random.default_rng(seed), [0, 10, 30], **together)), text)


def walk(num_tokens, starts, first_words, lengths):
    """Reimplements fairseq's `add_whole_word_mask`, step by step until each span ends or the text ends."""
    goes_on = np.zeros(num_tokens, bool)
    for word, length in zip(first_words, lengths, strict=True):
        at, left = starts[word] + 1, length
        while at < num_tokens:
            left -= at in starts
            if left == 0:
                break
            goes_on[at] = True
            at += 1
    return goes_on


@hypothesis_settings(deadline=None)
@given(st.data(), st.integers(1, 40))
def test_spans_equal_fairseq(data, num_tokens):
    starts = np.array(sorted(data.draw(st.sets(st.integers(0, num_tokens - 1), min_size=1))))
    words = data.draw(st.lists(st.integers(0, len(starts) - 1), min_size=1, unique=True))
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=len(words), max_size=len(words))))
    got = denoising._continues_span(num_tokens, starts, np.array(words), lengths)
    np.testing.assert_array_equal(got, walk(num_tokens, starts, words, lengths))


NOISES = st.one_of(
    st.builds(TextInfilling, st.floats(0, 1), st.floats(0.1, 9)),
    st.builds(TokenMasking, st.floats(0, 1)),
    st.builds(TokenDeletion, st.floats(0, 1)),
    st.just(NoNoise()),
)
SHARE = st.floats(0, 1)


@hypothesis_settings(deadline=None)
@given(st.integers(1, 120), st.integers(0, 30), NOISES, SHARE, SHARE, SHARE, SHARE, st.data())
def test_targets_are_the_text_and_inputs_derive_from_it(
    num_tokens, padding, noise, insert, permute, rotate, random, data
):
    starts = sorted(data.draw(st.sets(st.integers(0, num_tokens + padding - 1))))
    settings = {"noise": noise, "insert": insert, "permute_sentences": permute, "rotate": rotate}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    result = apply(num_tokens, rng, starts, padding, random_share=random, **settings)
    total = num_tokens + padding
    length = total + math.ceil(insert * total) + 2
    assert {key: (value.shape, value.dtype.name) for key, value in result.items()} == {
        "tokens": ((length,), "int32"),
        "mask": ((length,), "int32"),
        "decoder_tokens": ((total + 2,), "int32"),
        "targets": ((total + 2,), "int32"),
        "target_weights": ((total + 2,), "float32"),
    }
    text = list(range(TEXT, TEXT + num_tokens))
    assert result["targets"].tolist() == [0, *text, 2, *[1] * padding]
    assert result["target_weights"].tolist() == [1] * (num_tokens + 2) + [0] * padding
    assert result["decoder_tokens"].tolist() == [2, *result["targets"][:-1]]
    row, size = result["tokens"], result["mask"].sum()
    assert result["mask"].tolist() == [1] * size + [0] * (length - size)
    assert row[0] == 0 and row[size - 1] == 2 and np.all(row[size:] == 1)
    remaining = [token for token in text_of(result).tolist() if token >= TEXT]
    assert len(remaining) == len(set(remaining)) and set(remaining) <= set(text)
    if not permute and not rotate:
        assert remaining == sorted(remaining)
    removed = num_tokens - len(remaining)
    share = math.ceil(getattr(noise, "rate", 0.0) * num_tokens)
    if not isinstance(noise, TextInfilling):
        assert removed == share
    elif size < length:  # Nothing was truncated.
        assert removed <= share
    if not random:
        assert np.all(np.isin(text_of(result), [*remaining, MASK]))


@hypothesis_settings(deadline=None)
@given(st.integers(4, 400), SHARE)
def test_rows_are_as_long_as_possible(length, insert):
    objective = objectives.get("denoising", BART, insert=insert)
    size = objective.input_length(length)
    assert size + math.ceil(insert * size) + 2 <= length < size + 1 + math.ceil(insert * (size + 1)) + 2
    assert objective.stride(length) == size
    assert objective.settings.target_length(length) == size + 2
    result = objective({"tokens": np.full(size, TEXT)}, np.random.default_rng(0))
    assert len(result["tokens"]) == objective.settings.row_length(length) in (length, length - 1)
    assert len(result["targets"]) == size + 2


def test_rows_without_insertion_have_full_length():
    result = objectives.get("denoising", BART)({"tokens": np.full(510, TEXT)}, np.random.default_rng(0))
    assert len(result["tokens"]) == len(result["targets"]) == 512


def test_whole_words_are_noised_and_move_with_sentences():
    starts = {"word_starts": np.array([0, 2, 3, 6, 7]), "sentence_starts": np.array([0, 3])}
    example = {"tokens": TEXT + np.arange(9), **starts}
    objective = objectives.get("denoising", BART, noise=TextInfilling(0.2, 50.0))  # One word of five.
    sentences, wholes = [["aa", "b"], ["ccc", "d", "ee"]], "aabcccdee"
    rows = set()
    for seed in range(500):
        row = text_of(objective(example, np.random.default_rng(seed))).tolist()
        rows.add("".join("_" if token == MASK else wholes[token - TEXT] for token in row))
    orders = [[*one, *other] for one, other in itertools.permutations(sentences)]
    assert rows == {"".join([*order[:i], "_", *order[i + 1 :]]) for order in orders for i in range(5)}


def test_text_before_first_start_is_a_partial_sentence():
    rows = {tuple(text_of(apply(5, np.random.default_rng(s), [2], permute_sentences=1.0)) - TEXT) for s in range(50)}
    assert rows == {(0, 1, 2, 3, 4), (2, 3, 4, 0, 1)}


ROWS, LENGTH = 400, 1000


def made_rows(**settings):
    rng = np.random.default_rng(0)
    return [text_of(apply(LENGTH, rng, **settings)) for _ in range(ROWS)]


def assert_near(count, mean, variance):
    assert abs(count - mean) < 4 * variance**0.5, (count, mean, variance**0.5)


def assert_spread_evenly(positions, chosen, of):
    """Quarters of `of` positions have hypergeometric counts of the `chosen` ones, in each of ROWS rows."""
    assert len(positions) == ROWS * chosen
    variance = ROWS * chosen * (1 / 4) * (3 / 4) * (of - chosen) / (of - 1)
    for quarter in np.bincount(np.asarray(positions) * 4 // of, minlength=4):
        assert_near(quarter, ROWS * chosen / 4, variance)


def test_masking_and_deletion_are_uniform():
    masked = np.concatenate([np.flatnonzero(row == MASK) for row in made_rows(noise=TokenMasking(0.3))])
    assert_spread_evenly(masked, 300, LENGTH)
    deleted = [np.setdiff1d(np.arange(LENGTH), row - TEXT) for row in made_rows(noise=TokenDeletion(0.3))]
    assert_spread_evenly(np.concatenate(deleted), 300, LENGTH)


def test_insertions_are_uniform():
    rows = made_rows(insert=0.2)
    assert_spread_evenly(np.concatenate([np.flatnonzero(row == MASK) for row in rows]), 200, 1200)


def test_share_of_masks_is_random():
    rows = np.concatenate(made_rows(noise=TokenMasking(0.5), random_share=0.1))
    random = rows[(rows < TEXT) & (rows != MASK)]
    share = 0.1 * (1 - 1 / BART.vocab_size)
    assert_near(len(random), ROWS * 500 * share, ROWS * 500 * share * (1 - share))
    quarters = np.bincount(random * 4 // BART.vocab_size, minlength=4)
    for quarter in quarters:
        assert_near(quarter, len(random) / 4, len(random) * 3 / 16)
    assert random.min() >= 0 and random.max() < BART.vocab_size


def test_span_lengths_are_poisson_up_to_budget():
    """The number of draws N has P(N > n) = P(Poisson(3 n) < budget); by Wald's identity e^-3 of them are 0."""
    budget, mean = 300, 3.0
    rng = np.random.default_rng(0)
    lengths = [denoising._span_lengths(budget, mean, rng) for _ in range(ROWS)]
    assert all(row.sum() == budget and row[-1] > 0 for row in lengths)
    below = np.arange(budget)
    log_factorial = np.cumsum(np.log(np.maximum(below, 1)))
    n = np.arange(1, 400)[:, None]
    survival = np.concatenate([[1.0], np.exp(below * np.log(mean * n) - mean * n - log_factorial).sum(1)])
    expected = survival.sum()
    variance = (survival * (2 * np.arange(400) + 1)).sum() - expected**2
    draws = np.array([len(row) for row in lengths])
    assert_near(draws.sum(), ROWS * expected, ROWS * variance)
    empty = sum(np.count_nonzero(row == 0) for row in lengths)
    share = math.exp(-mean)
    assert_near(empty, share * draws.sum(), ROWS * expected * share * (1 - share))


def test_each_span_leaves_one_mask():
    apart = 0
    for seed in range(200):
        row = text_of(apply(LENGTH, np.random.default_rng(seed), noise=TextInfilling(0.02)))
        lengths = denoising._span_lengths(20, 3.0, np.random.default_rng(seed))
        masks, removed = np.count_nonzero(row == MASK), LENGTH - np.count_nonzero(row >= TEXT)
        assert masks <= len(lengths) and removed <= 20
        if removed == 20:
            assert masks == len(lengths)
            apart += 1
    assert apart > 150


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_orders_of_sentences_are_equally_likely(share):
    starts = [0, 200, 500, 900]
    orders = []
    for row in made_rows(sentence_starts=starts, permute_sentences=share):
        begins = np.flatnonzero(np.isin(row - TEXT, starts))
        assert np.all(np.diff(row)[np.setdiff1d(np.arange(LENGTH - 1), begins - 1)] == 1)
        orders.append(tuple(row[begins] - TEXT))
    if share == 1.0:
        chances = dict.fromkeys(itertools.permutations(starts), 1 / 24)
    else:  # Two of four sentences: six pairs, swapped or not.
        swaps = [order for order in itertools.permutations(starts) if sum(map(int.__ne__, order, starts)) == 2]
        chances = {tuple(starts): 1 / 2} | dict.fromkeys(swaps, 1 / 12)
    assert set(orders) == set(chances)
    for order, chance in chances.items():
        assert_near(orders.count(order), ROWS * chance, ROWS * chance * (1 - chance))


def test_rotations_are_uniform_at_their_rate():
    pivots = np.array([row[0] - TEXT for row in made_rows(rotate=0.6)])
    share = 0.6 * (1 - 1 / LENGTH)
    assert_near(np.count_nonzero(pivots), ROWS * share, ROWS * share * (1 - share))
    for quarter in np.bincount(pivots[pivots > 0] * 4 // LENGTH, minlength=4):
        assert_near(quarter, np.count_nonzero(pivots) / 4, np.count_nonzero(pivots) * 3 / 16)


def test_defaults_equal_bart():
    settings = objectives.Denoising()
    assert (settings.noise, settings.permute_sentences) == (TextInfilling(0.3, 3.0), 1.0)
    assert (settings.insert, settings.rotate, settings.random_share) == (0.0, 0.0, 0.0)
    assert objectives.BoundObjective(settings, BART).separator is None


def test_example_is_not_modified():
    example = {"tokens": TEXT + np.arange(40), "sentence_starts": np.array([0, 20]), "word_starts": np.arange(40)}
    before = {key: value.copy() for key, value in example.items()}
    objectives.get("denoising", BART, insert=0.2, rotate=1.0)(example, np.random.default_rng(0))
    for key, value in before.items():
        np.testing.assert_array_equal(example[key], value)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(0, 99),
    st.sampled_from(
        [{"permute_sentences": 1.0}, {"noise": TextInfilling()}, {"noise": TokenDeletion()}, {"rotate": 1.0}]
    ),
)
@hypothesis_settings(max_examples=60)
def test_separate_documents_are_noised_separately(sizes, padding, seed, settings):
    documents = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    tokens = np.pad(TEXT + np.arange(len(documents)), (0, padding))
    example = {"tokens": tokens, "segment_ids": np.pad(documents, (0, padding))}
    example |= {"mask": tokens > 0} if padding else {}
    example["sentence_starts"] = np.arange(0, len(documents), 2)
    settings = {"permute_sentences": 0.0, "noise": NoNoise(), **settings}
    result = objectives.get("denoising", BART, **settings)(example, np.random.default_rng(seed))
    # Encoder: the tokens and masks of each document, framed.
    real = result["mask"] > 0
    inputs, ids = result["tokens"][real], result["segment_ids"][real]
    assert (inputs[0], ids[0], inputs[-1], ids[-1]) == (0, 1, 2, len(sizes))
    assert (np.diff(ids) >= 0).all() and not result["segment_ids"][~real].any()
    for token, of in zip(inputs[1:-1], ids[1:-1], strict=True):
        assert token == MASK or documents[token - TEXT] == of
    if isinstance(settings["noise"], NoNoise):
        assert sorted(inputs[1:-1]) == tokens[: len(documents)].tolist()
    # Decoder: the clean documents, each after eos.
    ids = result["decoder_segment_ids"]
    assert ids[: len(documents) + 2].tolist() == [1, *documents, len(sizes)] and not ids[len(documents) + 2 :].any()
    assert result["targets"][: len(documents) + 2].tolist() == [0, *tokens[: len(documents)], 2]
    for i, of in enumerate(ids):
        begins = of and (i == 0 or ids[i - 1] != of)
        before = 2 if begins else result["targets"][i - 1] if of else result["decoder_tokens"][i]
        assert result["decoder_tokens"][i] == before
        assert result["decoder_positions"][i] == (of > 0) * (i - ids.tolist().index(of))
        assert result["target_weights"][i] == (of in result["segment_ids"] and of > 0)


def test_documents_do_not_attend_to_each_other():
    shared = {"embedding": models.EmbeddingConfig(30, 8), "feed_forward": models.FeedForwardConfig(8)}
    attention = models.AttentionConfig(2, 4, models.LearnedPositions(32))
    stacks = {"stack": models.StackConfig(1), "decoder_stack": models.StackConfig(1)}
    model = models.EncoderDecoderConfig(**shared, attention=attention, **stacks)
    params, forward = random_params(model, scale=1.0), jax.jit(registry.build(model).apply)
    special = objectives.Special(pad=1, bos=0, eos=2, mask=4, vocab_size=30)
    documents = np.repeat([1, 2, 3], [5, 4, 3])

    def logits(tokens):
        example = {"tokens": tokens, "segment_ids": documents, "sentence_starts": np.array([0, 2, 5, 7, 9])}
        result = objectives.get("denoising", special)(example, np.random.default_rng(0))
        batch = {name: values[None] for name, values in model.read(result).items()}
        return forward({"params": params}, **batch)[0], result["decoder_segment_ids"]

    tokens = np.arange(10, 22)
    (before, ids), (after, _) = logits(tokens), logits(np.where(documents == 2, tokens + 7, tokens))
    differs = np.abs(before - after).max(axis=-1) > 1e-5
    assert not differs[ids != 2].any() and differs[ids == 2].all()


def test_invalid_settings_are_rejected():
    rng = np.random.default_rng(0)
    for name in ("bos", "eos", "mask"):
        ids = {"bos": 0, "eos": 2, "mask": 4, name: None}
        with pytest.raises(UserError, match=rf"set config.vocabulary.{name}"):
            apply(9, rng, special=objectives.Special(**ids), noise=TextInfilling())
    apply(9, rng, special=objectives.Special(bos=0, eos=2), noise=TokenDeletion())
    with pytest.raises(UserError, match=r"cannot make a row of length 2: raise config.data.length"):
        objectives.get("denoising", BART).input_length(2)
    for wrong in ({"insert": -0.1}, {"permute_sentences": 1.1}, {"rotate": 2.0}, {"random_share": -1.0}):
        with pytest.raises(UserError, match=rf"config.objective.{next(iter(wrong))} is .*: must be between 0 and 1"):
            objectives.get("denoising", BART, **wrong)
    for kind in (TextInfilling, TokenMasking, TokenDeletion):
        with pytest.raises(UserError, match=r"config.objective.noise.rate is 1.5: must be between 0 and 1"):
            objectives.get("denoising", BART, noise=kind(1.5))
    with pytest.raises(UserError, match=r"mean_span_length is 0: must be between 0.1 and"):
        objectives.get("denoising", BART, noise=TextInfilling(0.3, 0))
