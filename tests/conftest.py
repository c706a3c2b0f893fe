"""Fixtures of all tests: eight fake devices, a tiny corpus that is prepared once, and the command-line verbs."""

import gc
import importlib.util
import os
import pathlib
import shutil
import sys

# Otherwise each of the processes that tests start compiles the libraries again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from tests.support import shapes

# Checks the shapes and types of annotations in this process. This must precede every import of the package.
CHECKED = ("models", "losses", "objectives", "generation", "inference")
shapes.install([f"plm_jax.{room}" for room in CHECKED])

from tests.support import xla
from tests.support.selection import pytest_addoption, pytest_collection_modifyitems, pytest_configure  # noqa: F401

# PyTorch reads this when it is imported: its threads would wait actively while other workers compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# JAX reads these once, when it is imported.
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# Several workers may compile for TPUs at once.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla.flags(devices=8)}".strip()

if importlib.util.find_spec("triton"):
    # PyTorch imports it. Both it and TensorFlow contain LLVM; loaded after TensorFlow, it crashes the process.
    import triton  # noqa: F401

import jax
import pytest

from tests.support import tiny as tiny_config
from tests.support import verbs

# Tests compile much and compute little: skipping optimizations halves their time.
jax.config.update("jax_disable_most_optimizations", True)
# Tracing creates millions of long-lived objects.
gc.freeze()
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="module", autouse=True)
def _free_programs():
    """Frees the programs that a module compiled; otherwise, a worker grows to 10 GB."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def verb(tmp_path_factory):
    """Function that runs a verb in a new process: `verb("pretrain", "--config=…", …)`; `verb.start` does not wait."""
    # Read by the server's children. With a shared cache, a step is compiled once for all workers.
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(shared / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    # With a limit (bytes), JAX locks the folder.
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**32)
    with verbs.Server(str(tmp_path_factory.mktemp("verbs"))) as server:
        yield server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, verb):
    """Folder with `tiny.py`, its corpora and their cache. Tests must not change it; they copy it (`tiny_copy`)."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_config.write(folder)
    finished = verb("prepare", f"--config={folder}/tiny.py")
    assert finished.status == 0, finished.err
    return folder


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory):
    """Folder of the vocabularies of `tests.support.exports`, each of which is trained once."""
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture
def tiny_copy(tiny, tmp_path):
    """Copy of `tiny` that a test may change."""
    return pathlib.Path(shutil.copytree(tiny, tmp_path / "tiny"))
