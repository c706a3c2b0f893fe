"""Encoding and filling of blanks in prompts."""

import dataclasses
import string

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import Vocabulary
from plm_jax.generation import blanks, strategies
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests.support import tiny

BYTES = config.VocabularyConfig("bytes", pad=256, eos=257, cls=258, sep=259, mask=260, sentinels=3)
SIZE = 264
SENTINELS = (263, 262, 261)
PLAIN = models.TransformerConfig(
    embedding=models.EmbeddingConfig(SIZE + 4, 16),
    attention=models.AttentionConfig(2, 8, models.NoPositions()),
    feed_forward=models.FeedForwardConfig(8),
    stack=models.StackConfig(1),
)
TEXT = st.text(string.ascii_letters + "., ", max_size=12)


@Vocabulary.register
class Characters:
    """Vocabulary whose token i is the character with code i."""

    vocab_size, eos_id = 128, None

    def encode(self, text):
        return [ord(character) for character in text]

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def a_run(model, **sections):
    return dataclasses.replace(tiny.PLAIN, model=model, vocabulary=BYTES, **sections)


def of_zeros(model, **changes):
    """A model whose logits are the bias of its head at every position."""
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(model))
    return params | changes


def masked(scores, **sections):
    """A masked model with these logits at every position, {byte: logit}."""
    fields = {f.name: getattr(PLAIN, f.name) for f in dataclasses.fields(PLAIN)}
    model = models.EncoderConfig(**fields, head=models.VocabularyHead(bias=True))
    bias = np.zeros(SIZE + 4, np.float32)
    for token, score in scores.items():
        bias[token if isinstance(token, int) else ord(token)] = score
    ids = {"cls_token_id": 258, "sep_token_id": 259, "mask_token_id": 260, "sentinels": 3}
    return LanguageModel(
        model,
        of_zeros(model, head_bias=bias),
        run=a_run(model, objective=objectives.MaskedLM(), **sections),
        vocabulary_spec="bytes",
        special_ids=ids,
    )


@given(st.lists(TEXT, min_size=1, max_size=5), st.data())
def test_prompt_is_encoded_between_marks(parts, data):
    marks = {"<a>": 500, "[MASK]": 501}
    drawn = [data.draw(st.sampled_from(sorted(marks))) for _ in parts[1:]]
    text = parts[0] + "".join(mark + piece for mark, piece in zip(drawn, parts[1:], strict=True))
    tokens = blanks.encode(Characters(), text, marks)
    assert [token for token in tokens if token >= 500] == [marks[mark] for mark in drawn]
    shown = "".join({500: "<a>", 501: "[MASK]"}.get(token) or chr(token) for token in tokens)
    before = [piece.rstrip() for piece in parts[:-1]]
    assert shown == "".join(piece + mark for piece, mark in zip(before, drawn, strict=True)) + parts[-1]


@settings_of_test(max_examples=50)
@given(st.integers(2, 60), st.integers(0, 10**6))
def test_span_corruption_targets_fill_its_blanks(length, seed):
    """Filling a corrupted text with the targets of the objective reconstructs it."""
    rng = np.random.default_rng(seed)
    sentinels = tuple(range(199, 149, -1))
    corrupt = objectives.get("span_corruption", objectives.Special(pad=0, eos=1, sentinels=sentinels, vocab_size=200))
    tokens = rng.integers(2, 150, length)
    row = corrupt({"tokens": tokens}, rng)
    inputs, targets = row["tokens"][row["mask"] > 0][:-1], row["targets"][row["target_weights"] > 0][:-1]
    assert blanks.fill_spans(inputs.tolist(), targets.tolist(), sentinels) == tokens.tolist()


def test_unanswered_span_stays_blank():
    assert blanks.fill_spans([5, 99, 6, 98, 7], [1, 99, 2, 3, 97, 4], (99, 98, 97)) == [5, 2, 3, 6, 98, 7]


def test_sentinels_are_counted_from_the_top():
    assert blanks.sentinel_ids("a <extra_id_0> b <extra_id_2>", SENTINELS) == {"<extra_id_0>": 263, "<extra_id_2>": 261}
    with pytest.raises(UserError, match="contains <extra_id_3>, but the vocabulary has 3 sentinels"):
        blanks.sentinel_ids("<extra_id_3>", SENTINELS)


def test_masks_get_most_probable_token():
    lm = masked({"x": 9.0, "y": 8.0, SIZE + 1: 99.0})  # The last id is beyond the vocabulary.
    first, second = lm.fill(["a[MASK]b[MASK]", "long [MASK] text"], top_k=SIZE)
    assert (first.text, second.text) == ("axbx", "longx text")
    assert [len(first.candidates), len(second.candidates)] == [2, 1]
    for of_mask in (*first.candidates, *second.candidates):
        total = np.exp(9) + np.exp(8) + SIZE - 2
        assert [candidate.text for candidate in of_mask[:2]] == ["x", "y"]
        got = [candidate.probability for candidate in of_mask]
        np.testing.assert_allclose(got[:3], [np.exp(9) / total, np.exp(8) / total, 1 / total], rtol=1e-4)
        np.testing.assert_allclose(sum(got), 1, rtol=1e-5)
    assert len(lm.fill("[MASK]", top_k=2)[0].candidates[0]) == 2
    assert lm.generate(["a[MASK]b[MASK]"]) == [first.text]


