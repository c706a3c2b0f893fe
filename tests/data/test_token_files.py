"""Tokenized documents in the formats of nanoGPT, OLMo, NumPy and llm.c."""

import dataclasses
import itertools
import json
import os
import pathlib

import numpy as np
import pytest
import tokenizers

from plm_jax import config, data
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import staleness
from plm_jax.data.sources import corpus, files
from plm_jax.runs import preparation
from tests.support.caches import contents

END = 50256
SPLITS = {
    "train": ["The house passed a bill.", " Déjà vu 🙂 in Ærø.\n\nTwo lines. ", "ok", "ok", "a" * 300] * 9,
    "validation": ["The senate did not pass the bill. It met again in May.", "no"],
}
GPT2 = [str(pathlib.Path(data.__file__).parent / "gpt2" / name) for name in ("vocab.json", "merges.txt")]


@pytest.fixture(scope="module")
def tokenized():
    """Ids of each split's documents, by the tokenizers library."""
    tokenizer = tokenizers.ByteLevelBPETokenizer(*GPT2)
    return {split: [tokenizer.encode(text).ids for text in texts] for split, texts in SPLITS.items()}


def llmc_header(number, magic, version):
    return np.array([magic, version, number, *[0] * 253], "<i4").tobytes()


FORMATS = {
    "nanogpt.bin": lambda ids: np.array(ids, "<u2").tobytes(),
    "olmo.npy": lambda ids: np.array(ids, "<u4").tobytes(),
    "llmc.bin": lambda ids: llmc_header(len(ids), 20240520, 1) + np.array(ids, "<u2").tobytes(),
    "llama3.bin": lambda ids: llmc_header(len(ids), 20240801, 7) + np.array(ids, "<u4").tobytes(),
}


def write(path, documents):
    """Writes documents in the format of a file's name; llm.c's files have END before each document."""
    is_before = path.name in ("llmc.bin", "llama3.bin")
    ids = [i for document in documents for i in ([END, *document] if is_before else [*document, END])]
    if path.name == "numpy.npy":
        np.save(path, np.array(ids, ">i8"))
    else:
        path.write_bytes(FORMATS[path.name](ids))
    return str(path)


@pytest.fixture
def run(make_run):
    """`run(source)` returns a run over GPT-2's tokens of a source `a`."""

    def make(source, **settings):
        changed_run = make_run("a", eos=END, vocab_size=END + 1, data=settings)
        return dataclasses.replace(
            changed_run,
            data=dataclasses.replace(changed_run.data, sources={"a": source}),
            vocabulary=config.VocabularyConfig(spec=f"bpe:{','.join(GPT2)}", eos=END),
        )

    return make


def prepare(run, folder):
    """Returns the files of a cache and its counts, without sentences, rows of the source and checksums."""
    preparation.prepare(run, str(folder), show_progress=False)
    ignored = ("manifest.json", "files.json", "checksums.npy", "origin.npy")
    names = contents(folder).items()
    counts = cache.read_manifest(f"{folder}/a")["splits"]
    return (
        {name: data for name, data in names if os.path.basename(name) not in ignored and "sentence" not in name},
        {split: [counts[split][name] for name in ("documents", "tokens", "bytes")] for split in counts},
    )


def test_tokens_give_the_cache_of_their_text(run, few_shards, tokenized, tmp_path):
    for split, texts in SPLITS.items():
        (tmp_path / split).mkdir()
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    text = config.TextTable(f"{tmp_path}/train.jsonl", validation=f"{tmp_path}/validation.jsonl")
    expected = prepare(run(text), tmp_path / "text")
    for name in (*FORMATS, "numpy.npy"):
        train, validation = (write(tmp_path / split / name, tokenized[split]) for split in SPLITS)
        dtype = "uint32" if name == "olmo.npy" else "uint16"
        tokens = config.TokenFiles(train, END, dtype, validation=validation)
        assert prepare(run(tokens), tmp_path / f"of_{name}") == expected, name
        sentences = cache.open_source(f"{tmp_path}/of_{name}", "a").splits["validation"]
        np.testing.assert_array_equal(sentences.sentences, sentences.documents[:-1])


def test_equal_documents_stay_in_one_split(run, tokenized, tmp_path):
    path = write(tmp_path / "nanogpt.bin", [*tokenized["train"], *([i] for i in range(30))])
    preparation.prepare(run(config.TokenFiles(path, END), validation_fraction=0.3), str(tmp_path), show_progress=False)
    splits = cache.open_source(str(tmp_path), "a").splits

    def documents(split):
        bounds = np.asarray(split.documents).tolist()
        return {bytes(split.tokens(begin, end)) for begin, end in itertools.pairwise(bounds)}

    assert len(documents(splits["validation"])) >= 2
    assert not documents(splits["train"]) & documents(splits["validation"])


