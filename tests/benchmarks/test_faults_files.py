"""A slice of the campaign with hostile files, in a process that holds no threads: nothing passes, crashes or hangs."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_hostile_files_end_in_one_line():
    command = [sys.executable, str(ROOT / "benchmarks/faults_files.py"), "--number=25", "--seed=11"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    rows = json.loads(finished.stdout)
    assert {row["campaign"] for row in rows} == {"safetensors", "configs", "tokenizers", "vocabularies", "hdf5"}
    for row in rows:
        others = {name: row[name] for name in ("silent", "traceback", "hang")}
        assert row["handled"] == row["tried"] == 5 and not any(others.values()), (row, finished.stderr)
