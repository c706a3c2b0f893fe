"""Complete runs on this machine: comparison with C4, determinism, and bad data."""

import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys

import fsspec
import pytest

from plm_jax import config
from plm_jax.cleaning import job, job_rules, lists, report, settings, stages
from plm_jax.common import leases, shuffle, storage, tasks
from plm_jax.common.errors import UserError
from plm_jax.common.executors.in_process import InProcessExecutor
from plm_jax.common.executors.local import LocalExecutor
from tests.cleaning.crawls import read_lines, response, sentence, warc_record, write_archive, write_json

ROOT = pathlib.Path(__file__).parents[2]
SHARED = ("This line stands on many pages of the crawl.", "So does this one, as it is a notice.")
GERMAN = (
    "Die Lehrerin aus dem Dorf ging jeden Winter über den Fluss und dachte an die Briefe des alten Kapitäns zurück."
)


def english_pages(number: int) -> list[dict[str, str]]:
    """Returns rows to which every rule of the English C4 applies."""
    rng = random.Random(1)
    rows = []
    for i in range(number):
        lines = [" ".join(sentence(rng) for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(1, 5))]
        lines += rng.sample(SHARED, rng.randint(0, 2)) + ["menu | home"] * rng.randint(0, 1)
        lines += {1: ["He said darn it all to the captain."], 2: ["if (this) { it is code; }."]}.get(i % 23, [])
        lines = [f"{GERMAN} Es war Zeile {k} von {i}." for k in range(4)] if i % 31 == 3 else lines
        rng.shuffle(lines)
        scheme = rng.choice(["http://", "https://", "https://www."])
        rows.append(
            {"url": f"{scheme}site{i}.org/{i}", "text": "\n".join(lines), "timestamp": f"2019-04-{i % 28 + 1:02}"}
        )
    for i in range(0, number, 9):
        newer = f"{rows[i]['text']}\nThis page has been changed since, it says."
        rows.append({"url": f"http://site{i}.org/{i}/?utm_x", "text": newer, "timestamp": f"20{i % 3 + 18}-05-01"})
    rows.append({"url": "http://long.org", "text": "A sentence of five words.\n" * 7308, "timestamp": "2019"})
    return rows


def archive(path, rows: list[dict[str, str]]) -> str:
    return write_archive(path, [warc_record(row["url"], row["text"].encode(), date=row["timestamp"]) for row in rows])


@pytest.fixture
def badwords(tmp_path):
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "en").write_text("darn\nwhat the heck\n")
    (folder / "LICENSE").write_text("captain\n")
    return folder


def clean(inputs: list[str], output, rule: settings.CleaningConfig) -> dict:
    """Runs the cleaning. Returns the counts of the report."""
    job.clean(inputs, str(output), rule, InProcessExecutor(), show_progress=False)
    counts = json.loads((output / "report.json").read_text())["counts"]
    assert {reason for reason in counts if not reason.startswith(("read", "after "))} <= set(report.reasons(rule))
    for step, (number, _) in report.steps(rule, counts).items():
        assert f"| {step} | {number:,} |" in (output / "report.md").read_text()
    return counts


def bytes_of(folder) -> dict[str, str]:
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.gz"))}