def test_documents_are_read_across_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr("plm_jax.data.sources.token_files._READ_BYTES", 6)
    path = write(tmp_path / "nanogpt.bin", [[1, 2, 3, 4, 5, 6, 7], [8], [], [9, 10]])
    source = config.TokenFiles(path, END)
    records = [(record.tokens.tolist(), record.row_number) for record in files.read(source)]
    assert records == [([1, 2, 3, 4, 5, 6, 7], 1), ([8], 2), ([9, 10], 4)]
    (tmp_path / "nanogpt.bin").write_bytes(np.array([1, 2, END, 3], "<u2").tobytes())
    assert [record.tokens.tolist() for record in files.read(source)] == [[1, 2], [3]]
    limited = dataclasses.replace(source, max_tokens=1)
    with pytest.raises(UserError, match=r"bin:document 1 has 2 tokens, more than 1: check document_end, or raise max_"):
        list(files.read(limited))
    skipped = corpus.Skipped()
    assert [record.tokens.tolist() for record in files.read(limited, skipped=skipped)] == [[3]]
    assert (skipped.rows, skipped.bad) == (2, 1)


def test_bytes_are_counted_after_an_eos_within_a_document(run, tokenized, tmp_path):
    """If another id ends documents, eos is a token like any other."""
    documents = [[*document, END, *document] for document in tokenized["train"]]
    ids = [i for document in documents for i in [*document, 0]]
    (tmp_path / "a.bin").write_bytes(np.array(ids, "<u2").tobytes())
    source = config.TokenFiles(f"{tmp_path}/a.bin", document_end=0)
    preparation.prepare(run(source, validation_fraction=0.0), str(tmp_path / "cache"), show_progress=False)
    counts = cache.read_manifest(f"{tmp_path}/cache/a")["splits"]["train"]
    decoded = tokenizers.ByteLevelBPETokenizer(*GPT2).decode
    num_bytes = [len((decoded(each[: each.index(END)]) * 2).encode()) for each in documents]
    assert counts["tokens"] == sum(map(len, documents))
    assert counts["bytes"] - sum(num_bytes) in (0, len("<|endoftext|>") * len(documents))


def test_a_changed_file_is_noticed(run, tokenized, tmp_path):
    path = tmp_path / "nanogpt.bin"
    tokens_run = run(config.TokenFiles(write(path, tokenized["train"]), END), cache_dir=f"{tmp_path}/cache")
    preparation.prepare(tokens_run, show_progress=False)
    assert staleness.compare(tokens_run.data, "a") == staleness.Comparison()
    write(path, tokenized["train"][1:])
    assert staleness.compare(tokens_run.data, "a").changed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.bin",
            b"abc",
            "a.bin is damaged, or dtype is wrong: 3 bytes are not a whole number of tokens of type",
        ),
        ("a.bin", llmc_header(3, 20240520, 1) + b"abcd", "4 bytes are not 3 tokens of type uint16"),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00{'descr", "a.npy is damaged: its header is not that of a .npy file"),
        ("a.txt", b"abc", "a.txt: expected tokens in a .npy or .bin file; for text, use TextFiles or TextTable"),
        ("a.bin", b"\xff\xff" * 9, "has the id 65535, but the vocabulary has 50,257 ids: check the source's dtype"),
        ("a.bin", b"", "has text: check its path"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(name, content, message, run, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        preparation.prepare(run(config.TokenFiles(f"{tmp_path}/{name}", END)), str(tmp_path / "c"), show_progress=False)


def test_arrays_of_rows_or_floats_are_rejected(tmp_path):
    for array in (np.zeros((2, 3), np.uint16), np.zeros(3)):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(UserError, match=r"a.npy has an array of shape .*: expected integers in one dimension"):
            list(files.read(config.TokenFiles(f"{tmp_path}/a.npy", END)))


def test_settings_that_need_text_are_rejected(run, tokenized, tmp_path):
    source = config.TokenFiles(write(tmp_path / "nanogpt.bin", tokenized["train"]), END)
    with pytest.raises(UserError, match="layout 'sentence_pairs' needs sentences, which tokenized documents such as"):
        run(source, layout=config.SentencePairs())
    with pytest.raises(UserError, match="segmenters names 'a', which has tokens instead of text: remove it"):
        run(source, segmenters={"a": "jieba"})
    training = dataclasses.replace(run(source).vocabulary, spec=f"bpe:{tmp_path}/v,{tmp_path}/m", train_size=300)
    with pytest.raises(UserError, match=r"source 'a' is tokenized, so no vocabulary can be trained on it: set"):
        preparation.prepare(dataclasses.replace(run(source), vocabulary=training), str(tmp_path), show_progress=False)
