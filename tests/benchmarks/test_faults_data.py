"""Damaged caches and hostile corpora: some of the cases of `faults_data.py`, none of which does harm."""

import importlib
import time


def test_damaged_caches_and_hostile_corpora_do_no_harm():
    bench = importlib.import_module("faults_data")
    rows = [*bench.caches(8, 0), *bench.corpora(6, 0)]
    assert sum(row.tried for row in rows) == sum(row.handled for row in rows) == 14, rows


def test_what_is_wrong_in_silence_is_counted(monkeypatch, tmp_path):
    bench = importlib.import_module("faults_data")
    path = tmp_path / "log"
    assert bench.child(lambda: print("read"), 10.0, path) == ("ended", "read\n")

    def fails():
        raise ValueError("no user's error")

    assert bench.child(fails, 10.0, path)[0] == "traceback"
    assert bench.child(lambda: bytearray(2**31)[:: 2**12].count(1), 10.0, path)[0] == "traceback"
    assert bench.child(lambda: time.sleep(60), 0.2, path)[0] == "hang"
    case = bench.corpora_cases.Case("nothing is told", tmp_path / "x", lambda: print("2 of 3"))
    case.path.touch()
    monkeypatch.setattr(bench.corpora_cases, "CAMPAIGNS", {"one": lambda folder, rng: case})
    assert bench.corpora(1, 0) == [bench.Row("corpora: one", 1, 0, 1, 0, 0)]
