"""The package as it is installed: a wheel run from another folder by its one command, with and without the extras."""

import ast
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from plm_jax.__main__ import commands
from plm_jax.common.extras import EXTRAS
from tests.support import xla

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# As if what the extras bring were not installed, in this process and in those that it starts.
BLOCKER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """`installed(folder, VERB, …, extras=False)` runs the command of a wheel that lies outside of the checkout."""
    if not all(map(importlib.util.find_spec, ("pip", "setuptools"))):
        pytest.skip("needs pip and setuptools")
    folder = tmp_path_factory.mktemp("installed")
    left_out = shutil.ignore_patterns(".*", "tests", "runs", "build", "*.egg-info")

    def ignored(parent, names):
        return left_out(parent, names) if pathlib.Path(parent) == ROOT else []

    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    here = {"cwd": folder / "source", "check": True, "capture_output": True}
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", "."], **here)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", f"--target={folder}/packages", wheel], **here)
    (folder / "blocker").mkdir()
    blocked = {module for modules in EXTRAS.values() for module in modules}
    (folder / "blocker/sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))

    def run(where, *arguments, extras=True):
        path = [folder / "packages"] if extras else [folder / "packages", folder / "blocker"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "XLA_FLAGS": xla.flags(1)}
        environment |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        command = [folder / "packages/bin/plm_jax", *arguments]
        return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)

    return run


def assert_told(finished, extra):
    """One line says which extra to install."""
    pattern = rf"error: .* (need.*:|is not installed:) run pip install '\.\[{extra}\]' in a checkout of plm_jax"
    assert finished.returncode == 2 and re.fullmatch(pattern, finished.stderr.splitlines()[-1]), finished.stderr
    assert "Traceback" not in finished.stderr


# A demo of a few seconds.
QUICK = (
    *("--config=demo:bert", "--config.data.sources.sotu.path=text.jsonl", "--config.vocabulary.train_size=300"),
    *("--config.train.steps=2", "--config.train.batch_size=8", "--config.evaluation.every=0"),
    *("--config.model.stack.layers=1", "--config.data.validation_fraction=0.2"),
)


def test_an_installed_trainer_works_from_another_folder_without_any_extra(installed, tmp_path):
    lines = [{"text": f"The year {i} was good. The people of state {i % 7} had bread and peace."} for i in range(300)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("json", "random", "numpy", "jax", "grain", "multiprocessing", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the working directory was imported')\n")
    trained = installed(tmp_path, "pretrain", *QUICK, "--workdir=run", extras=False)
    assert trained.returncode == 0, trained.stderr
    (*_, last) = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["step"] == 2
    asked = installed(tmp_path, "generate", "--checkpoint=run", "--prompt=The [MASK]", extras=False)
    assert (asked.returncode, asked.stdout[:3]) == (0, "The"), asked.stderr


def test_an_installed_plan_works_from_another_folder_without_any_extra(installed, tmp_path):
    planned = installed(tmp_path, "plan", "--config=bert:tiny", "--topology=none", extras=False)
    assert planned.returncode == 0 and "4,433,468" in planned.stdout, planned.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("tasks", ["prepare", "--config=elmo:small"]),
        ("report", ["report", "--workdirs=.", "--png=png"]),
        ("clean", ["clean", "--input=a.jsonl", "--output=b", "--set=badwords=None"]),
        ("hub", ["convert", "--source=hf:org/bert", "--target=b"]),
    ],
)
def test_a_verb_whose_extra_is_missing_says_what_to_install(installed, tmp_path, extra, arguments):
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert_told(installed(tmp_path, *arguments, extras=False), extra)


def test_the_command_lists_its_verbs():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "plm_jax", *arguments], cwd=ROOT, capture_output=True, text=True)

    listed = run("--help")
    assert listed.returncode == 0
    files = {path.stem for path in (ROOT / "plm_jax").glob("*.py") if "command_line.run(" in path.read_text()}
    assert files | {"config"} <= commands().keys() and all(commands().values())
    for verb, summary in commands().items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", listed.stdout, re.MULTILINE)
    wrong = run("pretrian")
    assert (wrong.returncode, wrong.stderr) == (2, "error: unknown command 'pretrian': did you mean 'pretrain'?\n")


def names(requirements):
    """The distributions that requirements name, those of our own extras too."""
    distributions = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[(.*?)\])?", requirement).groups()
        if name == "plm_jax":
            for extra in extras.split(","):
                distributions |= names(PROJECT["optional-dependencies"][extra])
        else:
            distributions.add(re.sub("[-_.]+", "-", name).lower())
    return distributions


# What others of our dependencies bring: module, who brings it.
WITH_OTHERS = {
    "absl": "ml-collections",
    "etils": "orbax-checkpoint",
    "google": "tensorboardx",
    "fastwarc": "resiliparse",
}


def test_every_imported_module_belongs_to_a_dependency_or_a_known_extra():
    provided = importlib.metadata.packages_distributions()
    base = names(PROJECT["dependencies"])
    extra_of = {module: extra for extra, modules in EXTRAS.items() for module in modules}
    for path in (ROOT / "plm_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"plm_jax"}:
                of = names([WITH_OTHERS[module]] if module in WITH_OTHERS else provided.get(module, [module]))
                declared = names([f"plm_jax[{extra_of[module]}]"]) if module in extra_of else base
                assert of & declared, f"{path} imports {module}"


def test_the_lock_pins_every_requirement_by_hashes_and_has_no_address():
    text = (ROOT / "requirements.lock").read_text()
    locked = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            requirement, *hashes = entry.split(" --hash=")
            assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", one) for one in hashes), requirement
            pinned = requirement.partition(";")[0].strip()
            locked[re.sub("[-_.]+", "-", pinned.partition("==")[0]).lower()] = pinned
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if re.match(r"\w", line):
            name, _, version = line.partition(";")[0].strip().partition("==")
            assert locked[re.sub("[-_.]+", "-", name).lower()].endswith(f"=={version}"), line
    assert len(locked) > 100 and "://" not in text
    assert "uv pip compile requirements.txt --universal --python-version 3.11 --generate-hashes" in text


def test_requirements_include_all_dependencies():
    pinned = names(line for line in (ROOT / "requirements.txt").read_text().splitlines() if re.match(r"\w", line))
    # Those of accelerators, and what tests take from tests/peers.txt and tests/engines.txt.
    left_out = {"gpu", "gpu-plan", "tpu", "harness", "dask", "ray", "spark"}
    extras = [f"plm_jax[{extra}]" for extra in PROJECT["optional-dependencies"] if extra not in left_out]
    assert names([*PROJECT["dependencies"], *extras]) <= pinned
