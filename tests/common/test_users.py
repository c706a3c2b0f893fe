"""Code of users' own: found as one module, noted, asked for, handed to other processes, and never loaded unasked."""

import json
import pickle
import shutil
import subprocess
import sys

import pytest

import plm_jax
from plm_jax import config
from plm_jax.common import users
from plm_jax.common.errors import UserError
from tests.support.verbs import assert_one_line

OPTIMIZER = '''
from dataclasses import dataclass
from typing import ClassVar

from plm_jax import config


@dataclass(frozen=True)
class SignDescent(config.OptimizerConfig):
    """Steps of the rate's length, along the sign of each gradient."""

    kind: ClassVar[str] = "sign_descent"
    decay: float = 0.0

    def transformations(self):
        import optax

        return optax.add_decayed_weights(self.decay), optax.scale_by_sign()
'''
# The optimizer lies beside the page and the schedule is in it.
PAGE = """
from dataclasses import dataclass, replace
from typing import ClassVar

import {optimizer} as own
from plm_jax import config
from plm_jax.config import files


@dataclass(frozen=True)
class Halving(config.Schedule):
    kind: ClassVar[str] = "halving"
    every: int = 2

    def rate(self, total_steps, stages=()):
        return lambda step: self.learning_rate * 0.5 ** (step // self.every)


def get_config():
    run = config.from_dict(files.load({tiny!r}).config())
    return config.to_config_dict(replace(run, optimizer=own.SignDescent(), schedule=Halving(0.1)))
"""


@pytest.fixture
def folder(tiny, tmp_path):
    """A user's folder: `page.py` takes a class of `own_optimizer.py`."""
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "own_optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "page.py").write_text(PAGE.format(optimizer="own_optimizer", tiny=f"{tmp_path}/tiny.py"))
    return tmp_path


def test_a_file_is_one_module_however_it_is_found(tmp_path, monkeypatch):
    (tmp_path / "mine_a.py").write_text("import mine_b\nclass A(mine_b.B):\n    pass\n")
    (tmp_path / "mine_b.py").write_text("class B:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    first = users.load("mine_a.py")
    assert users.load(str(tmp_path / "mine_a.py")) is users.load("mine_a") is first
    second = users.load(str(tmp_path / "mine_b.py"))
    assert second is first.mine_b and first.A.__mro__[1] is second.B
    (tmp_path / "json.py").write_text("1 / 0\n")
    (tmp_path / "mine_c.py").write_text("import json\njson.dumps(1)\n")
    users.load("mine_c.py")  # What an import would find anyhow comes first.
    assert users.load("email.message").Message is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("none.py", "--module=none.py: there is no such module"),
        ("none", "--module=none: there is no such module"),
        ("none.more", "--module=none.more: there is no such module"),
        ("..", "--module=..: there is no such module"),
        (".hidden", "--module=.hidden: there is no such module"),
        ("a..b", "--module=a..b: there is no such module"),
        ("", "--module=: there is no such module"),
        ("__main__", "--module=__main__: there is no such module"),
        ("os.path.more", "--module=os.path.more: there is no such module"),
        ("broken.py", r"broken\.py:2: ZeroDivisionError"),
        ("leaves.py", r"leaves\.py:1: SystemExit: 3"),
        ("zero.py", r"zero\.py"),
        ("deep.py", r"deep\.py"),
        ("latin.py", r"latin\.py"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_one_line(given, said, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "deep.py").write_text("x = " + "-" * 100_000 + "1\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'\n")
    monkeypatch.setattr("sys.modules", sys.modules | {"__main__": type(sys)("__main__")})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        users.load(given)


def test_load_takes_modules_before_it_opens_anything(tmp_path):
    (tmp_path / "own_three.py").write_text(OPTIMIZER.replace("sign_descent", "sign_descent_of_three"))
    with pytest.raises(UserError, match="nothing does not exist"):
        plm_jax.load("nothing", modules=[str(tmp_path / "own_three.py")])
    assert "sign_descent_of_three" in config.OptimizerConfig.choices


def test_a_process_that_is_handed_settings_finds_their_classes(tmp_path):
    (tmp_path / "own_one.py").write_text(OPTIMIZER.replace("sign_descent", "sign_descent_of_one"))
    optimizer = users.load(str(tmp_path / "own_one.py")).SignDescent(decay=0.5)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).decay)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, input=pickle.dumps(optimizer), capture_output=True, check=True).stdout == b"0.5\n"


