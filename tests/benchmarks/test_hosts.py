"""One of many hosts fetches little more of a cache in a bucket than the tokens of its rows."""

import importlib

import pytest

from plm_jax.common import storage


@pytest.fixture
def folder(tmp_path):
    importlib.import_module("input").write_cache(str(tmp_path), 2**22)
    return str(tmp_path)


def test_a_host_fetches_at_most_twice_what_it_uses(folder):
    bench = importlib.import_module("hosts")
    for length, batch, hosts in ((8192, 128, 64), (512, 1024, 128), (512, 1024, 1024)):
        figures = bench.simulate(folder, length, batch, hosts, hosts // 3, steps=8)
        assert figures["used_a_step"] == batch // hosts * length * 2
        assert 1 <= figures["ratio"] <= 2, figures
        # Its batch, the manifest, which tokens begin words, milestones: no file of tokens and no whole index.
        assert figures["start_bytes"] < 2 * figures["bytes_a_step"] + 70_000


def test_whole_files_and_what_is_read_besides_are_counted(folder):
    bench = importlib.import_module("hosts")
    with bench.counting() as fetched:
        path = f"counted://{folder}/synthetic/manifest.json"
        size = len(storage.read(path))
        assert fetched == [size, 1]
        storage.download(path, f"{folder}/copy")
        assert storage.read_range(path, 2, 12) == storage.read(path)[2:12]
        assert fetched == [3 * size + 10, 4]
    few = bench.simulate(folder, 512, 1024, 2, 0, steps=1)
    assert few["start_bytes"] > 2**21  # A file of tokens, as one host of two uses most of it.