def cleaned_by_c4(c4, files: list[str], output) -> list[dict[str, str]]:
    """Returns the pages that `tensorflow_datasets/text/c4.py` keeps with its config `en`."""
    beam = pytest.importorskip("apache_beam")
    words = c4.get_badwords_filter_fn({"en": ["darn", "what the heck"]})

    def write(page):
        with open(output, "a") as file:
            file.write(json.dumps({"url": page.url, "text": page.text, "timestamp": page.timestamp}) + "\n")

    with beam.Pipeline() as pipeline:
        pages = (
            pipeline
            | beam.Create(files)
            | beam.FlatMap(c4.split_wet_file)
            | beam.Filter(c4.is_valid_length)
            | "key" >> beam.Map(lambda page: (page.normalized_url, page))
            | beam.CombinePerKey(c4.select_newest_page)
            | beam.Values()
            | "clean" >> beam.FlatMap(c4.get_clean_page_fn())
        )
        _ = (
            c4.remove_duplicate_text(pages)
            | "english" >> beam.FlatMap(c4.detect_english)
            | "words" >> beam.Filter(words)
            | "write" >> beam.Map(write)
        )
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_english_equals_c4_for_any_split_of_the_crawl(c4, badwords, tmp_path, capsys):
    rows = english_pages(100)
    halves = [archive(tmp_path / f"{i}.warc.wet.gz", rows[i::2]) for i in range(2)]
    expected = cleaned_by_c4(c4, halves, tmp_path / "theirs.jsonl")
    rule = settings.resolve("en", [f"badwords.path={badwords}/*", "validation_one_in=10", "shards=2"])
    counts = clean(halves, tmp_path / "ours", rule)
    cleaned = [row for name in ("train", "validation") for row in read_lines(tmp_path / "ours", f"{name}-*")]
    assert {row.pop("language") for row in cleaned} == {"en"}

    def url(row):
        return row["url"]

    assert sorted(cleaned, key=url) == sorted(expected, key=url)
    assert 40 < len(cleaned) < 90
    for reason in ("too_long", "older_copy", "no_end_mark", "code", "line_elsewhere", "other_language", "bad_word"):
        assert counts[reason]["number"], reason
    assert {"few_sentences", "few_new_sentences"} <= set(counts)
    assert counts["older_copy"]["number"] == 12
    held_out = {row["url"] for row in read_lines(tmp_path / "ours", "validation-*")}
    assert held_out == {
        row["url"]
        for row in cleaned
        if int(hashlib.md5(c4.normalize_url(row["url"]).encode()).hexdigest(), 16) % 10 == 0
    }
    printed = capsys.readouterr().out
    assert '| lines | pages | contains "{" |' in printed and str(tmp_path / "ours") in printed

    thirds = [write_json(tmp_path / f"{i}.jsonl.gz", rows[::-1][i::3]) for i in range(3)]
    job.clean(thirds, str(tmp_path / "again"), rule, LocalExecutor(2), show_progress=False)
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "ours")


def test_bad_data_is_quarantined_and_the_rest_cleaned_once(tmp_path, capsys, monkeypatch):
    rng = random.Random(2)
    texts = ["\n".join(sentence(rng) for _ in range(12)) for _ in range(4)]
    rows = [{"url": f"http://a.org/{i}", "text": text} for i, text in enumerate(texts)]
    near = {"url": "http://copy.org", "text": texts[0].replace("every", "each", 1)}
    good = write_json(tmp_path / "good.jsonl.gz", [*rows, near, {"url": "http://de.org", "text": GERMAN}])
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "cut\n{"text": "\xff"}\n')
    pages = [f"<p>{line}</p>" for line in (sentence(rng), sentence(rng))]
    warc = write_archive(
        tmp_path / "a.warc.gz",
        [
            warc_record("http://w.org", response("".join(pages).encode()), "response"),
            warc_record("http://w.org/gone", response(b"", "404 Not Found"), "response"),
        ],
    )
    (tmp_path / "no.wet.gz").write_bytes(b"no crawl")
    inputs, output = [good, str(bad), warc, str(tmp_path / "no.wet.gz")], tmp_path / "out"
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "train-99999.jsonl.gz").write_text("of a run that was stopped")
    rule = settings.resolve("en.noclean", ["near_duplicates.kind=minhash", "shards=1", "max_characters=2000"])
    counts = clean(inputs, output, rule)
    urls = {row["url"] for row in read_lines(output, "train-*")}
    assert len(urls) == 5 and {"http://a.org/1", "http://w.org"} < urls
    assert len(urls & {"http://a.org/0", "http://copy.org"}) == 1
    expected = {"quarantined": 3, "near_duplicate": 1, "no_html": 1, "other_language": 1}
    assert {name: counts[name]["number"] for name in expected} == expected
    quarantined = {(row["file"], row["position"]) for row in read_lines(output, "quarantine/*")}
    assert quarantined == {("bad.jsonl", 1), ("bad.jsonl", 2), ("no.wet.gz", 0)}
    assert counts["other_language"]["examples"] == [{"url": "http://de.org", "text": GERMAN}]
    assert GERMAN in (output / "report.md").read_text() and (output / "report.svg").read_bytes().startswith(b"<?xml")
    manifest = json.loads((output / "manifest.json").read_text())
    assert {name: file["rows"] for name, file in manifest["files"].items()} == {
        "quarantine/00000.jsonl.gz": 3,
        "train-00000.jsonl.gz": 5,
    }
    assert not (tmp_path / ".out.tmp").exists()

    capsys.readouterr()
    before = bytes_of(output)
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []
    monkeypatch.setattr(tasks, "run", lambda *_: pytest.fail("it ran again"))
    job.clean(inputs, str(output), rule)
    assert capsys.readouterr().out == f"up to date at {output}\n" and bytes_of(output) == before

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        job.clean(inputs, str(output), settings.resolve("en.noclean"))
    assert bytes_of(output) == before and (output / "manifest.json").exists()

    from plm_jax.data.sources import files

    texts_read = [record.text for record in files.read(config.TextTable(f"{output}/train-*.jsonl.gz"))]
    assert sorted(texts_read) == sorted(row["text"] for row in read_lines(output, "train-*"))


