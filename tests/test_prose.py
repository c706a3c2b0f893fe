"""Language of the package by the rules that a script can check."""

import collections

import pytest

from tests.support import prose


@pytest.fixture(scope="module")
def findings():
    by_rule = collections.defaultdict(list)
    for finding in prose.check_all([prose.PACKAGE]):
        by_rule[finding.rule].append(f"{finding.path.relative_to(prose.ROOT)}:{finding.line}: {finding.message}")
    return by_rule


@pytest.mark.parametrize("rule", ["docstring", "name", "length", "spelling"])
def test_the_package_keeps_the_rule(findings, rule):
    assert not findings[rule], "\n".join(findings[rule])


def test_each_rule_reports_its_violation(tmp_path):
    body = "\n".join(f"    x{i} = {i}" for i in range(60))
    path = tmp_path / "bad.py"
    path.write_text(f'"""What it is."""\n\ndef normalise(found):\n    """How it works."""\n{body}\n    held = 1\n')
    reported = [(finding.rule, finding.line) for finding in prose.check(path)]
    assert sorted(reported) == [
        ("docstring", 1), ("docstring", 3), ("length", 3), ("name", 3), ("name", 65), ("spelling", 3),
    ]  # fmt: skip
    path.write_text('"""Returns `normalize` of a text."""\n')
    assert not list(prose.check(path))
