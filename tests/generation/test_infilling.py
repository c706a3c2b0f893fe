"""Blanks filled by decoders: positions against the objective, prompts, and generation against full passes."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.generation import decoding, infilling, strategies
from plm_jax.inference.language_model import LanguageModel
from tests.support import runs
from tests.support import tiny as tiny_config
from tests.support.random_models import random_params

IDS = {"pad": 256, "eos": 257, "cls": 258, "mask": 259, "smask": 260, "gmask": 261, "sop": 262, "eop": 263}
SIZE = 264
MARKS = infilling.Marks((259, 260, 261), 262, 263)
MODELS = {"glm": tiny_config.GLM, "chatglm": tiny_config.CHATGLM}
families = pytest.mark.parametrize("family", MODELS)


def model_of(family, seed=0, **ids):
    """Returns a model with random parameters and a vocabulary of bytes."""
    model = dataclasses.replace(
        MODELS[family], embedding=dataclasses.replace(MODELS[family].embedding, vocab_size=SIZE + 3)
    )
    params = random_params(model, seed, scale=0.4)
    vocabulary = config.VocabularyConfig("bytes", **IDS)
    run = dataclasses.replace(
        tiny_config.PLAIN, model=model, objective=objectives.BlankInfilling(), vocabulary=vocabulary
    )
    special = {f"{name}_token_id": token for name, token in (IDS | ids).items()}
    return LanguageModel(model, params, run=run, vocabulary_spec="bytes", special_ids=special)


@pytest.mark.parametrize("kind", [{}, {"sentence_rate": 1.0}, {"document_rate": 1.0}])
def test_positions_equal_those_of_objective(kind):
    """For blanks that are filled from first to last, with padding on either side."""
    special = objectives.Special(**IDS, dblock=99, vocab_size=SIZE)
    objective, count = objectives.get("blank_infilling", special, **kind), 0
    for seed in range(400):
        row = objective({"tokens": np.arange(40), "sentence_starts": range(0, 40, 3)}, np.random.default_rng(seed))
        used = int(row["prefix_lengths"] + row["target_weights"].sum())
        tokens, opens = row["tokens"][:used], row["tokens"][:used] == special.sop
        if (np.diff(row["positions"][:used][opens]) < 0).any():
            continue
        count += 1
        for left, right in ((0, 0), (3, 2)):
            padded = np.pad(tokens, (left, right), constant_values=special.sop)
            mask = np.pad(np.ones(used, int), (left, right))
            arrays = infilling.positions(padded[None], mask[None], MARKS)
            for name in ("positions", "block_positions"):
                np.testing.assert_array_equal(arrays[name][0][mask > 0], row[name][:used])
            assert arrays["prefix_lengths"][0] == row["prefix_lengths"] + left
    assert count > 20


def test_rows_without_blank_or_mask():
    tokens = np.array([[5, 6, 7, 8], [5, 6, 262, 7]])
    arrays = infilling.positions(tokens, np.ones_like(tokens), MARKS)
    assert arrays["prefix_lengths"].tolist() == [4, 2]
    assert arrays["positions"].tolist() == [[0, 1, 2, 3], [0, 1, 1, 1]]
    assert arrays["block_positions"].tolist() == [[0] * 4, [0, 0, 1, 2]]
    assert infilling.fill([], MARKS, list) == []


def all_logits(lm, tokens):
    """Logits of one row, padded so that rows of all lengths share a program."""
    padding = (0, 32 - len(tokens))
    return lm.logits(np.pad(tokens, padding)[None], np.pad(np.ones_like(tokens), padding)[None])[0, : len(tokens)]


@families
def test_greedy_fillings_equal_full_passes(family):
    """Prompts of different lengths with two blanks and one; the reference runs a full pass for each token."""
    lm = model_of(family)
    prompts = [[258, 1, 259, 2, 3, 259, 4], [258, 9, 8, 7, 261]]
    generate = lambda rows: decoding.generate(  # noqa: E731
        lm.model, lm.params, rows, max_new_tokens=6, eos_ids=[MARKS.eop], marks=MARKS
    )
    got = infilling.fill(prompts, MARKS, generate)
    for prompt, fillings in zip(prompts, got, strict=True):
        row = [*prompt, MARKS.sop]
        assert len(fillings) == sum(token in MARKS.masks for token in prompt)
        for filling in fillings:
            want = []
            while len(want) < 6:
                token = int(jnp.argmax(all_logits(lm, [*row, *want])[-1]))
                if token == MARKS.eop:
                    break
                want.append(token)
            assert filling == want
            row += [*filling, MARKS.sop]


@families
def test_one_beam_is_greedy_and_more_are_no_worse(family):
    lm = model_of(family, seed=1)
    prompts = [[258, 1, 259, 2, 3, 262], [258, 9, 8, 7, 261, 262]]
    options = {"max_new_tokens": 5, "marks": MARKS}
    greedy = decoding.generate(lm.model, lm.params, prompts, **options)
    beams = decoding.generate(lm.model, lm.params, prompts, num_beams=4, **options)

    def log_probability(prompt, new):
        log_p = jax.nn.log_softmax(all_logits(lm, [*prompt, *new]))
        return sum(float(log_p[len(prompt) + i - 1, token]) for i, token in enumerate(new))

    for prompt, one, four in zip(prompts, greedy, beams, strict=True):
        assert log_probability(prompt, four) >= log_probability(prompt, one) - 1e-4


def test_prompts_are_framed_as_in_training():
    special = model_of("glm").special_ids
    vocabulary = model_of("glm").vocabulary
    encode = lambda text, ids=special: infilling.encode(vocabulary, text, ids)  # noqa: E731
    assert encode("a[MASK]b[sMASK]") == [258, 97, 259, 98, 260, 257]
    assert encode("ab [gMASK]") == encode("ab") == [258, 97, 98, 261]
    chatglm = {"mask_token_id": 259, "gmask_token_id": 261, "sop_token_id": 262, "eop_token_id": 263}
    assert encode("ab", chatglm | {"eos_token_id": 263}) == [97, 98, 261]
    alone = {name: special[name] for name in ("cls_token_id", "eos_token_id", "mask_token_id")}
    assert encode("ab", alone) == [258, 97, 98, 259, 257]


def test_text_is_filled_or_continued(monkeypatch):
    lm = model_of("glm")

    def writer(self, **options):
        return lambda rows, marks: [[120 + number] * 2 for number, _ in enumerate(rows)]

    with monkeypatch.context() as patch:
        patch.setattr(strategies.BlankInfillingStrategy, "writer", writer)
        assert lm.generate(["a[MASK]b[sMASK]c", "go on"]) == ["axxbxxc", "yy"]
    assert len(lm.generate("a[MASK]b", max_new_tokens=3)) == 1


def test_masks_in_ids_are_filled_like_text():
    lm = model_of("glm")
    prompts = [infilling.encode(lm.vocabulary, text, lm.special_ids) for text in ("a[MASK]b[sMASK]", "c[gMASK]")]
    fillings = infilling.fill(prompts, MARKS, functools.partial(lm.writer(max_new_tokens=3), marks=MARKS))
    (first, second), (third,) = fillings
    assert first and third
    assert lm.generate(prompts, max_new_tokens=3) == [[258, 97, *first, 98, *second, 257], [258, 99, *third]]
    with pytest.raises(UserError, match="no mask id"):
        lm.generate([[97]])


def test_decoding_options_apply_to_blanks():
    lm = model_of("glm")
    text = "a[MASK]b[sMASK]"
    assert re.fullmatch("axy.{3}bxy.{3}", lm.generate(text, max_new_tokens=5, min_new_tokens=5, forced_prefix="xy")[0])
    assert len(lm.generate(text, max_new_tokens=4, num_beams=3, no_repeat_ngram_size=1)) == 1
    for options in ({"num_beams": 2, "num_return_sequences": 2}, {"stop_strings": ["b"]}):
        with pytest.raises(UserError, match="leave out num_return_sequences and stop_strings"):
            lm.generate(text, **options)


def test_run_without_blanks_continues_text():
    lm = model_of("glm")
    lm.run = dataclasses.replace(lm.run, objective=objectives.Causal())
    assert type(lm.strategy) is strategies.DecoderStrategy
    tokens = [[1, 2, 262, 3]]
    want = lm.model.apply({"params": lm.params}, jnp.array(tokens))
    np.testing.assert_allclose(lm.logits(tokens), want, atol=1e-5)


def test_evaluation_counts_only_fillings(tiny):
    """The reference uses all logits of one row at a time."""
    run = runs.make(tiny, tiny_config.RUNS["glm"])
    params = random_params(run.model, seed=2, scale=1 / 3)
    only = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": run.data.sources["a"]}))
    opened, nll, total = Reader(config.reader_config(only)), 0.0, 0
    lm = LanguageModel(run.model, params, run=run, vocabulary_id=opened.vocabulary["id"])
    forward = jax.jit(lambda inputs: lm.model.apply({"params": lm.params}, **inputs))
    for row in opened.in_order("validation", 1):
        inputs = ("tokens", "positions", "block_positions", "prefix_lengths")
        log_p = jax.nn.log_softmax(forward({name: row[name] for name in inputs})[0])
        at = row["target_positions"][row["target_weights"] > 0]
        nll -= float(log_p[at, row["targets"][row["target_weights"] > 0]].sum())
        total += len(at)
    metrics = perplexity.evaluate(lm, run, "a", show_progress=False)
    assert metrics["tokens"] == total > 50
    np.testing.assert_allclose(metrics["loss"], nll / total, rtol=1e-4)
    assert metrics["real_tokens"] < total, "eop is no text"


@families
def test_unknown_ids_are_never_generated_and_long_prompts_rejected(family):
    lm = model_of(family)
    text = lm.generate(["x" * 20], max_new_tokens=8)
    assert isinstance(text[0], str)
    if family == "glm":
        with pytest.raises(UserError, match="exceed the model's 64 positions"):
            lm.generate(["x" * 70], max_new_tokens=8)