STORIES = {
    "en": (
        "The teacher of the village crossed the river every winter and remembered the letters of the captain.",
        "His ship had gone down near the old harbour many years before, and nobody knew what became of the crew.",
        "On market days the children asked her about him, but she only smiled and told them to open their books.",
    ),
    "de": (
        GERMAN,
        "Sein Schiff war vor vielen Jahren in der Nähe des Hafens gesunken, und niemand wusste, was geschehen war.",
        "An Markttagen fragten die Kinder sie nach ihm, aber sie lächelte nur und ließ sie ihre Bücher aufschlagen.",
    ),
    "fr": (
        "La maîtresse du village traversait la rivière chaque hiver et se souvenait des longues lettres du capitaine.",
        "Son navire avait coulé près du vieux port il y a bien des années, et personne ne savait où était l'équipage.",
        "Les jours de marché, les enfants lui parlaient de lui, mais elle souriait et leur faisait ouvrir un livre.",
    ),
    "bad": (
        "My brother bought a small boat last summer and sailed it along the coast with two friends from the office.",
        "Well, darn it, he said when the wind turned at noon and the rain began to fall on all of their sandwiches.",
        "They came home late in the evening, wet and tired, and promised never to trust the weather report again.",
    ),
}


def test_many_languages_have_a_folder_each(tmp_path):
    lines = {name: list(story) for name, story in STORIES.items()}
    lines["und"] = [str(i) * 120 for i in range(3)]
    lines["short"] = [lines["en"][0] + "!", lines["en"][1] + "!", "A short line."]
    lines["twice"] = lines["de"]
    rows = [{"url": f"http://{name}.org", "text": "\n".join(each)} for name, each in lines.items()]
    (tmp_path / "en").write_text("darn\n")
    # A separate process, because CLD3 crashes next to TensorFlow, which other tests have loaded.
    changes = [f"badwords.path={tmp_path}/en", "language.languages=('en','de')", "paragraphs.min_characters=100"]
    command = [sys.executable, "-m", "plm_jax", "clean", f"--input={write_json(tmp_path / 'a.jsonl.gz', rows)}"]
    command += [f"--output={tmp_path}/out", "--flavor=multilingual", *(f"--set={change}" for change in changes)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    counts = json.loads((tmp_path / "out" / "report.json").read_text())["counts"]
    urls = {
        path.parent.name: {row["url"] for row in read_lines(path.parent, path.name)}
        for path in (tmp_path / "out").glob("*/train-*.jsonl.gz")
    }
    assert urls["en"] == {"http://en.org"} and urls["und"] == {"http://und.org"} and set(urls) == {"en", "de", "und"}
    assert urls["de"] < {"http://de.org", "http://twice.org"}
    expected = {"few_paragraphs": 1, "bad_word": 1, "other_language": 1, "line_elsewhere": 3, "nothing_new": 1}
    assert {name: counts[name]["number"] for name in expected} == expected


@pytest.fixture
def bucket():
    yield "memory://bucket/clean"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("flavor", ["realnewslike", "webtextlike"])
def test_only_listed_pages_are_kept(flavor, tmp_path, bucket):
    """The second run writes to a bucket in which an earlier run was stopped."""
    rng = random.Random(3)
    urls = ["http://www.news.org/a/", "http://sport.news.org/b", "http://other.org/c", "https://news.org/d?utm_s=1"]
    shared = " ".join(sentence(rng) for _ in range(3))
    rows = [{"url": url, "text": f"{shared}\n" + "\n".join(sentence(rng) for _ in range(4))} for url in urls]
    (tmp_path / "domains.json").write_text('{"news.org": ["", "blog"]}')
    (tmp_path / "urls.txt").write_text("https://news.org/a\nhttp://other.org/c/\nhttp://nowhere.org\n")
    listed, output = {"realnewslike": ("domains.json", str(tmp_path / "out")), "webtextlike": ("urls.txt", bucket)}[
        flavor
    ]
    if output == bucket:
        for name in (".work/lease/1.json", ".work/of-another-run/job.json", "train-99999.jsonl.gz"):
            storage.write(f"{bucket}/{name}", b"")
    rule = settings.resolve(flavor, [f"pages.path={tmp_path / listed}", "badwords=None", "duplicates.kind=spans"])
    job.clean([write_json(tmp_path / "a.jsonl.gz", rows)], output, rule, InProcessExecutor(), show_progress=False)
    counts = json.loads(storage.read(f"{output}/report.json"))["counts"]
    lines = [gzip.decompress(storage.read(path)).splitlines() for path in storage.glob(f"{output}/train-*")]
    texts = {row["url"]: row["text"] for row in (json.loads(line) for each in lines for line in each)}
    remaining = set(texts)
    assert counts["span_elsewhere"]["number"] == 3 and sum(shared in text for text in texts.values()) == 1
    if flavor == "realnewslike":
        assert remaining == {urls[0], urls[3]}
        assert counts["other_domain"]["number"] == counts["other_subdomain"]["number"] == 1
    else:
        assert remaining == {urls[0], urls[2]} and counts["unlisted_url"]["number"] == 2
        assert {"manifest.json", "report.md", "report.svg"} < set(storage.names(bucket))
        assert not {".work", "train-99999.jsonl.gz"} & set(storage.names(bucket))


def test_second_run_into_bucket_is_rejected(tmp_path, bucket):
    path, rule = write_json(tmp_path / "a.jsonl", [{"text": "A page."}]), settings.resolve("en.noclean")
    with leases.held(f"{bucket}/.work/lease", "cleans"), pytest.raises(UserError, match="another process cleans into"):
        try:
            job.clean([path], bucket, rule, show_progress=False)
        finally:
            assert leases.taken(f"{bucket}/.work/lease")


def test_output_with_other_files_is_rejected(tmp_path):
    path = write_json(tmp_path / "a.jsonl", [{"text": "x"}])
    (tmp_path / "manifest.json").write_text('{"identity": "of a cache"}')
    with pytest.raises(UserError, match=r"contains other files, such as a\.jsonl"):
        job.clean([path], str(tmp_path), settings.resolve("en.noclean"), show_progress=False)
    for output in (path, f"{path}/"):
        with pytest.raises(UserError, match=r"a\.jsonl/? is a file"):
            job.clean([path], output, settings.resolve("en.noclean"), show_progress=False)
    (tmp_path / "manifest.json").write_text('{"identity": "of an earlier run", "inputs": []}')
    with pytest.raises(UserError, match=r"contains the input .*a\.jsonl"):
        job.clean([path], str(tmp_path), settings.resolve("en.noclean"), show_progress=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "manifest.json"]
    assert pathlib.Path(path).stat().st_size


def test_inputs_inside_the_output_are_rejected(tmp_path, bucket):
    (tmp_path / "real" / "clean").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "crawl").symlink_to("real/clean")
    names = {
        f"{tmp_path}/real/clean": [f"{tmp_path}/link/clean", f"{tmp_path}/crawl", f"file://{tmp_path}/link/clean"],
        bucket: ["memory:///bucket/clean", f"{bucket}/"],
    }
    for folder, outputs in names.items():
        files = {"manifest.json": b'{"inputs": []}', "train-00000.jsonl": b'{"text": "x"}\n'}
        for name, data in files.items():
            storage.write(f"{folder}/{name}", data)
        for output in outputs:
            with pytest.raises(
                UserError, match=r"contains the input .*train-00000\.jsonl: set --output to a new folder"
            ):
                job.clean([f"{folder}/train-*"], output, settings.resolve("en.noclean"), show_progress=False)
        with pytest.raises(UserError, match="contains the input"):
            job.clean([f"{outputs[0]}/train-*"], folder, settings.resolve("en.noclean"), show_progress=False)
        assert {name: storage.read(f"{folder}/{name}") for name in storage.names(folder)} == files


