"""Named columns of a cache: a source's own, where documents come from, checksums, and caches of before."""

import dataclasses
import itertools
import json
import re
import zlib
from typing import ClassVar

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.common.executors.in_process import InProcessExecutor
from plm_jax.common.executors.local import LocalExecutor
from plm_jax.data import cache
from plm_jax.data.cache import columns, file_format, vectors
from plm_jax.data.layouts import RowRequest, index
from plm_jax.data.sources.corpus import Corpus, Record
from plm_jax.runs import preparation
from tests.support import caches

EOS = 256
NOTES = [cache.Column("label", "<i2", "document"), cache.Column("scores", "<f4", "value")]
NOTES += [cache.Column("kinds", "<u1", "token"), cache.Column("line_starts", "<u4", "start")]


def lines(number):
    """The lines of a document; of the text of bytes each byte is a token."""
    return [f"line {i} of {number} " + "x" * (number % 7) for i in range(1 + number % 4)]


def noted(number):
    """Returns the values of a document in the columns of the source."""
    sizes = [len(line) + 1 for line in lines(number)]
    return {
        "label": number - 20,
        "scores": [number / 8] * (number % 3),
        "kinds": [i % 5 for i in range(sum(sizes) - 1)],
        "line_starts": np.cumsum([0, *sizes[:-1]]).tolist(),
    }


@dataclasses.dataclass(frozen=True)
class Noted(config.Source):
    """A source of a test's own, with all that it takes in this file."""

    kind: ClassVar[str] = "tests_noted"
    documents: int = 40

    def open(self, name):
        return NotedCorpus(self.documents)


class NotedCorpus(Corpus):
    splits = ("train",)
    columns = tuple(NOTES)

    def __init__(self, documents):
        self._documents = documents

    def shards(self, split, most=1):
        return [0, 1, 2]

    def read(self, split, shard, skipped=None, advance=lambda size: None):
        for row_number, number in enumerate(range(shard, self._documents, 3), 1):
            advance(1)
            yield Record("\n".join(lines(number)), None, shard, row_number, noted(number))

    def fingerprint(self):
        return [str(self._documents)]


@pytest.fixture
def run(make_run, tmp_path):
    """`run(source)`: a run over bytes of a source `a`."""

    def run(source, **data):
        data = {"validation_fraction": 0.2, "sources": {"a": source}, **data}
        return make_run("a", eos=EOS, vocab_size=257, data=data)

    return run


