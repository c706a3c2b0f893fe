"""Rows of examples: worked examples, comparison with seqio's feature converters, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

T5 = objectives.Special(pad=0, eos=1, sentinels=(99, 98, 97, 96), vocab_size=100)
BART = objectives.Special(pad=1, bos=0, eos=2, mask=9, vocab_size=100)
GPT = objectives.Special(eos=1, vocab_size=100)
SPANS = objectives.SpanCorruption()


def rows(objective=SPANS, special=T5, target_length=None, segmented=False):
    return objective.example_rows(objective, special, target_length, segmented)


def plain(row):
    return {name: value.tolist() for name, value in row.items()}


def test_packed_t5_examples_have_segments_and_positions():
    result = rows(target_length=6, segmented=True).row([([11], [21, 22]), ([], [31])], 5)
    assert plain(result) == {
        "tokens": [11, 1, 1, 0, 0],
        "mask": [1, 1, 1, 0, 0],
        "segment_ids": [1, 1, 2, 0, 0],
        "decoder_tokens": [0, 21, 22, 0, 31, 1],
        "targets": [21, 22, 1, 31, 1, 0],
        "target_weights": [1, 1, 1, 1, 1, 0],
        "decoder_segment_ids": [1, 1, 1, 2, 2, 0],
        "decoder_positions": [0, 1, 2, 0, 1, 0],
    }


def test_denoising_rows_have_bos_and_decoder_starts_with_eos():
    assert plain(rows(objectives.Denoising(), BART, 5).row([([11, 12], [21])], 5)) == {
        "tokens": [0, 11, 12, 2, 1],
        "mask": [1, 1, 1, 1, 0],
        "decoder_tokens": [2, 0, 21, 2, 1],
        "targets": [0, 21, 2, 1, 1],
        "target_weights": [1, 1, 1, 0, 0],
    }


def test_decoder_predicts_only_targets_and_eos():
    causal = rows(objectives.Causal(), GPT, 3)
    assert plain(causal.row([([11, 12, 13], [21, 22])], 7)) == {
        "tokens": [11, 12, 13, 21, 22, 0, 0],
        "targets": [12, 13, 21, 22, 1, 0, 0],
        "target_weights": [0, 0, 1, 1, 1, 0, 0],
    }
    prefix = rows(objectives.DecoderPrefixLM(), GPT, 3).row([([11, 12, 13], [21, 22])], 7)
    assert prefix.pop("prefix_lengths") == 3
    assert plain(prefix) == plain(causal.row([([11, 12, 13], [21, 22])], 7))
    # Three of seven positions are for targets and eos. The last one is not an input.
    full = causal.row([(list(range(11, 20)), [21, 22, 23, 24])], 7)
    assert full["tokens"].tolist() == [11, 12, 13, 14, 15, 21, 22]
    assert full["targets"].tolist() == [12, 13, 14, 15, 21, 22, 1]
    assert causal.prompt(list(range(11, 20)), 7) == [11, 12, 13, 14, 15]
    assert plain(causal.row([([], [21])], 3)) == {
        "tokens": [1, 21, 0],
        "targets": [21, 1, 0],
        "target_weights": [1, 1, 0],
    }


def test_packed_decoder_examples():
    result = rows(objectives.Causal(), GPT, 3, segmented=True).row([([11, 12], [21]), ([13], [22, 23])], 7)
    assert plain(result) == {
        "tokens": [11, 12, 21, 13, 22, 23, 0],
        "targets": [12, 21, 1, 22, 23, 1, 0],
        "target_weights": [0, 1, 1, 1, 1, 1, 0],
        "segment_ids": [1, 1, 1, 2, 2, 2, 0],
        "positions": [0, 1, 2, 0, 1, 2, 0],
    }


TOKENS = st.lists(st.integers(10, 90), max_size=12)


@pytest.mark.parametrize(
    ("objective", "special", "target_length"),
    [
        (SPANS, T5, 7),
        (objectives.Denoising(), BART, 7),
        (objectives.Causal(), GPT, 5),
        (objectives.DecoderPrefixLM(), GPT, 5),
        (objectives.DecoderTextToText(prefix=True), GPT, 5),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
@given(inputs=TOKENS, targets=TOKENS)
def test_sizes_equal_row_sizes(objective, special, target_length, inputs, targets):
    of = rows(objective, special, target_length, segmented=not objective.has_prefix)
    result, counts = of.row([(inputs, targets)], 10), (np.array([len(inputs)]), np.array([len(targets)]))
    encoder, decoder = (int(size[0]) for size in of.sizes(*counts, 10))
    if objective.architectures == ("decoder",):
        used = len(inputs[: 10 + 1 - 5]) or 1
        assert encoder == decoder == used + len(targets[:4])
        assert result["target_weights"].sum() == len(targets[:4]) + 1
        assert result["tokens"][:used].tolist() == of.prompt(inputs, 10)
    else:
        assert (encoder, decoder) == (result["mask"].sum(), result["target_weights"].sum())
        assert result["tokens"][:encoder].tolist() == of.prompt(inputs, 10)
    remaining = of.prompt(inputs, 10), result["targets"][result["target_weights"] > 0].tolist()
    whole = all(
        [token for token in ids if token >= 10] == text for ids, text in zip(remaining, (inputs, targets), strict=True)
    )
    assert bool(of.are_truncated(*counts, 10)[0]) == (not whole)


@pytest.mark.parametrize("target_length", [None, 40])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize(
    ("objective", "special"),
    [
        (SPANS, T5),
        (objectives.PrefixLM(), T5),
        (objectives.Denoising(permute_sentences=0.0), BART),
        (objectives.Denoising(permute_sentences=0.0, insert=0.5), BART),  # No text has exactly 24 tokens with masks.
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_text_rows_have_keys_and_shapes_of_example_rows(objective, special, target_length, segmented):
    of, bound = rows(objective, special, target_length, segmented), objectives.BoundObjective(objective, special)
    text = bound({"tokens": np.arange(10, 10 + bound.input_length(24))}, np.random.default_rng(0))
    aligned, example = of.align(text), of.row([([11], [21])], 24)
    shapes = [{name: (value.shape, value.dtype) for name, value in row.items()} for row in (aligned, example)]
    assert shapes[0] == shapes[1]
    num = len(text["targets"])
    for name, value in text.items():
        np.testing.assert_array_equal(aligned[name][: len(value)], value)
    assert aligned["target_weights"].sum() == text["target_weights"].sum()
    assert (aligned["targets"][num:] == special.pad).all()
    if segmented:
        np.testing.assert_array_equal(aligned["segment_ids"], text["mask"])
        assert aligned["decoder_segment_ids"].tolist() == [1] * num + [0] * (len(aligned["targets"]) - num)


def test_decoder_text_row_is_one_segment():
    of = rows(objectives.Causal(), GPT, 4, segmented=True)
    text = objectives.get("causal", GPT)({"tokens": np.arange(10, 19)}, np.random.default_rng(0))
    assert of.align(text).keys() == of.row([([11], [21])], 8).keys()
    assert set(of.align(text)["segment_ids"].tolist()) == {1}
    assert of.align(text)["positions"].tolist() == list(range(8))


@pytest.mark.parametrize("special", [objectives.Special(pad=0), objectives.Special(eos=1)])
def test_missing_special_ids_are_reported(special):
    with pytest.raises(UserError, match=r"set config\.vocabulary\.eos"):
        rows(objectives.Denoising(), special)
    if special.eos is None:
        with pytest.raises(UserError, match=r"set config\.vocabulary\.eos"):
            rows(objectives.Causal(), special, 4)


EXAMPLES = [([11, 12, 13], [21, 22]), ([14], [23]), ([15, 16], [24, 25, 26]), ([17] * 9, [27]), ([18], [28] * 9)]


@pytest.mark.parametrize("pack", [False, True])
def test_rows_equal_seqio_feature_converter(pack):
    seqio, tf = pytest.importorskip("seqio"), pytest.importorskip("tensorflow")
    lengths, of = {"inputs": 8, "targets": 6}, rows(target_length=6, segmented=pack)

    def generate():
        for inputs, targets in EXAMPLES:  # Like `append_eos_after_trim`.
            yield {"inputs": np.array([*inputs[:7], 1], np.int32), "targets": np.array([*targets[:5], 1], np.int32)}

    signature = {name: tf.TensorSpec([None], tf.int32) for name in lengths}
    converted = seqio.EncDecFeatureConverter(pack=pack)(
        tf.data.Dataset.from_generator(generate, output_signature=signature), lengths
    )
    theirs = {
        "tokens": "encoder_input_tokens",
        "decoder_tokens": "decoder_input_tokens",
        "targets": "decoder_target_tokens",
        "target_weights": "decoder_loss_weights",
        "segment_ids": "encoder_segment_ids",
        "decoder_segment_ids": "decoder_segment_ids",
        "decoder_positions": "decoder_positions",
    }
    groups = [EXAMPLES[:2], EXAMPLES[2:3], EXAMPLES[3:4], EXAMPLES[4:]] if pack else [[one] for one in EXAMPLES]
    expected = list(converted.as_numpy_iterator())
    assert len(expected) == len(groups)
    for group, want in zip(groups, expected, strict=True):
        result = of.row(group, 8)
        assert result["mask"].tolist() == (want["encoder_input_tokens"] > 0).tolist()
        for ours, name in theirs.items():
            if ours in result:
                # Decoder inputs after the end are meaningless.
                counts = result["target_weights"] > 0 if ours == "decoder_tokens" else 1
                np.testing.assert_array_equal(result[ours] * counts, want[name] * counts, err_msg=ours)