def test_bucket_is_emptied_manifest_first_when_a_run_is_complete(tmp_path, bucket, monkeypatch):
    path = write_json(tmp_path / "a.jsonl.gz", [{"url": f"http://{i}.org", "text": "x"} for i in range(9)])
    rule = settings.resolve("en.noclean", ["language=None"])
    before = {"manifest.json": b'{"inputs": []}', "a.gz": b"", "train-00099.jsonl.gz": b"rows"}
    for name, data in before.items():
        storage.write(f"{bucket}/{name}", data)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            job.clean([path], bucket, rule, InProcessExecutor(), show_progress=False)
    assert {name: storage.read(f"{bucket}/{name}") for name in storage.names(bucket) if name != ".work"} == before

    def stop_at_first(path):
        if "/.work" not in path:
            removed.append(path)
            raise KeyboardInterrupt

    removed = []
    with monkeypatch.context() as patched:
        patched.setattr(storage, "remove", stop_at_first)
        with pytest.raises(KeyboardInterrupt):
            job.clean([path], bucket, rule, InProcessExecutor(), show_progress=False)
    assert removed == [f"{bucket}/manifest.json"]
    job.clean([path], bucket, rule, InProcessExecutor(), show_progress=False)
    assert set(storage.names(bucket)) >= {"manifest.json", "report.json"}
    assert not {"a.gz", "train-00099.jsonl.gz", ".work"} & set(storage.names(bucket))


