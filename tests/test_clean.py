"""The verb `clean`: its result, and each mistake as one line and status 2."""

import json

import pytest

LINES = [
    f"Page {i} has this line alone. It tells of the village teacher. The captain wrote {i} letters." for i in range(9)
]


@pytest.fixture
def crawl(tmp_path):
    path = tmp_path / "crawl.jsonl"
    path.write_text(
        "".join(json.dumps({"text": line, "url": f"http://a.org/{i}"}) + "\n" for i, line in enumerate(LINES))
    )
    return path


def test_cleaned_pages_are_ready_for_prepare(verb, crawl, tmp_path):
    output = tmp_path / "clean"
    arguments = [f"--input={crawl}", f"--output={output}", "--set=badwords=None", "--set=shards=1"]
    finished = verb("clean", *arguments, "--", "--workers=1")
    assert finished.status == 0, finished.err
    assert "| near-duplicates" not in finished.out and "| language | 9 |" in finished.out, finished.out
    assert "read: 100%" in finished.err and "write: 100%" in finished.err
    assert sorted(path.name for path in output.iterdir()) == [
        "manifest.json",
        "report.json",
        "report.md",
        "report.svg",
        "train-00000.jsonl.gz",
    ]
    several = verb("clean", *arguments, f"--output={tmp_path}/several", "--", "--workers=2")
    assert several.status == 0 and "Traceback" not in several.err, several.err
    assert "read: 100%" in several.err and "write: 100%" in several.err
    outputs = [folder / "train-00000.jsonl.gz" for folder in (output, tmp_path / "several")]
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    # The same folder by another name, as an input, and an option without its dashes.
    (tmp_path / "link").symlink_to(".")
    for mistake in ([f"--input={output}/train-*", f"--output={tmp_path}/link/clean"], ["--", "workers=2"]):
        refused = verb("clean", *arguments, "--set=shards=2", *mistake)
        assert refused.status == 2 and len(refused.errors) == 1, refused.err
    again = verb("clean", *arguments)
    assert again.status == 0 and again.out == f"up to date at {output}\n"
    strict = verb("clean", *arguments, "--set=lines.min_words=99")
    assert strict.status == 2 and len(strict.errors) == 1 and "no page for training passed" in strict.errors[0]
    assert (output / "train-00000.jsonl.gz").exists()


@pytest.mark.parametrize(
    "flags, says",
    [
        ([], "--input is missing"),
        (["--input=CRAWL"], "--output is missing"),
        (["--input=CRAWL", "--output=OUT"], "badwords.path=FILE"),
        (["--input=CRAWL", "--output=OUT", "--flavor=en.clean"], "did you mean 'en.noclean'?"),
        (["--input=CRAWL", "--output=OUT", "--set=lines.max=3"], "no field settings.lines.max"),
        (["--input=CRAWLS", "--output=OUT", "--flavor=en.noclean"], "there is no file at"),
        (["--input=CRAWL", "--output=OUT", "--flavor=en.noclean", "--runner=nowhere"], "nowhere"),
        (["--input=CRAWL", "--output=OUT", "--flavor=en.noclean", "--", "--workers=x"], "local.workers"),
        (["--input=CRAWL", "--output=CRAWL", "--flavor=en.noclean"], "crawl.jsonl is a file"),
        (["--input=CRAWL", "--outptu=OUT"], "outptu"),
    ],
)
def test_mistakes_are_one_line(verb, crawl, tmp_path, flags, says):
    named = {"CRAWL": str(crawl), "OUT": str(tmp_path / "out")}
    finished = verb("clean", *[f.replace("CRAWL", named["CRAWL"]).replace("OUT", named["OUT"]) for f in flags])
    assert finished.status == 2, finished.err
    assert len(finished.errors) == 1 and says in finished.errors[0], finished.err
    assert "Traceback" not in finished.err and [path.name for path in tmp_path.iterdir()] == ["crawl.jsonl"]
