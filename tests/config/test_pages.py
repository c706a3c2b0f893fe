"""Config pages: however one is found it is one module, and its paths count from the right place."""

import importlib
import os
import pathlib
import sys

import pytest

import plm_jax
from plm_jax import config
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages

ROOT = pathlib.Path(__file__).parents[2]


def resolved(given: str) -> config.Run:
    page = pages.load(given)
    return config.resolve(page.config(), page.file)


@pytest.mark.parametrize("name", ["bert", "demo", "ablations/objectives_demo"])
def test_a_page_is_one_module_however_it_is_found(name, tmp_path):
    os.symlink(ROOT / "configs", tmp_path / "linked")
    imported = importlib.import_module(f"plm_jax.configs.{name.replace('/', '.')}")
    for folder in (ROOT / "configs", ROOT / "plm_jax/configs", tmp_path / "linked"):
        assert pages.load(f"{folder}/{name}.py").module is imported
    assert pages.load(name).module is imported
    assert users.module(str(ROOT / "plm_jax/experiments/sweep.py")) is importlib.import_module(
        "plm_jax.experiments.sweep"
    )


def test_a_users_page_is_one_module_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text("class Thing:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    first = pages.load("mine.py:small")
    assert first.size == "small" and pages.load(str(path)).size is None
    assert pages.load(str(path)).module is first.module is sys.modules[first.module.Thing.__module__]
    path.write_text("class Thing:\n    now = 1\n")
    assert pages.load("mine.py").module.Thing.now == 1
    path.write_text("class Thing:\n    now = 1 / 0\n")
    with pytest.raises(UserError, match=r"mine.py:2: ZeroDivisionError"):
        pages.load("mine.py")


def test_paths_of_a_file_count_from_its_folder_and_those_of_a_name_from_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = resolved(f"{ROOT}/configs/bert.py:tiny")
    assert run.data.cache_dir == f"{ROOT}/.cache/bert" and run.data.sources["books"].path.startswith(f"{ROOT}/corpora/")
    run = resolved("bert:tiny")
    assert run.data.cache_dir == f"{tmp_path}/.cache/bert"
    assert run.vocabulary.spec == f"wordpiece:{tmp_path}/vocabularies/bert-uncased/vocab.txt"


@pytest.mark.parametrize("given", ["demo:gpt2", f"{ROOT}/configs/demo.py:gpt2"])
def test_what_comes_with_the_package_is_found_from_any_folder(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = os.path.dirname(plm_jax.__file__)
    assert resolved(given).data.sources["sotu"].path == f"{package}/data/corpora/sotu.jsonl.gz"
    files = resolved("gpt2:small").vocabulary.spec.removeprefix("bpe:").split(",")
    assert [os.path.relpath(file, package) for file in files] == ["data/gpt2/vocab.json", "data/gpt2/merges.txt"]
    assert all(map(os.path.isfile, files))


def test_a_page_beside_another_is_found_beside_its_code_and_writes_beside_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = pages.load("ablations/objectives_demo")
    base = pages.load(sweep.module.base, beside=sweep)
    assert base.module.__name__ == "plm_jax.configs.demo" and base.size == "bert"
    assert config.resolve(base.config(), base.file).data.cache_dir == f"{tmp_path}/.cache/demo/bert"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("bret:base", "--config=bret: no config has that name .*did you mean 'bert'"),
        ("zzzzzz", r"choose from: ablations/albert_embedding, .*, albert, .*, transformer"),
        ("none/mine.py", "--config=none/mine.py: there is no such file; pass a config file"),
        ("bert:huge", "there is no size 'huge' in this config"),
        ("ablations/objectives_demo", "has no function get_config"),
    ],
)
def test_a_page_that_is_not_there_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        pages.load(given).config()


def test_every_page_has_a_name():
    files = [path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.py")]
    modules = {str(path)[:-3]: pages.load(str(path)[:-3]).module for path in files if path.stem != "__init__"}
    assert set(pages.names()) == {
        name for name, of in modules.items() if hasattr(of, "get_config") or hasattr(of, "overrides")
    }


def test_a_verb_takes_a_name_from_any_folder(verb, tmp_path):
    finished = verb("plan", "--config=bert:tiny", "--topology=none", "--config.train.batch_size=8", folder=tmp_path)
    assert finished.status == 0 and "4,433,468" in finished.out, finished.err
