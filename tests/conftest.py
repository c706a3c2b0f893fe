"""Eight fake devices for all tests; for those of training a tiny corpus, prepared once, and the verbs."""

import gc
import os
import pathlib
import shutil

from jaxtyping import install_import_hook

from tests.support import shapes

# Calls in this process check the shapes and types of their annotations. Before anything imports the package.
CHECKED = ("models", "losses", "objectives", "generation", "inference")
install_import_hook([f"plm_jax.{room}" for room in CHECKED], f"{shapes.__name__}.check")

from tests.support import xla

# Before jax is imported: it reads them once.
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# Several workers may compile for TPUs at once.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla.flags(devices=8)}".strip()

import jax
import pytest

from tests.support import tiny as tiny_config
from tests.support import verbs

# Tests compile much and compute little: this halves their time.
jax.config.update("jax_disable_most_optimizations", True)
# A trace makes millions of objects that live on.
gc.freeze()
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def verb(tmp_path_factory):
    """`verb("pretrain", "--config=…", …)` runs a verb in a process of its own."""
    # The server's children read these; with them a second run of the same step, in whichever worker, compiles nothing.
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(shared / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    # A limit, of bytes, makes JAX lock the folder.
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**32)
    with verbs.Server(str(tmp_path_factory.mktemp("verbs"))) as server:
        yield server.run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, verb):
    """A folder with `tiny.py`, its corpora and their cache: leave it as it is, or copy it (`tiny_copy`)."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_config.write(folder)
    finished = verb("prepare", f"--config={folder}/tiny.py")
    assert finished.status == 0, finished.err
    return folder


@pytest.fixture
def tiny_copy(tiny, tmp_path):
    """A copy of `tiny` to spoil."""
    return pathlib.Path(shutil.copytree(tiny, tmp_path / "tiny"))
