"""Selects tests: marks the slow ones, records the tests that run and leaves out those of an earlier record."""

import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[1]
# Node ids relative to the root, one per line: a file, a test, or one case of a test.
SLOW_LIST = FOLDER / "slow.txt"
# Largest share of slow tests.
MAX_SLOW_SHARE = 0.15
COUNTS = pytest.StashKey[tuple[int, int]]()
# Entries of the list that match no collected test, although their file is collected.
UNMATCHED = pytest.StashKey[set[str]]()


def slow_entries() -> list[str]:
    """Returns the node ids of `slow.txt`."""
    lines = (line.partition(" #")[0].strip() for line in SLOW_LIST.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _names(nodeid: str) -> set[str]:
    """Returns the entries that select a test: its file, the test with all cases, and the case."""
    test = nodeid.partition("[")[0]
    return {nodeid.partition("::")[0], test, nodeid}


def pytest_addoption(parser):
    group = parser.getgroup("selection")
    group.addoption("--record", metavar="FILE", help="write the ids of the tests that ran, skipped ones excluded")
    group.addoption("--without", metavar="FILE", help="leave out the tests whose ids are in this file")


def pytest_configure(config):
    if (path := config.getoption("--record")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(pathlib.Path(path)))


class _Recorder:
    """Appends the id of each test that passes or fails to a file."""

    def __init__(self, path: pathlib.Path):
        self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and not report.skipped:
            self._file.write(f"{report.nodeid}\n")


def pytest_collection_modifyitems(config, items):
    entries = set(slow_entries())
    slow = [item for item in items if _names(item.nodeid) & entries]
    for item in slow:
        item.add_marker(pytest.mark.slow)
    files = {item.nodeid.partition("::")[0] for item in items}
    matched = set().union(*(_names(item.nodeid) for item in slow))
    config.stash[COUNTS] = len(slow), len(items)
    config.stash[UNMATCHED] = {entry for entry in entries - matched if entry.partition("::")[0] in files}
    if path := config.getoption("--without"):
        recorded = set(pathlib.Path(path).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in recorded])
        items[:] = [item for item in items if item.nodeid not in recorded]
