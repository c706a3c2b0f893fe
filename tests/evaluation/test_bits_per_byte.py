"""Bits and bytes of exactly the tokens predicted, counted by hand."""

import dataclasses
import functools
import json
import math
import pathlib

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config, models
from plm_jax.data import cache, vocabularies
from plm_jax.evaluation import perplexity
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from plm_jax.runs import preparation
from tests.support import tiny

GPT2 = pathlib.Path(plm_jax.__file__).parent / "data" / "gpt2"
# By vocabulary, how many ids there are and which one ends a document.
SPECS = {
    "bytes": ("bytes", 257, 256),
    "bytes without ends": ("bytes", 256, None),
    "bpe": (f"bpe:{GPT2}/vocab.json,{GPT2}/merges.txt", 50257, 50256),
}
TEXTS = ["欧洲 is far. ½!", "é", "🙂 and the sea", " the whale\n", "Ünd aus, naïve café…", "x"]
DOCUMENTS = [text * (1 + i % 3) for i, text in enumerate(5 * TEXTS)]


@functools.cache
def model(vocab_size):
    """One that looks at no context: its logits are a bias."""
    config_of_model = dataclasses.replace(
        tiny.MODEL,
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=8),
        attention=models.AttentionConfig(heads=1, head_dim=8, position=models.LearnedPositions(length=16)),
        feed_forward=models.FeedForwardConfig(width=8),
        stack=models.StackConfig(layers=1),
        head=models.VocabularyHead(tied=False, bias=True),
    )
    bias = np.random.default_rng(0).normal(size=vocab_size).astype(np.float32)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(config_of_model))
    zeros["head_bias"] = bias
    log_p = bias.astype(np.float64) - np.log(np.exp(bias.astype(np.float64)).sum())
    return config_of_model, zeros, log_p


def token_sizes(spec):
    """UTF-8 bytes of each of a vocabulary's tokens of text."""
    if spec == "bytes":
        return [1] * 256
    names = json.loads((GPT2 / "vocab.json").read_text())
    return [len(name) for name in sorted(names, key=names.__getitem__)]


@pytest.mark.parametrize("apart", [False, True], ids=["across", "apart"])
@pytest.mark.parametrize("vocabulary", SPECS)
def test_bits_and_bytes_are_those_of_the_tokens_predicted(tmp_path, vocabulary, apart):
    spec, size, eos = SPECS[vocabulary]
    settings, params, log_p = model(size)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    source = config.TextTable(str(tmp_path / "a.jsonl"), validation=str(tmp_path / "held.jsonl"))
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[::-1]))
    data = config.DataConfig(str(tmp_path), 7, {"a": source}, layout=config.Blocks(attend_across_documents=not apart))
    run = dataclasses.replace(tiny.PLAIN, model=settings, data=data, vocabulary=config.VocabularyConfig(spec, eos=eos))
    preparation.prepare(run, show_progress=False)
    split = cache.open_source(str(tmp_path), "a").splits["validation"]
    starts, ends = split.documents[:-1].tolist(), [] if eos is None else [eos]
    documents = [[*split.tokens(a, b).tolist(), *ends] for a, b in zip(starts, split.documents[1:], strict=True)]
    sizes = token_sizes(spec)
    assert sum(sizes[t] for d in documents for t in d if t != eos) == len("".join(DOCUMENTS).encode())
    predicted = [t for d in documents for t in d[1:]] if apart else [t for d in documents for t in d][1:]
    bits = -sum(log_p[t] for t in predicted) / math.log(2)
    num_bytes = sum(sizes[t] for t in predicted if t != eos)

    lm = LanguageModel(
        settings, params, run=run, vocabulary_id=vocabularies.identity(vocabularies.load(run.vocabulary))
    )
    metrics = perplexity.evaluate(lm, run, "a", show_progress=False)
    assert metrics["tokens"] == len(predicted)
    np.testing.assert_allclose(metrics["bits_per_byte"], bits / num_bytes, rtol=1e-5)
    # What the layouts differ by is what they do not predict: such a model loses as much on a token in each of them.
    firsts = [d[0] for d in (documents if apart else documents[:1])]
    whole = -sum(log_p[t] for d in documents for t in d) / math.log(2)
    np.testing.assert_allclose(
        metrics["bits_per_byte"] * num_bytes - sum(log_p[t] for t in firsts) / math.log(2), whole, rtol=1e-5
    )
