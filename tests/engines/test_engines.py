"""Cleaning on real engines over loopback: Dask, Ray, Spark, Beam and SLURM give the bytes of this machine's processes.

The packages of tests/engines.txt are needed for the first three.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

from tests.cleaning import crawls
from tests.support import clusters

pytestmark = pytest.mark.slow
MODULES = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}
SETTINGS = ("badwords=None", "near_duplicates.kind=minhash", "validation_one_in=10", "shards=3")
# Runs the elements of an array, two at a time.
SBATCH = """#!/bin/sh
for argument; do
  case "$argument" in --array=*) last="${argument##*-}";; esac
  script="$argument"
done
echo 17
seq 0 "$last" | xargs -P 2 -I{} env SLURM_ARRAY_TASK_ID={} sh -c "$script"
"""


@pytest.fixture(scope="module")
def crawl(tmp_path_factory):
    """Files of about 2 MB, in which pages share lines and nearly whole texts."""
    folder = tmp_path_factory.mktemp("crawl")
    crawls.write_similar_pages(folder, files=6, pages_per_file=100)
    return folder


def clean(crawl: pathlib.Path, output: pathlib.Path, engine: str, options: list[str], **variables: str) -> str:
    """Cleans by the command. Returns the hashes of all outputs and of the report."""
    command = [sys.executable, "-m", "plm_jax", "clean", f"--input={crawl}/*.gz", f"--output={output}"]
    command += ["--part_bytes=200000"]
    command += [
        f"--runner={engine}",
        *(f"--set={change}" for change in SETTINGS),
        *(["--", *options] if options else []),
    ]
    environment = {**os.environ, "PYTHONPATH": str(clusters.ROOT), **variables}
    done = subprocess.run(command, env=environment, cwd=output.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    files = sorted(path for path in output.rglob("*") if path.suffix in (".gz", ".json"))
    return "".join(f"{path.relative_to(output)} {crawls.sha256(path)}\n" for path in files)


@pytest.fixture(scope="module")
def expected(crawl, tmp_path_factory):
    output = tmp_path_factory.mktemp("local") / "out"
    hashes = clean(crawl, output, "local", ["--workers=2"])
    counts = json.loads((output / "report.json").read_text())["counts"]
    assert counts["near_duplicate"]["number"] and counts["line_elsewhere"]["number"]
    return hashes


@pytest.mark.parametrize("engine", clusters.CLUSTERS)
def test_cluster_gives_the_same_bytes(engine, crawl, expected, tmp_path):
    if importlib.util.find_spec(MODULES[engine]) is None:
        pytest.skip(f"{MODULES[engine]} is not installed: see tests/engines.txt")
    if engine == "spark" and not shutil.which("java"):
        pytest.skip("there is no Java")
    with clusters.CLUSTERS[engine](tmp_path) as cluster:
        assert clean(crawl, tmp_path / "out", engine, cluster.options) == expected


def test_beam_gives_the_same_bytes(crawl, expected, tmp_path):
    assert clean(crawl, tmp_path / "out", "beam", ["--direct_num_workers=2"]) == expected


def test_slurm_gives_the_same_bytes(crawl, expected, tmp_path):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SBATCH)
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    path = f"{sbatch.parent}:{os.environ['PATH']}"
    assert clean(crawl, tmp_path / "out", "slurm", ["--elements=3", "--mem=2G"], PATH=path) == expected
    assert not list(tmp_path.glob(".out.tmp*"))
