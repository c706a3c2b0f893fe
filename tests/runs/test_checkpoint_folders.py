"""Checkpoints that are damaged, swapped, read while they are removed, or of old."""

import errno
import fcntl
import json
import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from plm_jax import config
from plm_jax.common import sealing, storage
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoint_lists, checkpoints, history, incidents, loop
from plm_jax.runs.resume import find_latest_checkpoint, set_damaged_aside
from plm_jax.training.state import TrainState
from tests.support import locks, resume, runs
from tests.support.verbs import assert_one_line


@pytest.fixture(scope="module")
def train(tiny, verb):
    """`train(workdir, …)` trains or resumes a run that keeps the checkpoints of steps 2, 4 and 6."""

    def train(workdir, *more):
        keeps = ("--config.checkpoint.save_every=2", "--config.checkpoint.keep_last=3")
        finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *keeps, *more)
        assert finished.status == 0, finished.err

    return train


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """The directory of such a run."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train(workdir)
    return workdir


@pytest.fixture
def copied(trained, tmp_path):
    return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def values(checkpoint: pathlib.Path, item: str) -> pathlib.Path:
    """The file with the most of an item's values."""
    return max((path for path in (checkpoint / item).rglob("d/*")), key=lambda path: path.stat().st_size)


def reseal(checkpoint: pathlib.Path, /, **fields) -> None:
    """Writes a manifest with other fields for the files of a checkpoint as they are."""
    (checkpoint / "manifest.json").unlink()
    sealed = {"format": 2, "checkpoint": checkpoint.name, "step": int(checkpoint.name), "sealed": 1.5e9}
    sealing.seal(str(checkpoint), sealed | fields)


def change_meta(checkpoint: pathlib.Path, removed: str = "", **fields) -> None:
    path = checkpoint / "meta/metadata"
    meta = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in meta.items() if name != removed}))


def swap_items(directory):
    for step in ("4", "6"):
        shutil.rmtree(directory / step / "params")
    shutil.copytree(directory / "2" / "params", directory / "6" / "params")
    shutil.copytree(directory / "2" / "params", directory / "4" / "params")


def rename(directory):
    shutil.rmtree(directory / "6")
    (directory / "4").rename(directory / "6")


