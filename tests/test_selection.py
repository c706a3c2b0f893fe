"""The list of slow tests names tests that exist and stays short; recorded tests do not run again."""

import ast
import pathlib
import subprocess
import sys

import pytest

from tests.support import selection

ROOT = selection.FOLDER.parent


def test_every_slow_test_exists():
    entries = selection.slow_entries()
    assert len(entries) == len(set(entries))
    for entry in entries:
        file, _, test = entry.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert not test or test.partition("[")[0] in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef)
        }, entry


def test_slow_tests_are_few_and_every_entry_matches_one(pytestconfig):
    if [pathlib.Path(path).resolve() for path in pytestconfig.args] != [selection.FOLDER]:
        pytest.skip("needs the whole suite")
    assert not pytestconfig.stash[selection.UNMATCHED]
    num_slow, num_tests = pytestconfig.stash[selection.COUNTS]
    assert 0 < num_slow <= selection.MAX_SLOW_SHARE * num_tests


def test_recorded_tests_do_not_run_again(tmp_path):
    """CI runs the tests without their peers, and then those that were skipped."""
    file = tmp_path / "test_example.py"
    file.write_text("import pytest\ndef test_one(): pass\ndef test_two(): pytest.importorskip('no_such_module')\n")

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.selection", "-p", "no:cacheprovider"]
        command += ["--rootdir", str(tmp_path), "-c", "/dev/null", *options, str(file)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    assert "1 passed, 1 skipped" in run(f"--record={tmp_path}/ran")
    (tmp_path / "no_such_module.py").write_text("")
    assert "1 passed, 1 deselected" in run(f"--without={tmp_path}/ran")
