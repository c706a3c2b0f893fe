"""Similar words of a text file, which `prepare` tokenizes and masked language modeling replaces words by."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.cache import similar_words
from plm_jax.data.prepare import caches, similar_words_file
from plm_jax.objectives.similar_words import SimilarWords
from plm_jax.runs import preparation, setup
from tests.support.data import assert_rejected, changed, open_reader

WORDS = ["great", "large", "un", "##able", "##fit", "whale", "sea", "the", "of", "a", "small"]
TEXT = "the whale of a sea unable the great whale of the sea unfit a large whale"
OBJECTIVE = objectives.MaskedLM(0.5, mask_share=0.0, random_share=0.0, similar_share=1.0, whole_words=1)


@pytest.fixture
def run(tmp_path, make_run):
    """A prepared run over documents of few words; `great` is like `large`, and `unable` like `unfit`."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": f"{TEXT} {'a ' * n}"}) + "\n" for n in range(40)))
    (tmp_path / "similar.txt").write_text("great\tlarge\tunable\tgreat\tqueer\nunable\tunfit\ngreat\tsmall\n")
    data = {
        "cache_dir": str(tmp_path / "caches"),
        "sources": {"x": config.TextTable(str(tmp_path / "text.jsonl"))},
        "similar_words": str(tmp_path / "similar.txt"),
        "length": 32,
    }
    run = make_run("x", objective=OBJECTIVE, data=data, train={"batch_size": 8})
    spec = f"wordpiece:{tmp_path}/vocab.txt"
    run = changed(run, vocabulary=config.VocabularyConfig(spec=spec, pad=0, unk=1, cls=2, sep=3, mask=4))
    preparation.prepare(run, show_progress=False)
    return run


def run_file(run):
    return pathlib.Path(run.data.similar_words)


def replace(path, before, after):
    path.write_text(path.read_text().replace(before, after))


def test_words_are_replaced_by_words_of_the_file(run):
    """`queer` is unknown, and `unable` has another number of tokens than `great`; other words get random ids."""
    vocabulary, reader = vocabularies.load_plain(run.vocabulary), open_reader(run)
    pairs = set()
    for k in range(200):
        example = reader.example(k)
        at = example["target_positions"][example["target_weights"] > 0]
        before = example["tokens"].copy()
        before[at] = example["targets"][example["target_weights"] > 0]
        for word in np.split(at, np.flatnonzero((np.diff(at) > 1) | (before[at[1:]] != 9)) + 1):
            was, now = (vocabulary.decode(tokens[word]) for tokens in (before, example["tokens"]))
            pairs |= {(was, now)} if was in ("great", "unable", "unfit") else set()
    unfit = {now for was, now in pairs if was == "unfit"}
    assert {("great", "large"), ("great", "small")} == {pair for pair in pairs if pair[0] == "great"}
    assert len(unfit) > 2


def test_rows_are_a_function_of_config_seed_and_number(run):
    rows = [open_reader(run).example(k) for k in (7, 3, 7)]
    np.testing.assert_equal(rows[0], rows[2])


def test_prepare_keeps_a_table_that_is_up_to_date(run, capsys):
    assert preparation.prepare(run, show_progress=False) is None
    assert "similar_words: up to date" in capsys.readouterr().out
    replace(run_file(run), "small", "sea")
    with pytest.raises(UserError, match=r"similar\.txt has changed since .*prepare"):
        open_reader(run)
    before = setup.build(changed(run, objective=objectives.MaskedLM())).caches
    preparation.prepare(run, show_progress=False)
    assert "similar_words: 2 words of 3 lines have similar words" in capsys.readouterr().out
    after = open_reader(run).identities
    assert after.keys() - before.keys() == {"similar_words"} and before.items() <= after.items()


def test_a_new_run_prepares_a_missing_or_changed_table(run, monkeypatch):
    commands = []
    monkeypatch.setattr(
        preparation.subprocess,
        "run",
        lambda command, env: commands.append(command) or type("Done", (), {"returncode": 0}),
    )
    preparation.prepare_if_needed(run, [])
    assert not commands
    replace(run_file(run), "small", "sea")
    preparation.prepare_if_needed(run, [])
    assert len(commands) == 1
    with pytest.raises(UserError, match=r"has changed since .*; the run was trained on it"):
        preparation.prepare_if_needed(run, [], trained="the run")
    run_file(run).unlink()  # A machine that only trains may lack it.
    preparation.prepare_if_needed(run, [])
    assert len(commands) == 1


def test_damage_is_one_line(run):
    folder = f"{run.data.cache_dir}/similar_words"
    file = pathlib.Path(folder, "words.npy")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=rf"words\.npy is damaged .*delete {re.escape(folder)} and run"):
        open_reader(run)
    replace(pathlib.Path(folder, "manifest.json"), '"values": ', '"values": 1')
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        open_reader(run)
    other = changed(run, data={"cache_dir": f"{run.data.cache_dir}-2"})
    with pytest.raises(UserError, match="there is no cache at"):
        similar_words.load(other.data.cache_dir, "", "")


def test_bad_files_are_one_line(run, tmp_path):
    vocabulary = vocabularies.load_plain(run.vocabulary)
    for text, message in ((b"great\n", r":1: expected a word"), (b"great\tlarge\n\n", ":2:"), (b"\xff\t\xff", "UTF-8")):
        run_file(run).write_bytes(text)
        with pytest.raises(UserError, match=message):
            similar_words_file.tokenize(run.data.similar_words, vocabulary)
    with pytest.raises(UserError, match=r"cannot read config\.data\.similar_words"):
        similar_words_file.tokenize(str(tmp_path / "none"), vocabulary)
    with pytest.raises(UserError, match="'similar_words'"):
        caches.check({"similar_words": run.data.sources["x"]})


def test_settings_that_need_each_other(run):
    assert_rejected("set config.data.similar_words", run, data={"similar_words": ""})


class _Lengths:
    """A vocabulary in which a word is its length, and one more than 100 after a space, as in byte-level BPE."""

    unk_id = None

    def encode(self, text):
        return [100 + len(text)] if text.startswith(" ") else [len(text)]


def test_words_are_tokenized_with_and_without_a_space(tmp_path):
    (tmp_path / "words.txt").write_text("a\tbcd\n")
    vocabulary: Any = _Lengths()
    table, num_words, num_lines = similar_words_file.tokenize(str(tmp_path / "words.txt"), vocabulary)
    words, rng = SimilarWords(table), np.random.default_rng(0)
    assert (num_words, num_lines) == (2, 1)
    np.testing.assert_array_equal([words.draw(np.array([i]), rng) for i in (1, 102)], [[3], [104]])