@pytest.mark.parametrize("executor", [InProcessExecutor(), LocalExecutor(2)])
def test_unreadable_input_of_worker_is_user_error(executor, tmp_path, monkeypatch):
    gone = {f"{tmp_path}/gone.jsonl": job.crawl.CrawlFile("gone.jsonl", 0, "")}
    monkeypatch.setattr(job.crawl, "files", lambda patterns: gone)
    with pytest.raises(UserError) as raised:
        job.clean(["x"], str(tmp_path / "out"), settings.resolve("en.noclean"), executor, show_progress=False)
    assert str(raised.value) == f"cannot read {tmp_path}/gone.jsonl: No such file or directory"


def test_choice_among_equal_copies_ignores_order(tmp_path):
    rng = random.Random(4)
    texts = [" ".join(sentence(rng) for _ in range(3)) for _ in range(4)]
    schemes = ("http://", "https://www.")
    rows = [{"url": f"{scheme}a.org/{i}", "text": texts[i]} for i in range(4) for scheme in schemes]
    rule = settings.resolve("en.noclean", ["language=None"])
    for name, ordered in {"a": rows, "b": rows[::-1]}.items():
        counts = clean([write_json(tmp_path / f"{name}.jsonl.gz", ordered)], tmp_path / name, rule)
        assert counts["older_copy"]["number"] == 4
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_pages_without_url_are_distinguished_by_file(tmp_path):
    rng = random.Random(5)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        rows = [{"text": " ".join(sentence(rng) for _ in range(3))} for _ in range(3)]
        (tmp_path / folder / "part-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "no JSON\n")
    rule = settings.resolve("en.noclean", ["language=None", "badwords=None", "validation_one_in=1000000"])
    counts = clean([f"{tmp_path}/?/*"], tmp_path / "out", rule)
    urls = {row["url"] for row in read_lines(tmp_path / "out", "train-*")}
    assert urls == {f"{folder}/part-0.jsonl:{line}" for folder in ("a", "b") for line in (1, 2, 3)}
    assert "older_copy" not in counts
    quarantined = {row["file"] for row in read_lines(tmp_path / "out", "quarantine/*")}
    assert quarantined == {"a/part-0.jsonl", "b/part-0.jsonl"}


def test_planted_near_duplicates_are_found_at_expected_rate(tmp_path):
    """Pairs share `same` consecutive words, and therefore four fewer 5-grams."""
    rng, pairs, words = random.Random(6), 150, 104
    rule = settings.resolve(
        "en.noclean", ["language=None", "near_duplicates.kind=minhash", "validation_one_in=1000000"]
    )
    rows, expected = [], {}
    for same in (84, 92):
        similarity = (same - 4) / (2 * (words - 4) - (same - 4))
        expected[same] = 1 - (1 - similarity**rule.near_duplicates.rows) ** rule.near_duplicates.bands
        for i in range(pairs):
            shared = [f"w{rng.randrange(10**9)}" for _ in range(same)]
            for copy in "ab":
                unique = [f"w{rng.randrange(10**9)}" for _ in range(words - same)]
                rows.append({"url": f"http://{same}.org/{i}{copy}", "text": " ".join(shared + unique)})
    clean([write_json(tmp_path / "a.jsonl.gz", rows)], tmp_path / "out", rule)
    left = [row["url"] for row in read_lines(tmp_path / "out", "train-*")]
    for same, rate in expected.items():
        removed = 2 - sum(url.startswith(f"http://{same}.") for url in left) / pairs
        assert 0.3 < rate < 0.95 and abs(removed - rate) < 4 * (rate * (1 - rate) / pairs) ** 0.5


def test_default_number_of_files_follows_crawl_size_and_output_may_be_a_link(tmp_path, monkeypatch):
    rng = random.Random(7)
    rows = [{"url": f"http://a.org/{i}", "text": sentence(rng)} for i in range(60)]
    path = write_json(tmp_path / "a.jsonl.gz", rows)
    rule = settings.resolve("en.noclean", ["language=None", "validation_one_in=4"])
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    clean([path], tmp_path / "link", rule)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "one" / "manifest.json").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl.gz", "link", "one"]
    assert list(bytes_of(tmp_path / "one")) == ["train-00000.jsonl.gz", "validation-00000.jsonl.gz"]
    monkeypatch.setattr(job, "_SHARD_BYTES", pathlib.Path(path).stat().st_size // 8 + 1)
    clean([path], tmp_path / "many", rule)
    names = [f"train-{i:05d}.jsonl.gz" for i in range(8)] + [f"validation-{i:05d}.jsonl.gz" for i in range(2)]
    assert list(bytes_of(tmp_path / "many")) == names
    for split in ("train", "validation"):
        urls = [sorted(row["url"] for row in read_lines(tmp_path / name, f"{split}-*")) for name in ("one", "many")]
        assert urls[0] == urls[1]


def test_earlier_output_survives_if_no_page_passes(tmp_path, capsys):
    path, output = write_json(tmp_path / "a.jsonl.gz", [{"text": "One two three."}]), tmp_path / "out"
    rule = settings.resolve("en.noclean", ["language=None", "validation_one_in=1000000"])
    clean([path], output, rule)
    before = bytes_of(output)
    strict = settings.resolve("en.noclean", ["language=None", "max_characters=2"])
    for _ in range(2):
        capsys.readouterr()
        with pytest.raises(UserError, match="no page for training passed"):
            job.clean([path], str(output), strict, InProcessExecutor(), show_progress=False)
        table = capsys.readouterr().out
        assert "| reading | 1 | 14 | 100.0% |\n| length | 0 | 0 | 0.0% |\n\n" in table
        assert "| length | pages | more than 2 characters | 1 | 14 |" in table
        assert bytes_of(output) == before and sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl.gz", "out"]


def test_second_run_is_rejected_while_the_first_runs(tmp_path, monkeypatch):
    path, output = write_json(tmp_path / "a.jsonl.gz", [{"text": "x"}]), tmp_path / "new" / "out"
    rule, run, raised = settings.resolve("en.noclean", ["language=None", "validation_one_in=1000000"]), tasks.run, []

    def run_beside_another(*arguments):
        with pytest.raises(UserError, match=f"another process cleans into {output} .*wait until it has ended") as error:
            job.clean([path], str(output), rule, show_progress=False)
        raised.append(error)
        return run(*arguments)

    monkeypatch.setattr(tasks, "run", run_beside_another)
    clean([path], output, rule)
    assert raised and [each.name for each in (tmp_path / "new").iterdir()] == ["out"]


KILLED = """
import sys
from plm_jax.cleaning import job, settings
from plm_jax.common.executors.in_process import InProcessExecutor
from tests.support import killed

path, output, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
killed.before_task(number)
rule = settings.resolve("en", ["badwords=None", "language=None", "near_duplicates.kind=minhash", "shards=3"])
job.clean([path], output, rule, InProcessExecutor(), show_progress=False, part_bytes=2**12)
"""


@pytest.mark.slow
def test_killed_driver_resumes_to_the_same_bytes(tmp_path):
    path = write_json(tmp_path / "a.jsonl.gz", english_pages(60))

    def run(output, number):
        return subprocess.run([sys.executable, "-c", KILLED, path, str(output), str(number)], cwd=ROOT).returncode

    assert run(tmp_path / "whole", 0) == 0
    runs = 0
    while run(tmp_path / "killed", 8) != 0:
        runs += 1
    assert runs > 3 and bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "whole")
    assert (tmp_path / "killed" / "report.json").read_bytes() == (tmp_path / "whole" / "report.json").read_bytes()