DAMAGES = {
    "a weight": (lambda directory: flip(values(directory / "6", "params")), "6", "is damaged"),
    "the manifest": (lambda directory: flip(directory / "6/manifest.json"), "6", "manifest.json is damaged"),
    "no manifest": (lambda directory: (directory / "6/manifest.json").unlink(), "6", "has no manifest.json"),
    "the meta": (lambda directory: flip(directory / "6/meta/metadata"), "6", ""),
    "an added file": (lambda directory: (directory / "6/params/d/new").touch(), "6", "was added"),
    "parts of another": (swap_items, "4", "is missing"),
    "another step": (rename, "6", "it was saved as 4, of step 4"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_run_resumes_from_the_newest_intact_checkpoint_and_keeps_the_damaged_one(
    damage, trained, copied, tiny, train, verb
):
    change, name, says = DAMAGES[damage]
    change(copied / "checkpoints")
    damaged = {path: path.read_bytes() for path in (copied / "checkpoints" / name).rglob("*") if path.is_file()}
    told = verb("checkpoints", "verify", str(copied))
    assert told.status == 2 and says in told.out and "resumes from the newest undamaged" in told.err.splitlines()[-1]
    with pytest.raises(UserError) as refused:
        loop.pretrain(_run(tiny), str(copied), refuse_damaged=True)
    assert str(copied / "checkpoints/6") in str(refused.value) and "\n" not in str(refused.value)
    train(copied)
    history = json.loads((copied / "config.json").read_text())["history"]
    assert history[-1]["step"] == {"parts of another": 2, "another step": 2}.get(damage, 4)
    assert resume.differences(copied, trained) == []
    aside = copied / "checkpoints" / f"{name}.damaged"
    assert {aside / path.relative_to(copied / "checkpoints" / name): data for path, data in damaged.items()} == {
        path: path.read_bytes() for path in aside.rglob("*") if path.is_file()
    }
    assert verb("checkpoints", "verify", str(copied)).status == 0


def _run(tiny):
    return runs.make(tiny, train={"steps": 6, "log_every": 1}, checkpoint={"save_every": 2, "keep_last": 3})


def test_every_process_uses_the_checkpoints_that_the_first_process_sees(copied, monkeypatch):
    directory = folders.of_run(str(copied))
    monkeypatch.setattr(folders, "broadcast", lambda steps: [step for step in steps if step < 6])
    resumed = find_latest_checkpoint(str(copied), 6)
    assert resumed.step == 4
    set_damaged_aside(resumed, str(copied))
    assert incidents.RollBack(None, None, directory, 2, None).find_target(6) == 4


def test_run_without_intact_checkpoints_is_refused(copied, tiny):
    for step in (2, 4, 6):
        flip(values(copied / "checkpoints" / str(step), "params"))
    with pytest.raises(UserError, match="checkpoints/2 is damaged"):
        loop.pretrain(_run(tiny), str(copied))
    assert {path.name for path in (copied / "checkpoints").iterdir()} == {"2", "4", "6"}


def test_readers_refuse_damage_and_name_an_intact_checkpoint(copied, verb):
    flip(values(copied / "checkpoints/6", "params"))
    says = f"use another checkpoint, such as {copied}/checkpoints/4"
    assert_one_line(verb("evaluate", f"--checkpoint={copied}"), "checkpoints/6 is damaged", says)
    assert_one_line(verb("convert", f"--source={copied}/checkpoints/6", f"--target={copied}/out"), says)
    (copied / "checkpoints/6/meta/metadata").unlink()
    assert_one_line(verb("generate", f"--checkpoint={copied}", "--prompt=a"), "checkpoints/6 is damaged", says)
    assert checkpoints.load_params(str(copied / "checkpoints/4")).meta["step"] == 4


@pytest.mark.parametrize(
    ("version", "meta", "says"),
    [
        (1, {"format": 1}, "has format 1, but this version of plm_jax reads format 2"),
        (2, {"removed": "run_id"}, "saved by an earlier version"),
    ],
)
def test_sealed_checkpoints_of_other_versions_are_refused(version, meta, says, copied):
    newest = copied / "checkpoints/6"
    change_meta(newest, **meta)
    assert folders.newest_intact(folders.of_run(str(copied)), refuse_damaged=False).checkpoint.name == "4"
    reseal(newest, format=version)
    with pytest.raises(UserError, match=says):
        folders.newest_intact(folders.of_run(str(copied)), refuse_damaged=False)


def test_checkpoint_of_another_run_is_ignored(copied, trained, train, tmp_path, verb):
    """A checkpoint of the same config and step from another run, whose files are all as they were saved."""
    train(tmp_path / "other")
    shutil.rmtree(copied / "checkpoints/6")
    shutil.copytree(tmp_path / "other/checkpoints/6", copied / "checkpoints/6")
    assert_one_line(verb("generate", f"--checkpoint={copied}", "--prompt=a"), "belongs to run", "checkpoints/4")
    assert verb("checkpoints", "verify", str(copied)).status == 2
    train(copied)
    assert json.loads((copied / "config.json").read_text())["history"][-1]["step"] == 4
    assert resume.differences(copied, trained) == [] and (copied / "checkpoints/6.damaged").exists()
    # Checkpoints that are moved without their config.json count as a separate run.
    (copied / "config.json").unlink()
    assert verb("checkpoints", "verify", str(copied)).status == 0


def test_checkpoint_that_is_read_is_not_removed(copied):
    directory = folders.of_run(str(copied))
    loaded = checkpoints.load_params(str(copied / "checkpoints/2"))
    assert folders.prune(directory, {6}) == [4]
    leaf = loaded.params["embedding"]["tokens"]["embedding"] if "embedding" in loaded.params else None
    del leaf, loaded
    assert folders.prune(directory, {6}) == [2] and folders.finished(directory) == [6]


@pytest.mark.parametrize("disk", ["nfs", "without locks"])
def test_checkpoints_on_network_disks_are_read_and_removed(disk, copied, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", locks.FLOCKS[disk])
    directory = folders.of_run(str(copied))
    assert checkpoints.load_params(str(copied)).meta["step"] == 6
    assert folders.prune(directory, {6}) == [2, 4]


def test_checkpoint_is_locked_until_it_is_renamed(copied, monkeypatch):
    rename, renamed = storage.rename, []

    def check_and_rename(source, target):
        with open(f"{source}/meta/metadata", "rb") as meta, pytest.raises(BlockingIOError):
            fcntl.flock(meta, fcntl.LOCK_SH | fcntl.LOCK_NB)
        rename(source, target)
        renamed.append(target)

    monkeypatch.setattr(storage, "rename", check_and_rename)
    assert folders.prune(folders.of_run(str(copied)), {6}) == [2, 4] and len(renamed) == 2


def test_checkpoint_that_another_process_removes_meanwhile_is_no_failure(copied, monkeypatch):
    directory, try_lock = folders.of_run(str(copied)), storage.try_lock

    def removed_meanwhile(file):
        shutil.rmtree(directory / "2")
        monkeypatch.setattr(storage, "try_lock", try_lock)
        return try_lock(file)

    monkeypatch.setattr(storage, "try_lock", removed_meanwhile)
    assert folders.prune(directory, {6}) == [4]


def test_reader_of_a_removed_checkpoint_reads_another(copied, monkeypatch):
    checked = folders.checked

    def removed_meanwhile(checkpoint, **which):
        monkeypatch.setattr(folders, "checked", checked)
        shutil.rmtree(copied / "checkpoints/6")
        return checked(checkpoint, **which)

    monkeypatch.setattr(folders, "checked", removed_meanwhile)
    assert checkpoints.load_params(str(copied)).meta["step"] == 4
    with pytest.raises(UserError):
        monkeypatch.setattr(folders, "checked", lambda *_, **__: (_ for _ in ()).throw(UserError("always")))
        checkpoints.load_params(str(copied))


def test_reader_names_a_checkpoint_without_manifest(copied):
    (copied / "checkpoints/6/manifest.json").unlink()
    with pytest.raises(UserError, match=r"checkpoint .*/checkpoints/6 is damaged \(it has no manifest.json\): use "):
        checkpoints.load_params(str(copied))


def test_reader_of_replaced_best_weights_does_not_mix_them(copied):
    directory = folders.of_run(str(copied))

    def save_best(step):
        shutil.copytree(directory / str(step), directory / "new")
        (directory / "new/manifest.json").unlink()
        sealing.seal(str(directory / "new"), {"format": 2, "checkpoint": "best", "step": step, "sealed": 1.5e9})
        folders.replace(directory / "new", directory / "best")

    save_best(2)
    first, *_, last = jax.tree.leaves(checkpoints.load_params(str(directory / "best")).params)
    first[...]
    save_best(4)
    with pytest.raises(UserError, match="best was replaced or removed while it was read: run the same command again"):
        last[...]


@pytest.mark.parametrize(
    "fields",
    [{"sealed": 1e308}, {"sealed": None}, {"sealed": "x"}, {"step": "6"}, {"checkpoint": None}, {"format": []}],
)
def test_invalid_manifest_is_damage(fields, copied):
    reseal(copied / "checkpoints/6", **fields)
    listed = checkpoint_lists.listed(checkpoint_lists.entries(str(copied), verify=False))
    assert "damaged: its manifest.json does not belong to a checkpoint" in listed
    assert folders.newest_intact(folders.of_run(str(copied)), refuse_damaged=False).checkpoint.name == "4"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"config": None}, "has no step or no config"),
        ({"config": []}, "has no step or no config"),
        ({"step": "6"}, "has no step or no config"),
        ({"stages": None}, "the stages of "),
        ({"stages": [{}]}, "the stages of "),
        ({"stages": [{"first_step": None}]}, "the stages of "),
    ],
)
def test_invalid_meta_is_damage(fields, says, copied):
    change_meta(copied / "checkpoints/6", **fields)
    reseal(copied / "checkpoints/6")
    with pytest.raises(UserError, match=says):
        history.read_history(str(copied), 6)
    if "stages" not in fields:
        assert folders.newest_intact(folders.of_run(str(copied)), refuse_damaged=False).checkpoint.name == "4"


