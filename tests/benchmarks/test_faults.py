"""A sample of the campaigns of faults, in a process without threads: no case is silent, crashes or hangs."""

import importlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]


# Wrong values for verbs, without the run and the good commands that other cases are compared with: these take minutes.
VERBS = """
import json, pathlib, random, sys
import faults_verbs as verbs

base = verbs.Base(pathlib.Path(sys.argv[1]))
fresh = base.fresh
base.fresh, base.limit = lambda name, make: fresh(name, verbs.code), lambda verb: 60.0
for campaign in verbs.CAMPAIGNS:
    if campaign.name in ("verbs: code", "verbs: module", "verbs: template"):
        for number in range(3):
            print(json.dumps(campaign.case(base, number, random.Random(f"{campaign.name} {number}"))))
"""


def test_wrong_values_for_verbs_end_in_one_line(scripts, tmp_path):
    path = os.pathsep.join(map(str, (scripts, ROOT)))
    command = [sys.executable, "-c", VERBS, str(tmp_path)]
    finished = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    cases = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(cases) == 9 and [case for case in cases if case[0] != "handled"] == []


@pytest.mark.parametrize(
    ("only", "share", "tried"), [("files: ", 0.03, 10), ("caches: ", 0.01, 8), ("corpora: ", 0.01, 6)]
)
def test_hostile_files_and_damage_end_in_one_line(only, share, tried, tmp_path):
    output = tmp_path / "rows.json"
    flags = [f"--only={only}", f"--share={share}", "--seed=11", f"--output={output}"]
    command = [sys.executable, str(ROOT / "benchmarks/faults.py"), *flags]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    rows = json.loads(output.read_text())["campaigns"]
    assert sum(row["tried"] for row in rows) == sum(row["handled"] for row in rows) == tried


def test_each_outcome_of_a_case_is_counted(tmp_path):
    bench = importlib.import_module("faults_case")
    path = tmp_path / "log"
    assert bench.child(lambda: print("read"), 10.0, path) == ("ended", "read\n")

    def fails():
        raise ValueError("no user's error")

    def computes():
        began = time.monotonic()
        while time.monotonic() - began < 60:
            pass

    assert bench.child(fails, 10.0, path)[0] == "traceback"
    assert bench.child(lambda: bytearray(2**31)[:: 2**12].count(1), 10.0, path)[0] == "traceback"
    assert bench.child(lambda: time.sleep(60), 0.2, path)[0] == "hang"
    assert bench.child(computes, 0.2, path)[0] == "hang"
    outcomes = ["handled", "silent", "traceback", "memory", "hang", "handled"]
    row = bench.Campaign("one", 6, lambda folder: outcomes, lambda base, number, rng: (base[number], "said"))
    (tmp_path / "bases").mkdir()
    assert bench.run([row], tmp_path / "bases", 1.0, 0) == [bench.Row("one", 6, 2, 1, 2, 1)]


def test_an_error_of_a_verb_is_one_line_and_the_last(monkeypatch):
    verbs = importlib.import_module("faults_verbs")
    case = importlib.import_module("faults_case")
    command = verbs.Command("x", "report", ())

    def handled(status, errors):
        return verbs.is_handled(command, case.Ended(status, "ended", 0.0, 0, "", errors))

    assert handled(0, "") and handled(2, "loading: 2 s\nerror: give a number\n")
    for status, errors in ((1, ""), (2, ""), (2, "error: a\nmore\n"), (2, "error: a\nerror: b\n"), (0, "Traceback (m")):
        assert not handled(status, errors)


def test_the_same_seed_makes_the_same_cases(tmp_path):
    verbs = importlib.import_module("faults_verbs")
    for make in (verbs.number, verbs.override, verbs.module, verbs.template, verbs.flag):
        commands = [make(tmp_path, random.Random(seed)) for seed in (1, 1, 2, 3, 4)]
        assert commands[0] == commands[1] and len(set(commands)) > 2
