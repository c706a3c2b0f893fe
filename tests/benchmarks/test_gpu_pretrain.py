"""The five-minute run ends at tiny sizes without a GPU, interrupted when its time is over."""

import gzip
import json
import math
import os
import pathlib
import subprocess
import sys

from tests.support import xla

ROOT = pathlib.Path(__file__).parents[2]


def test_run_is_interrupted_and_its_metrics_are_printed(tmp_path, verb):
    import gpu_pretrain

    corpus, cache = tmp_path / "corpus.jsonl.gz", tmp_path / "cache"
    with gzip.open(corpus, "wt") as file:
        file.writelines(json.dumps({"text": f"Speech {n}. " + "The union is strong. " * 40}) + "\n" for n in range(200))
    flags = ["--tiny", f"--cache={cache}", f"--corpus={corpus}"]
    finished = verb("prepare", *gpu_pretrain.command("prepare", gpu_pretrain.parse([*flags, "--prepare"]))[4:])
    assert finished.status == 0, finished.err
    environment = os.environ | {"XLA_FLAGS": xla.flags(devices=1), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_pretrain.py"), *flags, "--minutes=0.02"]
    done = subprocess.run([*command, f"--plot={tmp_path}/p.png"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["rows"]
    assert [row["step"] for row in rows] == list(range(1, result["steps"] + 1))
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert abs(rows[0]["loss"] - math.log(50257)) < 0.5 and abs(rows[0]["validation_loss"] - math.log(50257)) < 0.5
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_without_a_cache_it_says_how_to_make_one(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_pretrain.py"), f"--cache={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--prepare" in done.stderr.splitlines()[-1]