def test_foreign_files_do_not_fail_a_save(train, tmp_path):
    directory, once = tmp_path / "run/checkpoints", ("keep_last=1", "max_failures=1")
    for steps in (2, 6):
        train(tmp_path / "run", f"--config.train.steps={steps}", *(f"--config.checkpoint.{each}" for each in once))
        (directory / "0003").mkdir(exist_ok=True)
        (directory / "1").write_text("x")
    assert {path.name for path in directory.iterdir()} == {"0003", "1", "6"}
    errors = [row["checkpoint/error"] for row in runs.rows(tmp_path / "run") if "checkpoint/error" in row]
    assert errors and all("an old checkpoint could not be removed ([Errno 20]" in line for line in errors)


def test_prune_and_list(copied, verb):
    listed = verb("checkpoints", "list", str(copied))
    assert listed.status == 0 and [line.split()[0] for line in listed.out.splitlines()] == ["2", "4", "6"]
    flip(values(copied / "checkpoints/6", "params"))
    refused = verb("checkpoints", "prune", str(copied), "--keep_last=1")
    assert refused.status == 2 and "6 is damaged" in refused.err
    shutil.rmtree(copied / "checkpoints/6")
    pruned = verb("checkpoints", "prune", str(copied), "--keep_last=1")
    assert pruned.out == "removed 2; kept 4\n", pruned.err
    for arguments, says in (
        (["prun", str(copied)], "did you mean 'prune'?"),
        (["list"], "DIR is missing"),
        (["list", str(copied / "none")], "no finished checkpoint"),
        (["prune", str(copied), "--keep_last=0"], "must be at least 1"),
    ):
        told = verb("checkpoints", *arguments)
        assert told.status == 2 and says in told.err, told.err


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "base", "retained"),
    [
        (2, 0, 0, {9, 10}),
        (1, 4, 0, {4, 8, 10}),
        (1, 0, 3, {9, 10}),  # The newest multiple of 3, and neither 3 nor 6.
        (2, 5, 4, {5, 8, 9, 10}),
        (20, 0, 0, set(range(1, 11))),
        (1, 20, 20, {10}),
    ],
)
def test_newest_checkpoints_and_checkpoints_at_multiples_are_retained(keep_last, keep_every, base, retained):
    assert folders.retained(range(1, 11), keep_last, keep_every, base) == retained


