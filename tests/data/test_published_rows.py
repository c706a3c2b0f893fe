"""Every config's rows against those of its family's published rule, over the same documents.

Where the rule draws nothing they are the same rows, token by token; else the shares of what they look like are, within
three standard errors. A config or a size without a line in `PUBLISHED` fails.
"""

import dataclasses
import fnmatch
import functools
import pathlib
import random

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common import storage, users
from plm_jax.config import files as pages
from plm_jax.data import cache, reader
from plm_jax.data.cache import similar_words
from plm_jax.data.vocabularies import words
from plm_jax.objectives.similar_words import pack
from tests.support import caches
from tests.support import published_rows as rules

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
LENGTH = 64
# Text is of these ids alone: no family's special ones.
FIRST, LAST = 200, 1000


# What a row of a batch shows of the text that it was made of.


def masked(row, run):
    """Returns a row of a masked language model with its targets restored."""
    del run
    tokens, at = row["tokens"].copy(), row["target_positions"][row["target_weights"] > 0]
    tokens[at] = row["targets"][row["target_weights"] > 0]
    real = row["mask"] > 0
    assert real[: real.sum()].all()
    shown = {"tokens": tokens[real].tolist()}
    for key, name in (("token_types", "types"), ("segment_ids", "segments")):
        shown |= {name: row[key][real].tolist()} if key in row else {}
    return shown | ({"label": int(row["pair_label"])} if "pair_label" in row else {})


def causal(row, run):
    """Returns the inputs of a decoder, and whether each next token is predicted."""
    del run
    learnt = row["target_weights"] > 0
    real = row["segment_ids"] > 0 if "segment_ids" in row else learnt
    assert (row["targets"][:-1] == row["tokens"][1:])[learnt[:-1]].all()
    shown = {"tokens": row["tokens"][real].tolist(), "learnt": learnt[real].tolist()}
    for key, name in (("segment_ids", "segments"), ("positions", "positions")):
        shown |= {name: row[key][real].tolist()} if key in row else {}
    return shown


def denoised(row, run):
    """Returns the targets of a denoiser; checks the special tokens of its inputs."""
    targets = row["targets"][row["target_weights"] > 0]
    inputs, special = row["tokens"][row["mask"] > 0], run.vocabulary
    assert (inputs[0], inputs[-1]) == (special.bos, special.eos)
    assert row["decoder_tokens"][0] == special.eos
    assert (row["decoder_tokens"][1 : len(targets)] == targets[:-1]).all()
    assert not np.isin(inputs[1:-1], [special.bos, special.eos]).any()
    return {"tokens": targets.tolist()}


def spans(row, run):
    """Returns the inputs of a T5 with the spans of the targets restored, and eos."""
    inputs, targets = row["tokens"][row["mask"] > 0].tolist(), row["targets"][row["target_weights"] > 0].tolist()
    size = run.model.embedding.vocab_size
    sentinels = range(size - 1, size - 1 - run.vocabulary.sentinels, -1)
    assert inputs[-1] == targets[-1] == run.vocabulary.eos
    spans_by_sentinel, cut = {}, None
    for token in targets[:-1]:
        if token in sentinels:
            cut = spans_by_sentinel.setdefault(token, [])
        else:
            cut.append(token)
    return {"tokens": [t for token in inputs for t in spans_by_sentinel.get(token, [token])]}


def blanks(row, run):
    """Returns part A of a GLM's row with its masks replaced by part B."""
    prefix = int(row["prefix_lengths"])
    fillings = {}
    for at, target in zip(row["target_positions"], row["targets"], strict=True):
        if at:
            of_mask = fillings.setdefault(int(row["positions"][at]), [])
            of_mask += [] if target == run.vocabulary.eop else [int(target)]
            assert (row["tokens"][at] == run.vocabulary.sop) == (row["block_positions"][at] == 1)
    parts = (fillings.get(i, [int(token)]) for i, token in enumerate(row["tokens"][:prefix]))
    return {"tokens": [token for part in parts for token in part]}