def test_run_with_other_settings_replaces_an_unfinished_one(tmp_path, monkeypatch, capsys):
    rows = [{"url": f"http://a.org/{i}", "text": f"Page {i}."} for i in range(60)]
    path, output = write_json(tmp_path / "a.jsonl.gz", rows), tmp_path / "out"
    changes = ["language=None", "validation_one_in=1000000"]

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(job, "_finish", stop)
        job.clean(
            [path], str(output), settings.resolve("en.noclean", [*changes, "shards=5"]), InProcessExecutor(), False
        )
    assert not output.exists()
    clean([path], output, settings.resolve("en.noclean", [*changes, "shards=2"]))
    assert "an unfinished run with other settings, inputs or another version is discarded" in capsys.readouterr().err
    assert list(bytes_of(output)) == ["train-00000.jsonl.gz", "train-00001.jsonl.gz"]
    assert len(read_lines(output, "train-*")) == 60


def test_folder_that_only_looks_unfinished_is_rejected(tmp_path):
    path = write_json(tmp_path / "a.jsonl", [{"text": "x"}])
    (tmp_path / "project" / ".work" / "lease").mkdir(parents=True)
    (tmp_path / "project" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"contains other files, such as"):
        job.clean([path], str(tmp_path / "project"), settings.resolve("en.noclean"), show_progress=False)
    assert (tmp_path / "project" / "thesis.tex").exists()


