"""Removal of pages with text of evaluation sets: against a search for tuples of words, and at each length."""

import gzip
import json
import random
import re

import pytest

from plm_jax.cleaning import decontamination, job, lists, report, settings
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.common.errors import UserError
from plm_jax.common.executors.in_process import InProcessExecutor
from tests.cleaning.crawls import read_lines, sentence, write_json

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBERS += ["thirteen", "fourteen", "fifteen"]


def first(number: int) -> str:
    return " ".join(NUMBERS[:number])


def rule_for(tmp_path, *rows: dict, **changes) -> decontamination.NoEvaluationText:
    """Returns the rule for rows of one evaluation file, `set.jsonl.gz`."""
    path = write_json(tmp_path / "set.jsonl.gz", list(rows))
    rule = settings.DecontaminationConfig((path,), **changes)
    return decontamination.NoEvaluationText(rule, decontamination.files(rule))


def examples(rule: decontamination.NoEvaluationText, text: str) -> list[int]:
    """Returns the lines of the examples that a page shares text with."""
    tally = Tally()
    result = rule(Page("u", text), tally)
    lines = sorted(int(name.rpartition(":")[2]) for name in tally if name.startswith("example "))
    assert (result is None) == bool(lines) == ("contaminated" in tally)
    if result is not None:
        assert result.text == text and not tally
    return lines


def test_thirteen_words_in_a_row_are_found(tmp_path):
    rule = rule_for(tmp_path, {"question": "Count: " + first(15) + "!"}, {"question": "unrelated " * 20})
    assert examples(rule, f"x {first(13)} y") == [1]
    assert examples(rule, f"x {first(12)} y {' '.join(NUMBERS[12:])}") == []
    assert examples(rule, f"x {' '.join(NUMBERS[2:])} y") == [1]
    assert examples(rule, "") == examples(rule, "one") == []


@pytest.mark.parametrize("words", [1, 2, 5, 14])
def test_the_number_of_words_can_be_set(tmp_path, words):
    rule = rule_for(tmp_path, {"text": first(15)}, words=words, min_words=1)
    assert examples(rule, f"x {first(words)} y") == [1]
    assert examples(rule, f"x {first(words - 1)} y") == []


@pytest.mark.parametrize(
    "text",
    [
        first(13).upper(),
        ", ".join(NUMBERS[:13]),
        f"«{first(13)}»".replace(" ", "\n\n"),
        first(13).replace("two", "t-w'o").replace("three", "_three_").replace("nine", "ni\u2014ne"),
        first(13).replace(" ", " ... "),
    ],
)
def test_case_punctuation_and_white_space_do_not_matter(tmp_path, text):
    assert examples(rule_for(tmp_path, {"text": f"{first(13)}."}), text) == [1]


def test_composed_and_decomposed_letters_are_the_same(tmp_path):
    rule = rule_for(tmp_path, {"text": "e\u0301te\u0301 " + first(12)})
    assert examples(rule, "\u00e9t\u00e9 " + first(12)) == [1]
    assert examples(rule, "ete " + first(12)) == []


def test_short_texts_are_searched_for_as_a_whole(tmp_path):
    rows = [{"text": first(12)}, {"text": "ten " + first(8)}, {"text": "ten nine " + first(5)}]
    rule = rule_for(tmp_path, *rows)
    assert examples(rule, f"x {first(12)} y") == [1]
    assert examples(rule, f"x {first(11)} y") == []
    assert examples(rule, f"x ten {first(8)} y") == [2]
    assert examples(rule, f"x ten nine {first(5)} y") == []
    assert examples(rule_for(tmp_path, *rows, min_words=7), f"x ten nine {first(5)} y") == [3]
    described = decontamination.describe(settings.DecontaminationConfig((str(tmp_path / "set.jsonl.gz"),)))
    assert described == [(str(tmp_path / "set.jsonl.gz"), 3, 1)]


def test_fields_are_selected_and_texts_are_not_joined(tmp_path):
    row = {"a": first(12), "b": {"c": ["thirteen", f"x {first(13)}"]}, "id": 7}
    assert examples(rule_for(tmp_path, row), f"{first(13)}") == [1]
    assert examples(rule_for(tmp_path, row, fields=("a",), min_words=13), first(13)) == []
    assert examples(rule_for(tmp_path, row, fields=("b",)), first(13)) == [1]


