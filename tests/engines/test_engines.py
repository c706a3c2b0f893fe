"""Cleaning and preparing on real engines over loopback give the bytes of worker processes on this machine.

They need the packages of tests/engines.txt.
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

pytest.importorskip("distributed")
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


def run(command: list[str], output: pathlib.Path, engine: list[str], **variables: str) -> str:
    """Runs a command. Returns the hashes of all files of its output."""
    flags = [f"--output={output}", *engine]
    environment = {**os.environ, "PYTHONPATH": str(clusters.ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "plm_jax", *command, *flags],
        env=environment,
        cwd=output.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = sorted(path for path in output.rglob("*") if path.is_file() and path.suffix not in (".md", ".svg"))
    return "".join(f"{path.relative_to(output)} {crawls.sha256(path)}\n" for path in files)


def both(crawl: pathlib.Path, folder: pathlib.Path, engine: list[str], **variables: str) -> tuple[str, str]:
    """Cleans the crawl, and prepares it as it is. Returns the hashes of the outputs."""
    clean = ["clean", f"--input={crawl}/*.gz", "--part_bytes=200000", *(f"--set={change}" for change in SETTINGS)]
    prepare = ["prepare", "--config=gpt2:small", f"--config.data.sources.webtext.path={crawl}/*.gz"]
    cleaned = run(clean, folder / "clean", engine, **variables)
    prepared = run(prepare, folder / "cache", engine, **variables)
    assert not [path for path in folder.rglob(".*") if path.name in (".work", ".clean.tmp")]
    return cleaned, prepared


@pytest.fixture(scope="module")
def expected(crawl, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    cleaned, prepared = both(crawl, folder, ["--runner=local", "--", "--workers=2"])
    counts = json.loads((folder / "clean" / "report.json").read_text())["counts"]
    assert counts["near_duplicate"]["number"] and counts["line_elsewhere"]["number"]
    # Without an engine, `prepare` does not run in tasks.
    prepare = ["prepare", "--config=gpt2:small", f"--config.data.sources.webtext.path={crawl}/*.gz"]
    assert run(prepare, folder / "plain", []) == prepared
    return cleaned, prepared


@pytest.mark.parametrize("engine", clusters.CLUSTERS)
def test_cluster_gives_the_same_bytes(engine, crawl, expected, tmp_path):
    if importlib.util.find_spec(MODULES[engine]) is None:
        pytest.skip(f"{MODULES[engine]} is not installed: see tests/engines.txt")
    if engine == "spark" and not shutil.which("java"):
        pytest.skip("there is no Java")
    with clusters.CLUSTERS[engine](tmp_path) as cluster:
        assert both(crawl, tmp_path, [f"--runner={engine}", "--", *cluster.options]) == expected


def test_beam_gives_the_same_bytes(crawl, expected, tmp_path):
    assert both(crawl, tmp_path, ["--runner=beam", "--", "--direct_num_workers=2"]) == expected


def test_slurm_gives_the_same_bytes(crawl, expected, tmp_path):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SBATCH)
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    path = f"{sbatch.parent}:{os.environ['PATH']}"
    assert both(crawl, tmp_path, ["--runner=slurm", "--", "--elements=3", "--mem=2G"], PATH=path) == expected