def read_on(row, run):
    """Returns the words that the forward direction of an ELMo reads and predicts."""
    numbers = spellings(run.model.embedding.max_characters)
    real = row["target_weights"][0] > 0
    inputs = [numbers[tuple(spelt)] for spelt in row["characters"][0][real].tolist()]
    return {"tokens": inputs, "next": row["targets"][0][real].tolist()}


def reused(row, run):
    """Returns the half of an XLNet's row that its memory spans; checks the special tokens of the pair after it."""
    special, size = run.vocabulary, len(row["tokens"])
    assert (row["tokens"][-2:] == [special.sep, special.cls]).all() and row["token_types"][-1] == 2
    assert (row["tokens"][size // 2 :] == special.sep).sum() == 2
    return {"tokens": row["tokens"][: size // 2].tolist()}


def answered(row, run):
    """Returns both rows of an encoder-decoder, and the number of the example of each input token."""
    del run
    real, said = row["segment_ids"] > 0, row["target_weights"] > 0
    assert (row["decoder_tokens"][said & (row["decoder_positions"] == 0)] == 0).all()
    shown = {"tokens": row["tokens"][real].tolist(), "next": row["targets"][said].tolist()}
    return shown | {"segments": row["segment_ids"][real].tolist()}


def glm(num_tokens, *, eos, cls=()):
    return blanks, rules.joined(lambda length: num_tokens, end=[eos], begin=cls), {"length": None}


# A config's name → what its rows show, the published rule with the published ids, and, where it is not LENGTH, the
# length of the rows; None: the config's.
PUBLISHED = {
    "albert.py:*": (masked, rules.bert_pairs(2, 3, swap=True), {"drawn": (2, 3)}),
    "bart.py:*": (denoised, rules.fairseq_blocks(0, 2, "complete_doc", []), {}),
    "bert.py:*": (masked, rules.bert_pairs(101, 102), {"drawn": (101, 102)}),
    "chatglm.py:6b": glm(2047, eos=2),
    "chatglm.py:2-6b": (causal, rules.packed([64_790, 64_792], [2]), {}),
    "chatglm.py:3-6b": (causal, rules.packed([64_790, 64_792], [2]), {}),
    "chatglm.py:4-9b": (causal, rules.packed([151_331, 151_333], [151_329]), {}),
    "deberta.py:*": (masked, rules.joined(lambda length: length - 2, begin=[1], ends=[2]), {}),
    "distilbert.py:*": (masked, rules.distilbert_lines(101, 102, 100), {}),
    "distilgpt2.py:*": (causal, rules.packed([], [50_256]), {}),
    "distilroberta.py:*": (masked, rules.distilbert_lines(0, 2, 3), {}),
    "electra.py:*": (masked, rules.electra_segments(101, 102), {"drawn": (101, 102)}),
    "ernie.py:1.0*": (masked, rules.bert_pairs(1, 2), {"drawn": (1, 2)}),
    "ernie.py:2.0*": (masked, rules.bert_pairs(101, 102), {"drawn": (101, 102)}),
    "elmo.py:*": (read_on, rules.bilm_stream(0, 1), {"length": 20}),
    "eurobert.py:*": (masked, rules.next_fit(rules.distilbert_lines(128_000, 128_001, None)), {}),
    "glm.py:base": glm(511, eos=0, cls=[101]),
    "glm.py:large": glm(511, eos=0, cls=[101]),
    "glm.py:*": glm(511, eos=50_256, cls=[50_259]),
    "gpt1.py:*": (causal, rules.packed([], [1]), {}),
    "gpt2.py:*": (causal, rules.packed([], [50_256]), {}),
    "gpt3.py:*": (causal, rules.packed([], [50_256]), {}),
    "llama.py:3*": (causal, rules.packed([128_000], [128_001], apart=True), {}),
    "llama.py:*": (causal, rules.packed([1], [2]), {}),
    "macbert.py:*": (masked, rules.bert_pairs(101, 102, swap=True), {"drawn": (101, 102)}),
    "modernbert.py:mm-*": (masked, rules.next_fit(rules.distilbert_lines(2, 1, 3)), {}),
    "modernbert.py:*": (masked, rules.next_fit(rules.distilbert_lines(50_281, 50_282, 50_280)), {}),
    "mpnet.py:*": (masked, rules.fairseq_blocks(0, 2, "complete", [2]), {}),
    "mt5.py:*": (spans, rules.joined(rules.span_text, ends=[1]), {}),
    "palm.py:*": (causal, rules.packed([], [1]), {}),
    "roberta.py:*": (masked, rules.fairseq_blocks(0, 2, "complete", [2]), {}),
    "xlm.py:xnli15-*": (masked, rules.xlm_stream(1), {}),
    "xlm.py:*": (masked, rules.xlm_stream(1, languages=False), {}),
    "xlnet.py:*": (reused, rules.reused_halves(7), {}),
    "xlm_r.py:*": (masked, rules.fairseq_blocks(0, 2, "complete", [2]), {}),
    "spanbert.py:*": (masked, rules.spanbert_documents(101, 102), {}),
    "t5.py:*": (spans, rules.joined(rules.span_text, ends=[1]), {}),
    "transformer.py:*": (denoised, rules.joined(lambda length: length - 2, begin=[3], ends=[1]), {}),
    # The demos are no published recipes: blocks, in BERT's and ELECTRA's of documents that do not see each other.
    "demo.py:bart": (denoised, rules.joined(lambda length: length - 2, begin=[3], ends=[1]), {}),
    "demo.py:bert": (masked, rules.separate([3]), {}),
    "demo.py:deberta": (masked, rules.joined(lambda length: length - 2, begin=[2], ends=[3]), {}),
    "demo.py:electra": (masked, rules.separate([3]), {}),
    "demo.py:elmo": (read_on, rules.bilm_stream(0, 1), {"length": 20}),
    "demo.py:glm": glm(61, eos=1, cls=[4]),
    "demo.py:gpt2": (causal, rules.packed([], [1]), {}),
    "demo.py:t5": (spans, rules.joined(rules.span_text, ends=[1]), {}),
    "demo.py:xlm": (masked, rules.xlm_stream(3), {}),
    "demo.py:xlnet": (reused, rules.reused_halves(5), {}),
    "demo.py:t5-tasks": (answered, rules.text_to_text(24, 1), {}),
}


def sizes():
    """The names of all sizes of all configs."""
    for path in sorted(CONFIGS.glob("*.py")):
        module = users.module(str(path))
        yield from (f"{path.name}:{size}" for size in getattr(module, "SIZES", getattr(module, "RUNS", ())))


@functools.cache
def load(name):
    return config.from_dict(pages.load(f"{CONFIGS}/{name}").config())


def kinds():
    """One size of all those of a file whose rows are made alike."""
    names = {}
    for name in sizes():
        run = load(name)
        parts = (name.partition(":")[0], run.objective, run.data.layout, run.data.inputs_targets, run.vocabulary)
        names.setdefault(repr(parts), name)
    return list(names.values())


def line(name):
    """Returns the entry of `PUBLISHED` for the name of a config, by the first pattern that matches."""
    return next(entry for pattern, entry in PUBLISHED.items() if fnmatch.fnmatch(name, pattern))


def test_every_config_has_a_line():
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in PUBLISHED) for name in sizes())
    assert all(any(fnmatch.fnmatch(name, pattern) for name in sizes()) for pattern in PUBLISHED)


WORDS = ["<S>", "</S>", "<UNK>", *(f"w{i}" for i in range(3, LAST))]


@functools.cache
def spellings(length):
    """Returns the number of each word of an ELMo, by its characters."""
    return {tuple(spelt): number for number, spelt in enumerate(words.characters(WORDS, length).tolist())}


def corpus(unknown, count, seed=0):
    """Documents of sentences: short and long ones, of a sentence and of many; a few are mostly unknown."""
    rng, number, documents = np.random.default_rng(seed), 0, []
    for _ in range(count):
        is_unknown, document = rng.random() < 0.05, []
        longest = rng.choice([6, 20, 90], p=[0.3, 0.6, 0.1])
        for size in rng.integers(1, longest + 1, rng.choice([1, 3, 12])):
            tokens = FIRST + (number + np.arange(size)) % (LAST - FIRST)
            number += size
            tokens[(rng.random(size) < 0.55) & is_unknown] = unknown
            document.append(tokens.tolist())
        documents.append(document)
    return documents


def write(folder, run, documents):
    """A cache of source `a` with the config's vocabulary, the documents as both splits; the run that reads it."""
    ids = {name: getattr(run.vocabulary, name) for name in (*config.SPECIALS, "sentinels", "lowercase")}
    size, kind, files = run.model.embedding.vocab_size, run.vocabulary.spec.partition(":")[0], {}
    if kind == "words":
        size = LAST
        (folder / "vocabulary").mkdir()
        (folder / "vocabulary" / "words.txt").write_text("\n".join([*WORDS, ""]))
        files = {"words.txt": storage.sha256(str(folder / "vocabulary" / "words.txt"))}
    tokens_and_starts = [(rules.flat(document), np.cumsum([0, *map(len, document[:-1])])) for document in documents]
    vocabulary = {"kind": kind, "files": files, **ids}
    has_both = run.data.has_inputs_targets
    caches.write(
        folder, "a", dict.fromkeys(cache.SPLITS, tokens_and_starts), size, vocabulary, has_inputs_targets=has_both
    )
    source = next(iter(run.data.sources.values()))
    data = dataclasses.replace(run.data, cache_dir=str(folder), sources={"a": source}, mixture={}, segmenters={})
    if data.similar_words:
        data = dataclasses.replace(data, similar_words=str(folder / "similar_words.txt"))
        (folder / "similar_words.txt").write_text("")
        similar_words.save(str(folder), data.similar_words, "v", pack({}))
    train = dataclasses.replace(run.train, batch_size=2, microbatches=1, phases=())
    return dataclasses.replace(run, data=data, train=train)


@pytest.mark.parametrize("name", kinds())
def test_rows_are_the_published_ones(name, tmp_path):
    shown, rule, options = line(name)
    run = load(name)
    is_drawn = "drawn" in options or getattr(run.objective, "short_probability", 0.0)
    documents = corpus(run.vocabulary.unk or FIRST, 300 if is_drawn else 100)
    if run.data.has_inputs_targets:
        documents = [[document[0][:60], document[-1][:30]] for document in documents]
    run = write(tmp_path, run, documents)
    length = options.get("length", LENGTH) or run.data.length
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, length=length))
    opened = reader.Reader(config.reader_config(run))
    batches = opened.in_order("validation", 1)
    rows = [shown({key: value[0] for key, value in batch.items()}, run) for batch in batches]
    expected = rule(documents, length, random.Random(0))
    if marks := options.get("drawn"):
        expected += [row for seed in range(1, 20) for row in rule(documents, length, random.Random(seed))]
        assert abs(20 * len(rows) / len(expected) - 1) < 0.05
        got, want = (rules.shares(some, *marks, length) for some in (rows, expected))
        assert {key: (got[key].mean(), want[key].mean()) for key in got if not rules.within(got[key], want[key])} == {}
    elif short := getattr(run.objective, "short_probability", 0.0):  # A stretch of a row's text is all that is left.
        same = np.mean([got == want for got, want in zip(rows, expected, strict=True)])
        assert abs(1 - same - short) <= 3 * np.sqrt(short * (1 - short) / len(rows))
        assert {row["tokens"][0] for row in rows} == {expected[0]["tokens"][0]}
    else:
        assert rows == expected
    blank = reader.blank_batch(config.reader_config(config.in_validation(run)), length)
    assert {key: (value.shape[1:], value.dtype) for key, value in blank.items() if key != "digest"} == {
        key: (value.shape[1:], value.dtype) for key, value in next(opened.in_order("validation", 1)).items()
    }
