"""No process of a verb imports files in the working directory that have the names of modules."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support import xla

ROOT = pathlib.Path(__file__).parents[2]
INSTALLED = ("absl", "array_record", "etils", "fsspec", "flax", "grain", "jax", "jaxlib", "ml_collections", "numpy")
ABSENT = ("jax_plugins", "sitecustomize", "usercustomize", "torch", "cupy", "configs", "plm_jax_extra")
TRAP = """
import os
with open(os.environ["TRAPPED"], "a") as file:
    file.write(__name__ + " " + __file__ + "\\n")
raise ImportError("a trap")
"""


@pytest.fixture(scope="module")
def loaded_by_python(tmp_path_factory):
    """Returns the modules that Python itself imports from the working directory before `-m` runs our code."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "stub.py").write_text("import sys; print(*sys.modules)\n")
    return {*subprocess.run([sys.executable, "-m", "stub"], cwd=folder, capture_output=True, text=True).stdout.split()}


@pytest.fixture
def run(tmp_path, loaded_by_python):
    """`run(*words)` starts a process in a folder of traps and fails if one is imported; `run.folder` is the folder."""
    folder, trapped = tmp_path / "here", tmp_path / "trapped"
    folder.mkdir()
    standard = {name for name in sys.stdlib_module_names if not name.startswith("__")}
    for name in (standard | {*INSTALLED, *ABSENT}) - loaded_by_python:
        (folder / f"{name}.py").write_text(TRAP)

    def run(*words, path=(ROOT,), **variables):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "TRAPPED": str(trapped)}
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.flags(1), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        command = [sys.executable, *map(str, words)]
        finished = subprocess.run(
            command, cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=300
        )
        imported = trapped.read_text() if trapped.exists() else ""
        assert not imported, f"{imported}\n{finished.stderr}"
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    run.folder = folder
    return run


def test_commands_do_not_import_from_the_working_directory(run):
    assert "pretrain" in run("-m", "plm_jax", "--help")
    assert "steps = 220" in run("-m", "plm_jax", "config", "--config=demo:gpt2")


def test_a_whole_run_with_all_its_processes_imports_nothing_of_the_working_directory(run, tmp_path):
    """Preparing, its workers, the reader's processes and training, with a config file in another folder."""
    lines = [{"text": f"The year {i} was good. The people of state {i % 7} had bread and peace."} for i in range(3000)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = run(
        *("-m", "plm_jax", "pretrain", "--config=demo:gpt2", f"--workdir={tmp_path}/run", "--config.train.steps=2"),
        *(f"--config.data.sources.sotu.path={tmp_path}/text.jsonl", f"--config.data.cache_dir={tmp_path}/cache"),
        *(f"--config.vocabulary.spec=sentencepiece:{tmp_path}/vocabulary.model", "--config.vocabulary.train_size=300"),
        *("--config.data.length=16", "--config.train.batch_size=4", "--config.train.phases=()"),
        *("--config.model.stack.layers=1", "--config.model.embedding.width=16", "--config.model.attention.heads=2"),
        *("--config.evaluation.every=0", "--config.data.processes=1"),
    )
    assert "documents" in output and (tmp_path / "run/checkpoints/2").is_dir()


def test_a_path_that_the_user_sets_is_searched_even_if_it_is_the_working_directory(run):
    (run.folder / "mine_on_purpose.py").write_text("print('imported on purpose')\n")
    for name in run.folder.glob("*.py"):
        if name.name != "mine_on_purpose.py":
            name.unlink()
    words = "plm_jax", "config", "--module=mine_on_purpose", "--config=demo:gpt2"
    assert "imported on purpose" in run("-m", *words, path=(ROOT, run.folder))
    assert "imported on purpose" in run("-P", "-m", *words, path=(run.folder, ROOT))


def test_a_program_of_the_users_that_imports_the_package_keeps_its_path(run):
    for name in run.folder.glob("*.py"):
        name.unlink()
    (run.folder / "mine").mkdir()
    (run.folder / "mine/__init__.py").write_text("import plm_jax\n")
    (run.folder / "mine/__main__.py").write_text("from mine import beside; print(beside.NAME)\n")
    (run.folder / "mine/beside.py").write_text("NAME = 'beside'\n")
    assert run("-m", "mine") == "beside\n"
