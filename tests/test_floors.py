"""Imports go down only; a training process imports no TensorFlow, no seqio, no torch."""

import ast
import graphlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from tests.support import resume

PACKAGE = pathlib.Path(__file__).parents[1] / "plm_jax"
STANDARD = set(sys.stdlib_module_names)
STEP_MODULES = (
    *("state", "step", "optimizers", "schedules", "mesh", "compiler", "step_parameters"),
    *("trainable", "layer_decay", "norms", "spikes"),
)


def imports(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, wherever in it, as `jax` or, of ours, `plm_jax.room.module`."""
    return _imported(_walk(ast.parse(path.read_text())), path)


def imports_at_once(path: pathlib.Path) -> set[str]:
    """What a file imports when it is imported itself, outside of all functions."""
    left = ast.parse(path.read_text()).body
    return _imported((node for node in left if not _is_for_annotations(node)), path)


def _is_for_annotations(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`, which does nothing when a program runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    left = [tree]
    while left:
        if not _is_for_annotations(node := left.pop()):
            yield node
            left += ast.iter_child_nodes(node)


def _imported(nodes: Iterable[ast.AST], path: pathlib.Path) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            ours = node.module.split(".")[0] == "plm_jax"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if ours else {node.module}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy":
            found.add(node.args[0].value)
    return {name if name.startswith("plm_jax") else name.split(".")[0] for name in found}


def files(room: str) -> list[pathlib.Path]:
    found = sorted((PACKAGE / room).rglob("*.py"))
    assert found
    return found


def outside(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("plm_jax")} - STANDARD


def rooms(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("plm_jax.")}


@pytest.mark.parametrize("path", files("models"), ids=lambda p: p.stem)
def test_models_import_jax_and_flax_only(path):
    assert outside(imports(path)) <= {"jax", "flax", "jaxtyping", "typing_extensions"}
    assert rooms(imports(path)) <= {"models", "common"}


@pytest.mark.parametrize("path", files("data/labelled"), ids=lambda p: p.stem)
def test_figures_of_labels_import_numpy_only(path):
    assert outside(imports(path)) <= {"numpy"}
    assert rooms(imports(path)) <= {"data", "objectives"}


@pytest.mark.parametrize("path", files("objectives"), ids=lambda p: p.stem)
def test_objectives_import_numpy_only(path):
    assert outside(imports(path)) <= {"numpy"}
    assert rooms(imports(path)) <= {"objectives", "common"}


@pytest.mark.parametrize("path", files("losses"), ids=lambda p: p.stem)
def test_losses_import_jax_and_numpy_only(path):
    assert outside(imports(path)) <= {"jax", "jaxtyping", "numpy", "typing_extensions"}


@pytest.mark.parametrize("name", STEP_MODULES)
def test_what_a_step_needs_imports_jax_flax_optax_numpy_and_models_only(name):
    found = imports(PACKAGE / "training" / f"{name}.py")
    assert outside(found) <= {"jax", "flax", "optax", "numpy", "jaxtyping", "typing_extensions"}
    assert rooms(found) <= {"models", "common", "losses", "training"}
    ours = {name.removeprefix("plm_jax.training.").split(".")[0] for name in found if "plm_jax.training" in name}
    assert {name.removeprefix("plm_jax.") for name in ours} - {"training"} <= set(STEP_MODULES)


@pytest.mark.parametrize("path", files("data/layouts"), ids=lambda p: p.stem)
def test_layouts_import_numpy_only_until_they_are_opened(path):
    """A config holds their settings: `cache`, which reads files, and progress come in where an index is opened."""
    at_once = imports_at_once(path)
    assert outside(at_once) <= {"numpy"}
    assert rooms(at_once) <= {"data", "objectives", "common"}
    assert not any(name.startswith("plm_jax.data.cache") for name in at_once)


def test_a_config_knows_of_data_the_layouts_alone_until_its_sources_are_opened():
    found = set().union(*map(imports, files("config"))) - BEHAVIOUR["config"]
    assert all(name.startswith("plm_jax.data.layouts.") for name in found if name.startswith("plm_jax.data."))


def test_no_modules_import_each_other():
    """Nor in a longer circle; those of `data` not within functions either."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in files("")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {}
    for name, path in modules.items():
        found = imports_at_once(path)
        if name.startswith("plm_jax.data."):
            found |= {full for full in imports(path) if full.startswith("plm_jax.data.")}
        graph[name] = modules.keys() & {full if full in modules else full.rpartition(".")[0] for full in found} - {name}
    graphlib.TopologicalSorter(graph).prepare()


# The rooms from the top down: each imports from itself and from those below it.
ROOMS = (
    *("cli", "experiments", "evaluation", "planning", "inference", "runs", "cleaning", "config", "hub", "generation"),
    *("training", "data", "losses", "objectives", "models", "common"),
)
ALLOWED = {room: set(ROOMS[number:]) for number, room in enumerate(ROOMS)}
# Rooms whose code takes a whole `Run`, or parts of it that still belong to `config`.
ALLOWED |= {room: ALLOWED[room] | {"config"} for room in ("hub", "generation", "training", "data")}
ALLOWED["generation"] |= {"runs", "inference"}
ALLOWED["configs"] = {"configs", "data", "objectives", "models", "config"}


# A sweep is a page of experiments, and says what its runs are judged by.
OF_SWEEPS = {"experiments", "evaluation", "common"}


# What a setting's methods import once they are called: the behaviour of its kind.
BEHAVIOUR = {
    "config": {
        "plm_jax.data.sources.files",
        "plm_jax.data.sources.labelled_tfds",
        "plm_jax.data.sources.tasks",
    }
}


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_down_only(room):
    for path in files(room):
        behaviour = BEHAVIOUR.get(room, set())
        above = OF_SWEEPS if path.parent.name == "ablations" else set()
        assert rooms(imports(path) - behaviour) <= ALLOWED[room] | above, path
        assert not behaviour & imports_at_once(path), path


def test_no_room_is_left_out():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ALLOWED)


def test_a_training_process_holds_no_tensorflow(tiny, tmp_path):
    """The real verb, with the modules that it holds at its end written down."""
    code = (
        "import atexit, json, runpy, sys;"
        f"atexit.register(lambda: json.dump(sorted(sys.modules), open({str(tmp_path / 'modules.json')!r}, 'w')));"
        "sys.argv[0] = 'pretrain'; runpy.run_module('plm_jax.cli.pretrain', run_name='__main__')"
    )
    arguments = resume.command(tiny, "plain", tmp_path / "run")[4:]
    options = ["--config.train.steps=2", "--config.evaluation.every=1", "--config.checkpoint.save_every=1"]
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments, *options], env=resume.environment(), capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert resume.last_step(tmp_path / "run") == 2
    held = {name.split(".")[0] for name in json.loads((tmp_path / "modules.json").read_text())}
    assert {"jax", "orbax", "grain", "tensorboardX"} <= held
    forbidden = {
        "tensorflow",
        "tensorflow_text",
        "tensorflow_datasets",
        "seqio",
        "torch",
        "transformers",
        "tensorboard",
    }
    assert held & forbidden == set()
