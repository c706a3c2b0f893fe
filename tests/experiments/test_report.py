"""Contents of a report: runs and sweeps, unavailable ones, and runs with hostile text."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import re

import pytest

from plm_jax.common.errors import UserError
from plm_jax.experiments import comparison, report, run_logs
from plm_jax.training import flops
from tests.support import logs, tiny


class Page(html.parser.HTMLParser):
    """A page's elements with the names of their attributes, its text, its tables, its data."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.tables, self.raw = set(), "", [], page
        self._script, self._is_in_cell = "", False
        self.feed(page)
        self.data = json.loads(self._script)

    def handle_starttag(self, tag, attributes):
        self.found.add((tag, *sorted(name for name, _ in attributes)))
        assert not any(name in ("src", "href", "style") or name.startswith("on") for name, _ in attributes)
        self._in = dict(attributes).get("id") if tag == "script" else None
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._is_in_cell = True
            self.tables[-1][-1].append("")

    def handle_data(self, data):
        if self.lasttag == "script":
            self._script = data if self._in == "data" else self._script
        elif self.lasttag != "style":
            self.text += data
            if self._is_in_cell:
                self.tables[-1][-1][-1] += data

    def handle_endtag(self, tag):
        self._is_in_cell = self._is_in_cell and tag not in ("td", "th")

    def table(self, *columns):
        """The lines of the table that has these columns, by its first column."""
        (found,) = [table for table in self.tables if set(columns) <= set(table[0])]
        return {row[0]: dict(zip(found[0], row, strict=True)) for row in found[1:]}


def page(folder, *workdirs):
    report.write(list(map(str, workdirs)), str(folder / "report.html"))
    return Page((folder / "report.html").read_text())


