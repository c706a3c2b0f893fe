"""What a report says of the runs' objectives, also of one that is not at hand."""

import json

import pytest

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
