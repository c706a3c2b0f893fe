"""`evaluate --texts` scores files of text with a model's vocabulary, without a config, a run or a cache."""

import gzip
import json
import math
import re

import numpy as np
import pytest

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.evaluation import scoring
from plm_jax.runs import checkpoint_formats
from tests.support import exports
from tests.support.verbs import assert_one_line

TEXTS = {
    "a.txt": "The state of the Union is strong.\n",
    "b.txt": "We the people",
    "below/c.txt": "in order to form a more perfect Union",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text_files")


@pytest.fixture(scope="module")
def models(folder, vocabulary_folder):
    """A decoder, an encoder and an encoder-decoder, each saved for Hugging Face."""
    for family, kind in (("gpt2", "gpt2"), ("bert", "uncased"), ("t5", "unigram")):
        model = exports.randomized(exports.pretrained(family, kind, vocabulary_folder), scale=0.5)
        checkpoint_formats.save(str(folder / family), model, "huggingface")
    return folder


@pytest.fixture
def texts(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    with gzip.open(tmp_path / "z.gz", "wt") as file:
        file.write(TEXTS["b.txt"])
    return tmp_path


def log_likelihood(lm, text):
    if lm.config.kind == "decoder":
        return lm.score("", text)[0].log_likelihood
    return float(lm.pseudo_log_likelihoods(text, word_l2r=True)[0].sum())


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_each_file_is_scored_as_one_text(family, models, texts):
    lm = plm_jax.load(models / family)
    for pattern, names in {"*.txt": ("a.txt", "b.txt"), "**/*.txt": tuple(TEXTS), "z.gz": ("b.txt",)}.items():
        metrics = scoring.evaluate_files(lm, f"{texts}/{pattern}", scoring.TextScoring(None), show_progress=False)
        nats = -sum(log_likelihood(lm, TEXTS[name]) for name in names)
        tokens = sum(len(lm.tokenizer.encode(TEXTS[name])) for name in names)
        words = sum(len(re.split(r"\s+", TEXTS[name])) for name in names)
        assert (metrics["texts"], metrics["tokens"], metrics["words"]) == (len(names), tokens, words)
        assert metrics["token_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    short = scoring.evaluate_files(lm, f"{texts}/*.txt", scoring.TextScoring(3, limit=1), show_progress=False)
    assert short["texts"] == 1 and np.isfinite(short["token_perplexity"])


def test_an_encoder_decoder_and_files_without_text_are_one_line(models, texts):
    with pytest.raises(UserError, match="does not score whole texts: use a decoder or a masked model"):
        scoring.evaluate_files(plm_jax.load(models / "t5"), f"{texts}/*.txt", scoring.TextScoring(None))
    lm = plm_jax.load(models / "gpt2")
    with pytest.raises(UserError, match="have no text"):
        scoring.evaluate_files(lm, f"{texts}/[be]*[ky].txt", scoring.TextScoring(None))
    (texts / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad\.txt is not UTF-8 text"):
        scoring.evaluate_files(lm, f"{texts}/*.txt", scoring.TextScoring(None))


def test_one_command_scores_files_from_any_folder(models, texts, verb):
    output = texts / "metrics.json"
    command = (f"--checkpoint={models}/gpt2", f"--texts=*.txt,below/c.txt,{texts}/b.txt", f"--output={output}")
    finished = verb("evaluate", *command, folder=texts)
    assert finished.status == 0, finished.err
    metrics = json.loads(output.read_text())
    assert [metrics[name]["texts"] for name in ("*.txt", "below/c.txt", f"{texts}/b.txt")] == [2, 1, 1]
    missing = verb("evaluate", f"--checkpoint={models}/gpt2", "--texts=b.txt,no*.txt", folder=texts)
    assert_one_line(missing, "--texts: no file matches no*.txt")
    both = verb("evaluate", f"--checkpoint={models}/gpt2", "--texts=b.txt", "--shots=1", folder=texts)
    assert_one_line(both, "--texts")
    advice = verb("evaluate", f"--checkpoint={models}/gpt2", folder=texts)
    assert_one_line(advice, "--texts='*.txt'")