@pytest.mark.parametrize(
    ("kind", "sources", "said"),
    [
        ("causal", {}, ["every next token"]),
        ("causal", {"a": "text"}, ["every next token"]),
        ("causal", {"a": "table_inputs_targets"}, ["the targets of the examples, and the end token"]),
        (
            "causal",
            {"a": "seqio_inputs_targets", "b": "a_users_own"},
            ["every next token", "the targets of the examples, and the end token"],
        ),
        ("a_users_own", {}, ["the targets of objective &#x27;a_users_own&#x27;"]),
    ],
)
def test_a_page_says_what_each_objective_predicts(tmp_path, kind, sources, said):
    (tmp_path / "one").mkdir()
    data = {"sources": {name: {"kind": kind} for name, kind in sources.items()}}
    (tmp_path / "one" / "config.json").write_text(json.dumps({"config": {"objective": {"kind": kind}, "data": data}}))
    (tmp_path / "one" / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/loss": 1.0}) + "\n")
    assert "".join(f"<li>one: {text}.</li>" for text in said) in page(tmp_path, tmp_path / "one").raw


def test_a_line_has_what_a_variant_reached_and_how_fast(tmp_path):
    for seed in (0, 1):
        run = dataclasses.replace(tiny.PLAIN, train=dataclasses.replace(tiny.PLAIN.train, steps=100, seed=seed))
        logs.write(tmp_path / f"x-{seed}", logs.rows(100, seed), run)
    report_page = page(tmp_path, tmp_path / "x-0", tmp_path / "x-1").table("Run", "MFU")
    last = [logs.rows(100, seed)[-1]["train/loss"] for seed in (0, 1)]
    assert report_page["x"] == {
        "Run": "x",
        "Seeds": "2",
        "Steps": "100",
        "Tokens": "25.6k",
        "Model FLOPs": f"{100 * flops.per_step(run.model, 8, 32, 32):.3g}",
        "Loss": comparison.figure(last),
        "Validation loss": comparison.figure([loss + 0.1 for loss in last]),
        "Tokens/s": "10k",
        "MFU": "40.0 %",
        "Data wait": "10.0 %",
        "Training time": "50 s",
    }


def test_a_loss_that_is_lost_at_the_end_is_no_figure(tmp_path):
    rows = [*logs.rows(20), {"step": 21, "train/grad_norm": 1.0}]
    assert page(tmp_path, logs.write(tmp_path / "one", rows)).table("Loss")["one"]["Loss"] == "nan"


def test_samples_and_differences_are_told_and_configs_are_not_dumped(tmp_path):
    rows = [
        {"step": step, "task": "sentiment", "prompt": f"of {step}\n<i>", "answer": "good", "target": "bad"}
        for step in (1, 1, 2)
    ]
    changed = dataclasses.replace(tiny.PLAIN, schedule=dataclasses.replace(tiny.PLAIN.schedule, learning_rate=2e-3))
    first = logs.write(tmp_path / "first", logs.rows(20), samples=rows)
    second = logs.write(tmp_path / "second", logs.rows(20), changed)
    report_page = page(tmp_path, first, second)
    assert "first, step 2" in report_page.text and "of 2\n<i>" in report_page.text and "of 1" not in report_page.text
    assert report_page.table("Field")["schedule.learning_rate"] | {"Field": ""} == {
        "Field": "",
        "Base": "0.001",
        "Here": "0.002",
    }
    assert (
        "second: schedule.learning_rate = 0.002" in report_page.text and "first: same as the base" in report_page.text
    )
    assert report_page.raw.count("<pre>") == 1


def swept(folder, **changes):
    """A sweep's folder: two runs of three seeds, one that failed and one to come, and a paper that speaks of them."""
    values = {"a": [0.5, 0.51, 0.52], "b": [0.7, 0.71, 0.72], "late": [0.6]}
    runs = []
    for name, metrics in values.items():
        for seed, value in enumerate(metrics):
            at = f"{name}-seed{seed}"
            run = dataclasses.replace(tiny.PLAIN, train=dataclasses.replace(tiny.PLAIN.train, seed=seed))
            if name != "late":
                logs.write(folder / at, logs.rows(20, seed), run)
            result = {"name": name, "seed": seed, "workdir": f"/elsewhere/{at}", "overrides": {}, "minutes": 1.0}
            error = "full disk" if name == "late" else None
            runs.append(result | {"error": error, "metrics": {} if error else {"s/accuracy": value}})
    published = [
        {"run": "a", "figures": {"MNLI": 84.0, "RACE": 64.2}, "source": "Table 2"},
        {"run": "b", "figures": {"MNLI": 82.9, "RACE": 63.0}, "source": "Table 2"},
        {"run": "late", "figures": {}, "source": "not available"},
    ]
    base = json.loads((folder / "a-seed0" / "config.json").read_text())["config"]
    base["train"]["steps"] = 99
    tree = {"runs": runs, "base": base, "published": published, "compared": {"MNLI": "s/accuracy"}, "baselines": []}
    (folder / "sweep.json").write_text(json.dumps(tree | changes))
    return folder


def test_a_sweeps_folder_stands_for_its_runs_beside_the_paper(tmp_path):
    report_page = page(tmp_path, swept(tmp_path / "runs"))
    assert report_page.data["groups"] == ["a", "b"] and len(report_page.data["runs"]) == 6
    rows = report_page.table("Verdict")
    assert rows["a"] | {"Verdict": ""} == {
        **{"Run": "a", "Verdict": "", "Paper": "84.00 %", "vs. first": "", "Ours": "51.00 ± 1.00 %", "Seeds": "3"},
        "vs. first [95 %]": "",
    }
    assert (
        rows["b"]["vs. first"] == "-1.10"
        and rows["b"]["Verdict"] == "significant, opposite direction to the paper"
        and rows["b"]["vs. first [95 %]"].startswith("+20.00 [")
    )
    assert rows["late"]["Verdict"] == "not run yet" and rows["late"]["Paper"] == "not available"
    assert (
        "1 × significant, opposite direction to the paper" in report_page.text
        and "0 × significant, same direction as the paper" in report_page.text
    )
    assert report_page.table("RACE")["b"] == {"Run": "b", "RACE": "63"} and "Source: Table 2" in report_page.text
    assert report_page.table("Trivial predictor")["late"]["Metric"] == "failed: full disk"
    assert "all: train.steps = 6" in report_page.text and "a: same as the base" in report_page.text


def test_a_sweep_without_published_results_mentions_no_paper(tmp_path):
    assert "<h2>Comparison with the paper</h2>" in page(tmp_path, swept(tmp_path / "published")).raw
    report_page = page(tmp_path, swept(tmp_path / "unpublished", published=[]))
    assert "<h2>Comparison</h2>" in report_page.raw and "paper" not in report_page.text
    rows = report_page.table("Verdict")
    assert set(rows) == {"a", "b", "late"} and rows["a"]["Value"] == "51.00 ± 1.00 %"


def test_the_reason_for_no_comparison_is_on_the_page(tmp_path):
    changes = {"published": [], "compared": {}, "note": "no comparison: <b> differs"}
    report_page = page(tmp_path, swept(tmp_path / "runs", **changes))
    assert "<h2>Comparison</h2>" in report_page.raw and "no comparison: <b> differs" in report_page.text
    assert "<h2>Comparison</h2>" not in page(tmp_path, swept(tmp_path / "none", **(changes | {"note": ""}))).raw


def test_what_is_not_the_papers_setup_is_on_the_page(tmp_path):
    rows = [["Run", "Setting", "Stated", "Here", "Reason", "Setup stated in"]]
    rows += [["a, b", "warmup", "not stated", "20", "BERT's <b>", "table 1"]]
    report_page = page(tmp_path, swept(tmp_path / "runs", setups=rows))
    assert list(report_page.table("Reason")["a, b"].values()) == rows[1]
    assert "Differences from the paper's setup" in report_page.text
    assert "Differences from the paper's setup" not in page(tmp_path, swept(tmp_path / "without")).text


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": [{}]},
        {"runs": 3},
        {"compared": {"MNLI": 3}},
        {"compared": {"MNLI": []}},
        {"compared": {"MNLI": {"stand_in": 3}}},
        {"metrics": {"mine": {"better": "higher", "unit": "", "rows": []}}},
        {"published": [{"run": "a"}]},
        {"setups": [["Run", "Setting"], ["a"]]},
        {"setups": [["Run", 3]]},
        {"note": 3},
        {"base": [1]},
        {"baselines": [{"run": 10**40, "metric": "s/accuracy", "others": {}}]},
    ],
)
def test_a_damaged_sweep_is_one_line(tmp_path, changes):
    with pytest.raises(UserError, match=r"sweep\.json is damaged"):
        run_logs.gather([str(swept(tmp_path / "runs", **changes))])