def test_what_is_not_ours_is_noted_with_its_hash(tmp_path):
    path = tmp_path / "own_two.py"
    path.write_text(OPTIMIZER.replace("sign_descent", "sign_descent_of_two"))
    optimizer = users.load(str(path)).SignDescent()
    settings = {"optimizer": optimizer, "others": [config.LambConfig(), {"inner": optimizer}]}
    record = json.loads(json.dumps(users.used(settings)))
    (entry,) = record.values()
    assert list(record) == [str(path)] and len(entry["sha256"]) == 64
    assert entry["kinds"] == {"optimizer": "sign_descent_of_two", "others.1.inner": "sign_descent_of_two"}
    assert users.changed(record, settings) == {} and users.flags(settings) == [f"--module={path}"]
    path.write_text(path.read_text() + "\n# A comment alone.\n")
    assert users.changed(record, {"optimizer": users.load(str(path)).SignDescent()}) == {}
    path.write_text(path.read_text().replace("self.decay)", "2 * self.decay)"))
    ((name, (was, now)),) = users.changed(record, {"optimizer": users.load(str(path)).SignDescent()}).items()
    assert name == str(path) and entry["sha256"].startswith(was) and was != now


def test_a_run_with_a_users_own_classes_is_opened_with_their_modules_alone(folder, verb):
    """The page brings them; a later verb is told which flag to add; nothing is loaded because a run names it."""
    workdir = folder / "run"
    train = ["pretrain", f"--config={folder}/page.py", f"--workdir={workdir}", "--config.checkpoint.save_every=1"]
    first = verb(*train, "--config.train.steps=1")
    assert first.status == 0, first.err
    described = json.loads((workdir / "config.json").read_text())
    assert described["config"]["optimizer"] == {
        "kind": "sign_descent",
        "clip_norm": 1.0,
        "groups": [],
        "layer_decay": 1.0,
        "decay": 0.0,
    }
    kinds = {name.rpartition("/")[2]: one["kinds"] for name, one in described["modules"].items()}
    assert kinds == {"own_optimizer.py": {"optimizer": "sign_descent"}, "page.py": {"schedule": "halving"}}
    # Comments and the result of `get_config` may change, the code of a kind may not.
    (folder / "own_optimizer.py").write_text(OPTIMIZER.replace('"""Steps', '"""# Takes') + "\n# Another.\n")
    page = (folder / "page.py").read_text().replace("Halving(0.1)", "Halving(learning_rate=0.1)")
    (folder / "page.py").write_text(page)
    more = [*train, "--config.train.steps=2", "--config.optimizer.kind=sign_descent"]
    finished = verb(*more)
    assert finished.status == 0, finished.err
    assert "the code in" not in finished.err
    (folder / "own_optimizer.py").write_text(OPTIMIZER.replace("self.decay)", "2 * self.decay)"))
    more[-2] = "--config.train.steps=3"
    assert_one_line(verb(*more), f"the code in {folder}/own_optimizer.py was ", "--allow_changes")
    rates = [json.loads(line)["train/learning_rate"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([0.1, 0.1])
    modules = [f"--module={folder}/own_optimizer.py", f"--module={folder}/page.py"]
    evaluate = ["evaluate", f"--checkpoint={workdir}", "--tasks=a"]
    refused = verb(*evaluate)
    assert refused.status == 2 and len(refused.errors) == 1
    assert "'halving', 'sign_descent' are defined in Python code that is not loaded: pass " in refused.errors[0]
    assert all(module in refused.errors[0] for module in modules)
    (line,) = verb(*evaluate, modules[0]).errors
    assert line.endswith(f"'halving' is defined in Python code that is not loaded: pass {modules[1]}")
    target = folder / "converted"
    converted = verb("convert", f"--source={workdir}", f"--target={target}", *modules)
    assert converted.status == 0, converted.err
    assert "pass --module=" in verb("generate", f"--checkpoint={target}", "--max_new_tokens=1", modules[0]).errors[0]
    (folder / "page.py").write_text(page.replace("0.5 **", "0.25 **"))
    done = verb("generate", f"--checkpoint={target}", "--max_new_tokens=1", *modules)
    assert done.status == 0, done.err
    assert f"the code in {folder}/page.py has changed since" in done.err
