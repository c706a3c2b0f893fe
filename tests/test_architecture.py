"""The structure of the package: rooms import downwards and without cycles, and light rooms stay light."""

import ast
import collections
import graphlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support import resume

PACKAGE = pathlib.Path(__file__).parents[1] / "plm_jax"
STANDARD = set(sys.stdlib_module_names)

# The rooms from the top down: a room imports from itself and from the rooms below it.
ROOMS = (
    *("cli", "experiments", "evaluation", "planning", "inference", "runs", "cleaning", "config", "hub", "generation"),
    *("training", "data", "losses", "objectives", "models", "common"),
)
# Libraries that a room may import besides the standard library; rooms that are not listed may import any.
LIBRARIES = {
    "common": None,
    "models": {"jax", "flax", "jaxtyping", "typing_extensions"},
    "losses": {"jax", "numpy", "jaxtyping", "typing_extensions"},
    "objectives": {"numpy", "jaxtyping", "typing_extensions"},
    "training": {"jax", "flax", "optax", "numpy", "jaxtyping", "typing_extensions"},
}
# Imports of our own modules within functions: each of these modules imports an extra of the package at its top.
LATE_IMPORTS = {
    ("plm_jax.data.sources.tensorflow_sources", "plm_jax.data.sources.labeled_tfds"),
    ("plm_jax.data.sources.tensorflow_sources", "plm_jax.data.sources.tasks"),
    ("plm_jax.data.vocabularies.loading", "plm_jax.data.vocabularies.for_seqio"),
    ("plm_jax.experiments.report", "plm_jax.experiments.report_pictures"),
}


class Import(NamedTuple):
    """One import of a module of the package, anywhere in a file."""

    importer: str
    imported: str
    is_late: bool


def parsed() -> dict[str, ast.Module]:
    """Returns the syntax tree of every module of the package except the config files."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[1] != "configs":
            trees[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return trees


TREES = parsed()


def names(tree: ast.AST, is_late: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields every imported name, in dots, and whether a function imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((f"{node.module}.{alias.name}", is_late) for alias in node.names)
        yield from names(node, is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def module_of(name: str) -> str:
    """Returns the module of ours that an imported name is or is in."""
    return name if name in TREES else name.rpartition(".")[0]


IMPORTS = [
    Import(importer, module_of(name), is_late)
    for importer, tree in TREES.items()
    for name, is_late in names(tree)
    if name.split(".")[0] == "plm_jax" and module_of(name) != importer
]


def room(module: str) -> str:
    """Returns the room of a module; files of the package's own folder are above all rooms."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def test_every_folder_is_a_room():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == {*ROOMS, "configs"}


@pytest.mark.parametrize("name", ROOMS)
def test_imports_go_down(name):
    below = {*ROOMS[ROOMS.index(name) :], ""}
    upwards = [found for found in IMPORTS if room(found.importer) == name and room(found.imported) not in below]
    assert not upwards


def test_there_are_no_import_cycles():
    """Imports within functions and those for type checkers count."""
    graph = collections.defaultdict(set)
    for found in IMPORTS:
        graph[found.importer].add(found.imported)
    graphlib.TopologicalSorter(graph).prepare()


def test_functions_import_only_modules_that_need_an_extra():
    late = {found[:2] for found in IMPORTS if found.is_late and room(found.importer) not in ("cli", "")}
    assert late == LATE_IMPORTS and len(late) <= 8


def test_public_class_names_are_unique():
    modules = collections.defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module)
    assert not {name: places for name, places in modules.items() if len(places) > 1}


@pytest.mark.parametrize("name", [name for name, libraries in LIBRARIES.items() if libraries is not None])
def test_a_room_imports_few_libraries(name):
    imported = {
        found.split(".")[0] for module, tree in TREES.items() if room(module) == name for found, _ in names(tree)
    }
    assert imported - STANDARD - {"plm_jax"} <= LIBRARIES[name]


def test_data_imports_neither_jax_nor_models():
    """A process of `prepare` stays small. Grain imports JAX itself, in the reader alone."""
    for module, tree in TREES.items():
        if room(module) == "data":
            imported = {found.split(".")[0] for found, _ in names(tree)}
            assert not imported & {"jax", "flax", "optax"}, module


def test_figures_of_labels_import_numpy_only():
    for module, tree in TREES.items():
        if module.startswith("plm_jax.data.labeled"):
            outside = {found.split(".")[0] for found, _ in names(tree)} - STANDARD - {"plm_jax"}
            assert outside <= {"numpy"}, module


def test_a_training_process_imports_no_tensorflow(tiny, tmp_path):
    """Runs the real command, which writes down the modules of its process at the end."""
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
    loaded = {name.split(".")[0] for name in json.loads((tmp_path / "modules.json").read_text())}
    assert {"jax", "orbax", "grain", "tensorboardX"} <= loaded
    forbidden = "tensorflow tensorflow_text tensorflow_datasets seqio torch transformers tensorboard"
    assert not loaded & set(forbidden.split())


# Maximum numbers of files and lines of our code. The shapes of the state need one trace of the model.
REACH = {"program": (25, 600), "state": (25, 745), "step": (25, 935)}
# Two stacks and attention between them.
REACH_T5 = {"program": (25, 600), "state": (25, 825), "step": (25, 990)}


@pytest.mark.parametrize(
    ("size", "reach"), [("gpt2", REACH), ("bert", REACH), ("t5", REACH_T5)], ids=["gpt2", "bert", "t5"]
)
def test_a_step_enters_little_code(size, reach):
    command = [sys.executable, "-m", "tests.support.reach", size]
    finished = subprocess.run(command, env=resume.environment(), cwd=PACKAGE.parent, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    entered = json.loads(finished.stdout)
    for name, (files, lines) in reach.items():
        assert 5 < entered[name]["files"] <= files and 200 < entered[name]["lines"] <= lines, name
