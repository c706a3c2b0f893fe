"""What a report says of the runs' objectives, also of one that is not at hand; and of runs that mean it harm."""

import html.parser
import json

import pytest

from plm_jax.common.errors import UserError
from plm_jax.experiments import report


@pytest.mark.parametrize(
    ("kind", "said"),
    [("causal", "one: every next token."), ("a_users_own", "one: those of objective &#x27;a_users_own&#x27;.")],
)
def test_a_page_says_what_each_objective_predicts(tmp_path, kind, said):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text(json.dumps({"config": {"objective": {"kind": kind}}}))
    (tmp_path / "one" / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/loss": 1.0}) + "\n")
    report.write([str(tmp_path / "one")], str(tmp_path / "report.html"))
    assert f"<li>{said}</li>" in (tmp_path / "report.html").read_text()


MARKUP = "\"><script src=//x>a</script><img src=http://x onerror=a>'&lt;<!-- --><style>*{}</style>$\\frac{$ \ud800\x00"


class Tags(html.parser.HTMLParser):
    """What of a page is no text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.add((tag, *sorted(name for name, _ in attributes)))
        assert all(value.startswith("#") for name, value in attributes if name in ("src", "href", "xlink:href"))

    def handle_comment(self, data):
        assert "<" not in data and ">" not in data, data

    def handle_data(self, data):
        self.text += data


def write_page(folder, name, text):
    """The page about a run that has `text` for each name and value that may be any."""
    run = folder / name
    run.mkdir()
    described = {"config": {"objective": {"kind": text}, text: [text, {text: None}]}, "history": text}
    (run / "config.json").write_text(json.dumps(described))
    losses = {f"validation/{text}{i}/loss": 1.0 for i in range(2)}
    rows = [{"step": 1, "train/loss": 1.0, "validation/loss": 2, **losses, text: text, "train/accuracy": text}]
    rows.append({"step": 2, "train/loss": float("nan"), "train/grad_norm": 10**400, "b": {text: [text]}, "c": True})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "evaluation.jsonl").write_text(json.dumps({"step": 2, f"{text}/real_loss": 1.5, text: text}) + "\n")
    report.write([str(run)], str(folder / f"{name}.html"))
    return (folder / f"{name}.html").read_text()


def test_what_a_run_says_stands_on_the_page_as_text_and_the_page_may_load_nothing(tmp_path):
    plain, hostile = write_page(tmp_path, "plain", "text"), write_page(tmp_path, "<b>&amp;$x_1$", MARKUP)
    pages = Tags(plain), Tags(hostile)
    assert pages[0].found == pages[1].found and ("script",) not in pages[0].found
    assert "<script src=//x>a</script>" in pages[1].text and "<b>&amp;$x_1$: config.json" in pages[1].text
    head = hostile.partition("<title>")[0]
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; " in head


@pytest.mark.parametrize(
    "config", ["[]", "{}", '{"config": {"objective": {"kind": [1]}}}', "[" * 10**5, '{"config": NaN}', "\ufeff{}"]
)
def test_what_is_no_run_is_told(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"is no run directory|is damaged"):
        report.read(str(tmp_path))


@pytest.mark.parametrize("line", ["[]", '{"step": "1"}', '{"train/loss": 1}'])
def test_a_log_of_others_is_told(tmp_path, line):
    (tmp_path / "config.json").write_text(json.dumps({"config": {"objective": {"kind": "causal"}}}))
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match="is damaged"):
        report.read(str(tmp_path))