HASHED = """
import sys
from plm_jax.cleaning import job, settings
from plm_jax.common import tasks
from plm_jax.common.executors.in_process import InProcessExecutor

path, output = sys.argv[1:]
run = tasks.run

def shown(*arguments):
    marks = run(*arguments)
    for stage, complete in marks.items():
        for mark in complete:
            print(stage, mark.task, [[one.path, one.sha256] for one in mark.outputs])
    return marks

tasks.run = shown
rule = settings.resolve("en", ["badwords=None", "language=None", "near_duplicates.kind=minhash", "shards=3"])
job.clean([path], output, rule, InProcessExecutor(), False, part_bytes=2**12)
"""


def test_every_task_has_the_same_outputs_in_every_process(tmp_path):
    """Python orders sets of strings by a seed of the process."""
    path = write_json(tmp_path / "a.jsonl.gz", english_pages(40))
    printed = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", HASHED, path, str(tmp_path / f"out{seed}")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.add("\n".join(line for line in done.stdout.splitlines() if "[[" in line))
        svg = (tmp_path / f"out{seed}" / "report.svg").read_bytes()
        printed.add(hashlib.md5(svg).hexdigest())
    assert len(printed) == 2 and any("duplicates-owners" in each for each in printed)


def test_crawl_without_pages_is_user_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("no JSON\n")
    with pytest.raises(UserError, match=r"no page in .*a.jsonl can be read"):
        job.clean([str(path)], str(tmp_path / "out"), settings.resolve("en.noclean"), InProcessExecutor(), False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl"]


def test_outputs_divided_in_several_steps_have_the_same_bytes(tmp_path, monkeypatch):
    rows = english_pages(100)
    paths = [write_json(tmp_path / f"{i}.jsonl.gz", rows[i::20]) for i in range(20)]
    (tmp_path / "urls.txt").write_text("".join(f"{row['url']}\n" for row in rows[1:]))
    changes = ["badwords=None", "language=None", "near_duplicates.kind=minhash", "validation_one_in=10", "shards=3"]
    rule = settings.resolve("webtextlike", [*changes, f"pages.path={tmp_path}/urls.txt"])
    clean(paths, tmp_path / "one", rule)
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", 64)
    monkeypatch.setattr(stages, "_LEAST_STORED", 4)
    numbers, run = {}, tasks.run

    def counting(*arguments):
        marks = run(*arguments)
        numbers.update({stage: len(each) for stage, each in marks.items()})
        return marks

    monkeypatch.setattr(tasks, "run", counting)
    job.clean(paths, str(tmp_path / "two"), rule, InProcessExecutor(), show_progress=False, part_bytes=2**11)
    assert numbers["newest"] == 16
    # No page of this crawl loses a MinHash band.
    empty = {"near_duplicates-owners-split", *(stage for stage in numbers if stage.endswith("-split-2"))}
    assert {stage for stage, number in numbers.items() if not number} == empty
    monkeypatch.setattr(shuffle, "_MOST_WIDTH", 4)
    monkeypatch.setattr(shuffle, "_FRACTION", 2)
    job.clean(paths, str(tmp_path / "three"), rule, InProcessExecutor(), show_progress=False, part_bytes=2**11)
    assert numbers["newest-split-2"] > 0
    assert bytes_of(tmp_path / "three") == bytes_of(tmp_path / "two") == bytes_of(tmp_path / "one")
    assert (tmp_path / "two" / "report.json").read_bytes() == (tmp_path / "one" / "report.json").read_bytes()


@pytest.mark.parametrize("flavor", ["webtextlike", "en.noclean"])
def test_worker_notices_a_changed_list(flavor, tmp_path, monkeypatch):
    path = write_json(tmp_path / "a.jsonl", [{"url": "http://a.org", "text": "A page."}])
    listed = tmp_path / "list.txt"
    listed.write_text("one two three four five six seven eight")
    changes = {
        "webtextlike": [f"pages.path={listed}", "duplicates=None", "badwords=None"],
        "en.noclean": ["decontamination.kind=ngrams", f"decontamination.paths='{listed}',"],
    }[flavor]
    rule, run = settings.resolve(flavor, ["language=None", *changes]), tasks.run

    def change_first(*arguments):
        listed.write_text("eight seven six five four three two one")
        return run(*arguments)

    monkeypatch.setattr(tasks, "run", change_first)
    with pytest.raises(UserError, match=r"list\.txt has changed since the command read it: run the same command"):
        job.clean([path], str(tmp_path / "out"), rule, InProcessExecutor(), show_progress=False)


def test_settings_of_another_job_are_not_used(tmp_path):
    """A worker process reads the settings of each job once."""
    limits = []
    for identity, limit in (("a", 5), ("b", 7), ("a", 7)):
        job_rules.write(
            str(tmp_path), settings.resolve("en.noclean", [f"max_characters={limit}"]), lists.Lists({}, [], {}, {})
        )
        workspace = tasks.Workspace(tasks.Job(str(tmp_path), identity), "read", "0")
        limits.append(job_rules.config(workspace).max_characters)
    assert limits == [5, 7, 5]


def test_late_task_of_an_earlier_job_writes_nothing(tmp_path, monkeypatch):
    path, output = write_json(tmp_path / "a.jsonl", [{"url": "http://a.org", "text": "A page."}]), tmp_path / "out"
    calls, run_task = [], tasks.run_task

    def noting(*arguments):
        calls.append(arguments)
        raise KeyboardInterrupt

    import plm_jax.common.executors.in_process as in_process

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(in_process, "run_task", noting)
        clean([path], output, settings.resolve("en.noclean", ["language=None"]))

    def interrupted(current, *_):
        storage.write(f"{current.folder}/job.json", b"{}")
        before = sorted((tmp_path / ".out.tmp").rglob("*"))
        assert current.folder != calls[0][0].folder
        outcome = run_task(*calls[0])
        assert isinstance(outcome, tasks.Failure) and "there is no job in" in outcome.message
        assert sorted((tmp_path / ".out.tmp").rglob("*")) == before
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clean([path], output, settings.resolve("en.noclean", ["language=None", "max_characters=9"]))