def test_columns_of_a_users_source_reach_the_reader(run, tmp_path):
    """Labels, ragged numbers, something of each token, starts of parts: no line of ours knows them."""
    noted_run = run(Noted())
    noted_run = config.from_dict(json.loads(json.dumps(config.to_dict(noted_run))))
    preparation.prepare(noted_run, show_progress=False)
    source = cache.open_source(str(tmp_path), "a")
    read_numbers = []
    for name, split in source.splits.items():
        assert set(split.columns) == {"sentence_starts", "first_bytes", "origin", *(column.name for column in NOTES)}
        for document, (start, stop) in enumerate(itertools.pairwise(split.documents)):
            number = int(split.of_document("label", document)) + 20
            assert bytes(split.tokens(start, stop).astype(np.uint8)).decode() == "\n".join(lines(number))
            for column in NOTES:
                values = split.of_document(column.name, document)
                assert values.tolist() == noted(number)[column.name]
                assert column.kind == "start" or values.dtype == column.dtype
            assert source.origin(name, document) == (f"part {number % 3}", number // 3 + 1)
            read_numbers.append(number)
    assert sorted(read_numbers) == list(range(40))
    cache.verify(str(tmp_path), "a")
    described = cache.read_manifest(str(tmp_path / "a"))["columns"]
    assert {"name": "scores", "dtype": "<f4", "kind": "value"} in described


class Lines(objectives.Objective):
    """Asks a layout for the test's own starts."""

    architectures: ClassVar[tuple[str, ...]] = ("decoder",)
    targets: ClassVar[str] = "lines"
    reads: ClassVar[tuple[str, ...]] = ("line_starts",)

    def apply(self, example, special, rng):
        return example


def test_an_objective_reads_a_column_of_a_users_source(run, tmp_path):
    preparation.prepare(run(Noted()), show_progress=False)
    source = cache.open_source(str(tmp_path), "a")
    special = objectives.Special(eos=EOS, vocab_size=257)
    rows = config.Blocks().open(RowRequest.of(source, "train", 50, objectives.BoundObjective(Lines(), special)))
    for item in range(rows.num_rows):
        example = rows.example(item, np.random.default_rng(0))
        tokens, real = example["tokens"].tolist(), example.get("mask", np.ones(50)).sum()
        begins = [i for i in range(1, int(real)) if tokens[i - 1] in (EOS, ord("\n"))]
        assert [i for i in example["line_starts"].tolist() if i] == begins


@pytest.mark.parametrize("executor", [InProcessExecutor(), LocalExecutor(2)])
def test_engines_write_the_same_columns(executor, run, tmp_path):
    noted_run = run(Noted())
    for name, each in (("one", None), ("other", executor)):
        preparation.prepare(noted_run, str(tmp_path / name), show_progress=False, executor=each)
    assert caches.contents(tmp_path / "one" / "a") == caches.contents(tmp_path / "other" / "a")


def test_a_cache_records_the_file_and_line_of_each_document(run, tmp_path):
    texts = {name: [f"{name} {i} ends. It ended" for i in range(30)] for name in ("one", "two")}
    for name, lines in texts.items():
        rows = "".join(json.dumps({"text": text}) + "\n" + "\n" * (i % 2) for i, text in enumerate(lines))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    preparation.prepare(run(config.TextTable(f"{tmp_path}/*.jsonl")), show_progress=False)
    source, locations = cache.open_source(str(tmp_path), "a"), []
    for name, split in source.splits.items():
        for document, (start, stop) in enumerate(itertools.pairwise(split.documents)):
            file, line = source.origin(name, document)
            text = bytes(split.tokens(start, stop).astype(np.uint8)).decode()
            assert json.loads((tmp_path / file).read_text().split("\n")[line - 1])["text"] == text
            locations.append((file, line))
    assert len(set(locations)) == 60


def test_damage_of_any_file_is_noticed(run, tmp_path):
    preparation.prepare(run(Noted()), show_progress=False)
    files = [path for path in sorted((tmp_path / "a").rglob("*")) if path.is_file()]
    assert {path.name for path in files} >= {"manifest.json", "checksums.npy", "scores.offsets.npy", "unigram.npy"}
    for path in files:
        whole = path.read_bytes()
        # The last bytes of values; of records, whose file is padded, some of the first.
        last = 300 if path.suffix == ".array_record" else len(whole) - 3
        for at in (last, last - 1):
            caches.flip(path, at)
            with pytest.raises(UserError, match=rf"{re.escape(str(path))} is damaged"):
                cache.verify(str(tmp_path), "a")
            path.write_bytes(whole)
        if path.suffix == ".npy":  # Short ones are looked at whenever a cache is opened.
            caches.flip(path, last)
            with pytest.raises(UserError, match=rf"{re.escape(str(path))} is damaged"):
                cache.open_source(str(tmp_path), "a")
            path.write_bytes(whole)
    cache.verify(str(tmp_path), "a")


def test_swapped_token_files_are_detected(write_source, tmp_path, monkeypatch):
    """Each of them is whole."""
    monkeypatch.setattr(file_format, "RECORD_TOKENS", 8)
    monkeypatch.setattr(file_format, "SHARD_RECORDS", 2)
    write_source("a", {"train": [list(range(32))]})
    one, two = (tmp_path / "a/train" / file_format.shard_name(i) for i in (0, 1))
    one.rename(tmp_path / "kept"), two.rename(one), (tmp_path / "kept").rename(two)
    with pytest.raises(UserError, match=r"tokens-00000.array_record is damaged \(its bytes have changed"):
        cache.verify(str(tmp_path), "a")


def test_damage_of_an_index_is_noticed(write_sentences, tmp_path):
    source = write_sentences({"train": [[3, 4, 5]] * 30})
    special = objectives.Special(pad=0, cls=1, sep=2, mask=3, vocab_size=60_000)
    config.FullSentences().open(RowRequest.of(source, "train", 16, objectives.get("masked_lm", special)))
    (folder,) = (tmp_path / "a/index").iterdir()
    index.verify(str(folder))
    caches.flip(folder / "starts.npy", 200)
    with pytest.raises(UserError, match=r"starts.npy is damaged"):
        index.verify(str(folder))


def test_long_vectors_have_a_checksum_for_each_block(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 64)
    monkeypatch.setattr(vectors, "_CHECKSUM_BYTES", 100)
    values = np.arange(1000)
    file = cache.NpyAppender(str(tmp_path / "a.npy"))
    for part in np.split(values, [0, 3, 3, 20, 555]):
        file.append(part)
    assert (file.close(), len(file.checksums)) == (1000, 125)
    crc32s = file.checksums.tolist()
    assert crc32s == [zlib.crc32(values[at : at + 8]) for at in range(0, 1000, 8)]
    assert max(map(len, file.checksums.parts())) == 25
    expected = vectors.Checksums(np.array(crc32s), 0, 125, 64)
    assert vectors.load(str(tmp_path / "a.npy"), 1000, checksums=expected).tolist() == values.tolist()
    for checksums in ([*crc32s[:-1], 0], crc32s[:-1]):
        changed = vectors.Checksums(np.array(checksums), 0, len(checksums), 64)
        with pytest.raises(UserError, match="its bytes have changed"):
            vectors.load(str(tmp_path / "a.npy"), 1000, checksums=changed)


def test_reserved_names_of_columns_are_rejected(run, monkeypatch):
    monkeypatch.setattr(NotedCorpus, "columns", (columns.Column("documents", "<i2", "document"),))
    with pytest.raises(UserError, match="'documents'"):
        preparation.prepare(run(Noted()), show_progress=False)