def test_prune_keeps_the_checkpoint_that_a_spike_rolls_back_to(copied, verb):
    newest = copied / "checkpoints/6"
    saved = json.loads((newest / "meta/metadata").read_text())["config"]
    saved["train"]["incidents"]["spikes"], saved["checkpoint"]["save_every"] = "roll_back", 4
    change_meta(newest, config=saved)
    reseal(newest)
    pruned = verb("checkpoints", "prune", str(copied), "--keep_last=1")
    assert pruned.out == "removed 2; kept 4, 6\n", pruned.err


def test_failed_save_removes_no_checkpoint(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    pruned = []
    state = TrainState(jnp.int32(1), params={"x": jnp.ones(2)}, optimizer={"x": jnp.ones(2)}, carry=())
    monkeypatch.setattr(folders, "prune", lambda *_: pruned.append(_))
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()) as saves:
        with monkeypatch.context() as full:
            full.setattr(sealing, "seal", fail)
            saves.save(1, state, {})
            saves.wait()
        assert "no space" in (saves.failure() or "") and not pruned
        saves.save(2, state, {})
        saves.wait()
        assert saves.failure() is None and len(pruned) == 1


def test_full_disk_is_named_in_one_phrase(tmp_path, monkeypatch):
    """TensorStore's message is long, and says at its end that there is no space."""

    def fail(*_, **__):
        raise ValueError(
            'RESOURCE_EXHAUSTED: Error writing "head_norm.scale/0" in OCDBT database at local file '
            + "x" * 200
            + os.strerror(errno.ENOSPC)
        )

    state = TrainState(jnp.int32(1), params={"x": jnp.ones(2)}, optimizer=(), carry=())
    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", fail)
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()) as saves:
        saves.save(1, state, {})
        assert saves.failure() == "checkpoint 1 could not be saved (No space left on device)"


def test_failed_best_weights_are_no_failed_checkpoint(tmp_path, monkeypatch):
    replace, state = folders.replace, TrainState(jnp.int32(1), params={"x": jnp.ones(2)}, optimizer=(), carry=())

    def replace_unless_best(sealed, final):
        if final.name == "best":
            raise OSError("no space")
        replace(sealed, final)

    monkeypatch.setattr(folders, "replace", replace_unless_best)
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()) as saves:
        assert not saves.save_best(1, state.params, {})
        saves.save(1, state, {})
        saves.wait()
        assert saves.failure() is None and "best could not be saved (no space)" in saves.warning()
    assert folders.finished(tmp_path / "checkpoints") == [1]


def test_any_error_of_a_save_in_a_single_process_is_a_failed_save(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: copy failed")

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", fail)
    state = TrainState(jnp.int32(1), params={"x": jnp.ones(2)}, optimizer=(), carry=())
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()) as saves:
        saves.save(1, state, {})
        assert saves.failure() == "checkpoint 1 could not be saved (INTERNAL: copy failed)"


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("no space"), Exception("no space")], ids=repr)
def test_save_that_cannot_begin_ends_a_job_of_several_processes(error, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    state = TrainState(jnp.int32(1), params={"x": jnp.ones(2)}, optimizer={"x": jnp.ones(2)}, carry=())
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()) as saves, monkeypatch.context() as job:
        job.setattr(ocp.AsyncCheckpointer, "save", fail)
        job.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(UserError, match=r"checkpoint 1 could not be saved \(no space\): make sure that .* written"):
            saves.save(1, state, {})


def test_remains_of_interrupted_saves_are_removed(tmp_path):
    directory = folders.of_run(str(tmp_path))
    for name in ("8.unsealed", "8.unsealed.orbax-checkpoint-tmp", "4.removed", "best.removed", "6.damaged", "2"):
        (directory / name).mkdir(parents=True)
    with checkpoints.Checkpoints(str(tmp_path), config.CheckpointConfig()):
        pass
    assert {path.name for path in directory.iterdir()} == {"best", "6.damaged", "2"}