def test_text_files_have_an_example_per_paragraph(tmp_path):
    for name, pack in (("a.txt", bytes), ("b.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(f"{first(8)}\nten {first(4)}\n \n\nx {first(15)}\n".encode()))
    rule = settings.DecontaminationConfig((str(tmp_path / "*.txt*"), str(tmp_path / "a.txt")))
    assert [described[1:] for described in decontamination.describe(rule)] == [(2, 0), (2, 0)]
    tally = Tally()
    without = decontamination.NoEvaluationText(rule, decontamination.files(rule))
    assert without(Page("u", f"{first(8)} ten {first(4)}"), tally) is None
    assert set(tally) == {
        "contaminated",
        *(f"evaluation {tmp_path}/{name}" for name in ("a.txt", "b.txt.gz")),
        *(f"example {tmp_path}/{name}:paragraph 1" for name in ("a.txt", "b.txt.gz")),
    }


def test_shared_ngrams_are_those_of_a_direct_search(tmp_path):
    rng = random.Random(0)

    def ngrams(text: str) -> set[tuple[str, ...]]:
        words = re.sub(r"[^a-z ]", "", text.lower()).split()
        return {tuple(words[i : i + 4]) for i in range(len(words) - 3)}

    def generate(number: int) -> str:
        return " ".join(rng.choice(["a", "B", "c,", "'d'", "e.f"]) for _ in range(number))

    rows = [{"text": generate(rng.randint(4, 12))} for _ in range(40)]
    rule = rule_for(tmp_path, *rows, words=4, min_words=4)
    num_clean = 0
    for _ in range(300):
        page = generate(rng.randint(0, 12))
        expected = [line for line, row in enumerate(rows, 1) if ngrams(row["text"]) & ngrams(page)]
        assert examples(rule, page) == expected
        num_clean += not expected
    assert 30 < num_clean < 270


def test_hashes_depend_on_order_and_length():
    words = decontamination.hash_words("a b a b b a b")
    pairs = decontamination.hash_ngrams(words, 2)
    assert (pairs[0] == pairs[2] == pairs[5]) and len({*pairs.tolist()}) == 3  # ab, ba, bb
    assert not {*pairs.tolist()} & {*decontamination.hash_ngrams(words, 1).tolist()}
    assert len(decontamination.hash_ngrams(words, 8)) == 0


def test_mistakes_are_reported(tmp_path):
    def load(*changes):
        changes = ["decontamination.kind=ngrams", "badwords=None", *changes]
        return lists.load(settings.resolve("en.noclean", changes))

    path = write_json(tmp_path / "set.jsonl.gz", [{"a": first(15)}, {"b": "x"}])
    assert load(f"decontamination.paths=('{path}',)").evaluations == [(path, 2, 1)]
    with pytest.raises(UserError, match=r"--set=decontamination.paths=FILE"):
        load()
    with pytest.raises(UserError, match=r"no file at .*nothing: fix settings.decontamination.paths"):
        load(f"decontamination.paths=('{tmp_path}/nothing',)")
    with pytest.raises(UserError, match=r"set.jsonl.gz:2 has no field 'a': fix settings.decontamination.fields"):
        load(f"decontamination.paths=('{path}',)", "decontamination.fields=('a',)")
    with pytest.raises(UserError, match="has no text of 20 words"):
        load(f"decontamination.paths=('{path}',)", "decontamination.words=20", "decontamination.min_words=20")
    with pytest.raises(UserError, match=r"min_words is 8: must be at most decontamination.words, 5"):
        load(f"decontamination.paths=('{path}',)", "decontamination.words=5")


def test_a_run_reports_what_each_evaluation_set_removed(tmp_path):
    """Includes the rules of Gopher and FineWeb: each removes one page, and the order of the steps is the documented."""
    rng = random.Random(0)
    prose = ["\n".join(f"{sentence(rng)} {sentence(rng)} It is to be with him." for _ in range(5)) for _ in range(8)]
    prose[0] += f"\nPeople count {first(15)}."
    prose[1] += f"\nThey say: {first(13)}! And then it was told that they have all of it."
    prose[2] += "\nA short question about the old river bank and me?"
    prose[3] = "\n".join([prose[3].split("\n")[0]] * 3)
    prose[4] = "\n".join(f"{sentence(rng)}" for _ in range(3))
    prose[5] = prose[5].replace(".", "")
    pages = [{"url": f"http://a.org/{i}", "text": text} for i, text in enumerate(prose)]
    path = write_json(tmp_path / "crawl.jsonl.gz", pages)
    sets = [
        write_json(tmp_path / "count.jsonl.gz", [{"text": first(15)}, {"text": "unrelated " * 9}, {"text": first(3)}]),
        str(tmp_path / "questions.txt"),
    ]
    (tmp_path / "questions.txt").write_text("A short question about the old river bank!")
    rule = settings.CleaningConfig(
        repetition=settings.GopherRepetitionConfig(),
        quality=settings.GopherQualityConfig(),
        fineweb=settings.FineWebQualityConfig(),
        decontamination=settings.DecontaminationConfig(tuple(sets)),
        language=None,
    )
    output = tmp_path / "clean"
    job.clean([path], str(output), rule, InProcessExecutor(), show_progress=False)
    assert {row["text"] for row in read_lines(output, "train-*")} | {
        row["text"] for row in read_lines(output, "validation-*")
    } == {*prose[6:]}
    counts = json.loads((output / "report.json").read_text())["counts"]
    assert {step: number for step, (number, _) in report.steps(rule, counts).items()} == {
        "reading": 8, "length": 8, "newest copies": 8,
        "repetition": 7, "quality": 6, "FineWeb": 5, "decontamination": 2,
    }  # fmt: skip
    page = (output / "report.md").read_text()
    assert f"| {sets[0]} | 2 | 3 | 1 | 1 |" in page and f"| {sets[1]} | 1 | 1 | 1 | 0 |" in page
    for reason in ("repeated_lines", "short_page", "few_punctuated_lines", "contaminated"):
        assert report.reasons(rule)[reason][2] in page
    before = json.loads((output / "manifest.json").read_text())["identity"]
    (tmp_path / "questions.txt").write_text("Another question about the same old river bank!")
    job.clean([path], str(output), rule, InProcessExecutor(), show_progress=False)
    assert json.loads((output / "manifest.json").read_text())["identity"] != before
    assert f"| {sets[1]} | 0 | 1 | 0 | 0 |" in (output / "report.md").read_text()