def test_a_metric_that_is_declared_otherwise_is_one_line(tmp_path):
    other = {"metrics": {"accuracy": {"better": "less", "unit": "", "rows": []}}}
    with pytest.raises(UserError, match=r"sweep\.json: metric 'accuracy' is declared as .*: "):
        run_logs.gather([str(swept(tmp_path / "runs", **other))])


def test_a_sweep_of_which_nothing_has_begun_is_told(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": []}))
    with pytest.raises(UserError, match="has no started run"):
        run_logs.gather([str(tmp_path)])


MARKUP = "\"><script src=//x>a</script><img src=http://x onerror=a>'&lt;<!-- --><style>*{}</style>$\\frac{$ \ud800\x00"


def harmful(folder, name, text):
    """The page about a run, and a sweep of it, that has `text` for each name and value that may be any."""
    run = folder / f"of {len(text)}" / name
    run.mkdir(parents=True)
    described = {"config": {"objective": {"kind": text}, text: [text, {text: None}]}, "history": text, "modules": text}
    (run / "config.json").write_text(json.dumps(described))
    losses = {f"validation/{text}{i}/loss": 1.0 for i in range(2)}
    rows = [{"step": 1, "train/loss": 1.0, "validation/loss": 2, **losses, text: text, "train/accuracy": text}]
    rows.append({"step": 2, "train/loss": float("nan"), "train/grad_norm": 10**400, "b": {text: [text]}, "c": True})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "evaluation.jsonl").write_text(json.dumps({"step": 2, f"{text}/real_loss": 1.5, text: text, "x": 1}) + "\n")
    sample = {"step": 2, "task": text, "prompt": text, "answer": [text], "target": {text: text}}
    (run / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    result = {"name": text, "seed": 1, "workdir": name, "error": text, "minutes": 1, "metrics": {text: text}}
    comparisons = {"published": [{"run": text, "figures": {text: 1, "B": 2}, "source": text}], "compared": {text: text}}
    baselines = [{"run": text, "metric": text, "others": {text: text}}]
    tree = {"runs": [result], "base": {text: text}, "baselines": baselines, **comparisons}
    (run.parent / "sweep.json").write_text(json.dumps(tree))
    return page(folder, run, run.parent)


def test_report_escapes_run_texts_and_loads_nothing(tmp_path):
    plain, hostile = harmful(tmp_path, "plain", "text"), harmful(tmp_path, "<b>&amp;$x_1$", MARKUP)
    assert plain.found == hostile.found
    assert "<script src=//x>a</script>" in hostile.text and "<b>&amp;$x_1$, step 2" in hostile.text
    assert "<script" not in json.dumps(plain.data) and hostile.data["runs"][0]["name"].startswith("<b>&amp;")
    assert hostile.raw.count("<script") == plain.raw.count("<script") == 2
    for found in (plain, hostile):
        policy = re.search('Content-Security-Policy" content="([^"]*)"', found.raw).group(1)
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
        for tag in ("script", "style"):
            (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", found.raw, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
        assert not rules


@pytest.mark.parametrize(
    "config", ["[]", "{}", '{"config": {"objective": {"kind": [1]}}}', "[" * 10**5, '{"config": NaN}', "\ufeff{}"]
)
def test_what_is_no_run_is_told(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"is not a run directory|is damaged"):
        run_logs.read(str(tmp_path))


@pytest.mark.parametrize(
    "line", ["[]", '"text"', '{"step": "1"}', '{"step": true}', '{"step": -1}', '{"train/loss": 1}', "[" * 100_000]
)
def test_a_log_of_others_is_told(tmp_path, line):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"objective": {"kind": "causal"}}}))
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1 is damaged"):
        run_logs.read(str(tmp_path))