def test_masks_in_ids_are_filled_within_vocabulary():
    lm = masked({"x": 9.0, SIZE + 1: 99.0})
    x, beyond, prompts = ord("x"), SIZE + 1, [[258, 260, 97, 260], [260, 98]]
    assert lm.generate(prompts) == [[258, x, 97, x], [x, 98]]
    lm = LanguageModel(lm.config, lm.params, special_ids=lm.special_ids)
    assert lm.generate(prompts) == [[258, beyond, 97, beyond], [beyond, 98]]
    with pytest.raises(UserError, match=r"a prompt has no mask id: .* \(the model's is 260\)"):
        lm.generate([[260], [97]])
    with pytest.raises(UserError, match=r"\(the model has none\)"):
        LanguageModel(lm.config, lm.params).generate([[260]])


def test_masked_model_reads_its_training_frame(monkeypatch):
    inputs_read = []
    read = strategies.EncoderStrategy.read

    def spy(self, tokens, mask=None):
        inputs_read.append((tokens.tolist(), mask.tolist()))
        return read(self, tokens, mask)

    monkeypatch.setattr(strategies.EncoderStrategy, "read", spy)
    pairs = dataclasses.replace(tiny.PLAIN.data, layout=config.SentencePairs())
    masked({}, data=pairs).fill(["[MASK]!", "[MASK]"])
    masked({}).fill("[MASK]!")
    assert inputs_read == [
        ([[258, 260, 33, 259], [258, 260, 259, 0]], [[1] * 4, [1, 1, 1, 0]]),
        ([[260, 33]], [[1, 1]]),
    ]


def test_default_frame_is_begin_and_end_tokens(monkeypatch):
    """Uses RoBERTa's frame and its mask `<mask>`."""
    inputs_read = []
    kind, read = strategies.EncoderStrategy, strategies.EncoderStrategy.read
    monkeypatch.setattr(
        kind, "read", lambda self, tokens, mask: inputs_read.append(tokens.tolist()) or read(self, tokens, mask)
    )
    lm = masked({"x": 9.0}, data=dataclasses.replace(tiny.PLAIN.data, layout=config.SentencePairs()))
    lm.special_ids = {"bos_token_id": 258, "eos_token_id": 259, "mask_token_id": 260}
    assert [filled.text for filled in lm.fill("a<mask>b[MASK]")] == ["axbx"]
    assert inputs_read == [[[258, 97, 260, 98, 260, 259]]]


def a_text_to_text_model():
    fields = {f.name: getattr(PLAIN, f.name) for f in dataclasses.fields(PLAIN)}
    model = models.EncoderDecoderConfig(
        **fields, decoder_stack=models.StackConfig(1), head=models.VocabularyHead(tied=False, bias=False)
    )
    return model, of_zeros(model)


def test_span_model_fills_blanks_with_its_answer():
    """A decoder whose blocks add nothing and whose head maps each token to the next token of the answer."""
    answer = [263, ord("p"), ord("q"), 262, ord("r"), 257]
    model, params = a_text_to_text_model()
    codes = np.random.default_rng(0).normal(size=(SIZE + 4, 16)).astype(np.float32)
    codes -= codes.mean(-1, keepdims=True)
    codes /= codes.std(-1, keepdims=True)
    params["token_embedding"] = codes
    params["decoder"]["final_norm"]["scale"] += 1
    for token, successor in zip([256, *answer], answer, strict=False):
        params["head"][successor] = codes[token]
    ids = {"pad_token_id": 256, "eos_token_id": 257, "sentinels": 3}
    run = a_run(model, objective=objectives.SpanCorruption())
    lm = LanguageModel(model, params, run=run, vocabulary_spec="bytes", special_ids=ids)
    assert lm.generate(["a <extra_id_0> b <extra_id_1>.", "<extra_id_2>c"]) == ["apq br.", "<extra_id_2> c"]
    assert lm.generate("no blank") == ["<extra_id_0> pq <extra_id_1> r"]
    with pytest.raises(UserError, match="contains <extra_id_3>"):
        lm.generate("<extra_id_3>")
    assert lm.generate("no blank", stop_strings=" r") == ["<extra_id_0> pq <extra_id_1>"]
    with pytest.raises(UserError, match="leave out stop_strings"):
        lm.generate("a <extra_id_0>", stop_strings=["q"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: lm.fill("no blank"), r"'no blank' has no \[MASK\]: write one where a token is missing"),
        (lambda lm: lm.fill("[MASK]", top_k=0), "top_k is 0"),
        (
            lambda lm: lm.generate("[MASK]", num_beams=2, top_k=3),
            "does not generate text, .* leave out num_beams, top_k",
        ),
        (lambda lm: lm.generate("[MASK]", max_new_tokens=9), "leave out max_new_tokens"),
        (lambda lm: lm.generate("no blank"), r"'no blank' has no \[MASK\]: write one where a token is missing"),
        (lambda lm: lm.special_ids.pop("mask_token_id") and lm.fill("[MASK]"), "its vocabulary has no mask"),
        (lambda lm: LanguageModel(*a_text_to_text_model()).fill("[MASK]"), "is not a masked model"),
    ],
)
def test_invalid_fill_requests_are_rejected(call, words):
    with pytest.raises(UserError, match=words):
        call(masked({}))
