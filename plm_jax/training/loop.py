"""The loop of a pretraining run: stages, steps, validation, checkpoints, telemetry."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from plm_jax import config, progress, storage
from plm_jax.data.reader import Reader, digest_hex
from plm_jax.errors import UserError
from plm_jax.training import flops, warm_start
from plm_jax.training import mesh as meshes
from plm_jax.training import state as states
from plm_jax.training.checkpoints import Checkpoints
from plm_jax.training.program import Program
from plm_jax.training.telemetry import Telemetry, heard
from plm_jax.training.validation import Validation

# Settings of a model that change neither its parameters nor what they mean.
_FREE_SETTINGS = ("scan_layers", "remat", "attention_kernel", "dropout")


def pretrain(run: config.Run, workdir: str) -> None:
    """Trains until `run.train.steps`, from the newest checkpoint in `workdir` if there is one.

    Raises:
      UserError: the batch does not fit the mesh, the cache or a checkpoint does not fit the config, the loss is lost.
    """
    trainer = Trainer(run)
    if jax.process_index() == 0:
        _check_same_model(run, workdir)
    with Checkpoints(workdir, run.checkpoint) as checkpoints:
        state, notes = trainer.start(checkpoints)
        first_step = int(state.step)
        telemetry = Telemetry(workdir, first_step, run.train.steps) if jax.process_index() == 0 else None
        with telemetry or contextlib.nullcontext(), heard(telemetry.say if telemetry else lambda line: None):
            if telemetry:
                _describe(run, trainer.mesh, workdir)
                for note in [*notes, *trainer.reader.notes(), *trainer.validation.notes()]:
                    telemetry.say(note)
            trainer.run_stages(state, first_step, checkpoints, telemetry)


class Trainer(Program):
    """A run's program and the data that it is fed."""

    def __init__(self, run: config.Run, devices=None):
        super().__init__(run, devices)
        with progress.doing("opening the caches"):
            self.reader = Reader(run)
            self.validation = Validation(self, self.reader)

    def start(self, checkpoints: Checkpoints) -> tuple[states.TrainState, list[str]]:
        """The state to begin with, and lines that say where it came from."""
        latest = checkpoints.latest()
        if latest is None:
            with progress.doing("drawing the parameters"):
                state = self.new_state()
            if not self.run.train.init_from:
                return state, []
            params, notes = warm_start.take(state.params, self.run.train)
            return state.replace(params=params), notes
        meta = checkpoints.meta(latest)
        if meta["vocabulary_id"] != self.reader.vocabulary["id"]:
            raise UserError(
                f"checkpoint {latest} was trained with vocabulary {meta['vocabulary_id'][:12]}, the cache has "
                f"{self.reader.vocabulary['id'][:12]}: use the cache it was trained on or another --workdir"
            )
        # What was carried is of the batch size of then.
        like = self.state_like(meta.get("batch_size", self.stages[0].batch_size))
        return checkpoints.restore(latest, like), [f"resumed after step {latest}"]

    def _entering(self, state, stage: config.Stage) -> states.TrainState:
        """The state with which a stage begins or goes on: another batch size begins with a fresh carry."""
        if all(len(leaf) == stage.batch_size for leaf in jax.tree.leaves(state.carry)):
            return state
        return state.replace(carry=self.new_carry(stage.batch_size))

    def batches(self, first_step: int):
        """The global batches from `first_step` on, each with the seconds that this host waited for it."""
        sharding = meshes.batch_sharding(self.mesh)
        rows = functools.cache(functools.partial(meshes.local_rows, sharding))
        local = self.reader.batches(first_step, rows)
        for stage in self.stages:
            for _ in range(max(first_step, stage.first_step), stage.end_step):
                began = time.perf_counter()
                batch = next(local)
                waited = time.perf_counter() - began
                yield meshes.to_global(batch, rows(stage.batch_size), stage.batch_size, sharding), waited

    def run_stages(self, state, first_step: int, checkpoints: Checkpoints, telemetry: Telemetry | None) -> None:
        """Steps through what is left of every stage."""
        run, step = self.run, first_step
        recorder = Recorder(self, telemetry)
        batches = self.batches(first_step)
        for index, stage in enumerate(self.stages):
            if step >= stage.end_step:
                continue
            train_step = self.stage_step(stage)
            state = self._entering(state, stage)
            recorder.begin(stage)
            begins = step
            for batch, waited in itertools.islice(batches, stage.end_step - step):
                with recorder.compiling(f"step {step + 1}") if step == begins else contextlib.nullcontext():
                    state, metrics = train_step(state, batch)
                step += 1
                validate = run.evaluation.every and step % run.evaluation.every == 0
                save = step % run.checkpoint.save_every == 0 or step == run.train.steps
                recorder.add(step, metrics, waited)
                if validate or save:
                    recorder.drain(functools.partial(self.validation, state.params, stage) if validate else None)
                if save:
                    if telemetry:
                        telemetry.sync()
                    checkpoints.save(step, state, self._meta(step, stage, index))
            recorder.drain()

    def _meta(self, step: int, stage: config.Stage, index: int) -> dict[str, Any]:
        return {
            "config": config.to_dict(self.run),
            "vocabulary_id": self.reader.vocabulary["id"],
            "batch_size": stage.batch_size,
            "next_example": stage.first_example + (step - stage.first_step) * stage.batch_size,
            "phase": index,
            "mesh": dict(self.mesh.shape),
        }


class Recorder:
    """Reads metrics one step late, so that the device never waits for the host, and writes the rows."""

    def __init__(self, trainer: Trainer, telemetry: Telemetry | None):
        self._run, self._telemetry = trainer.run, telemetry
        chip = flops.chip(jax.devices()[0].device_kind)
        self._peak = chip and chip.flops * jax.device_count()
        self._pending = None
        self._since = None
        self._waited, self._steps = 0.0, 0

    def begin(self, stage: config.Stage) -> None:
        """A new stage: its first step compiles and is left out of the speeds."""
        self._tokens = stage.batch_size * flops.row_lengths(self._run, stage)[0]
        self._flops = flops.of_stage(self._run, stage)
        self._since, self._waited, self._steps = None, 0.0, 0
        self._has_validated = False

    def compiling(self, what: str) -> contextlib.AbstractContextManager:
        """While it lasts a first step or validation is compiled, which is said with its seconds."""
        return self._telemetry.doing(f"compiling {what}", tells=True) if self._telemetry else contextlib.nullcontext()

    def _validating(self) -> contextlib.AbstractContextManager:
        """As `compiling`; later ones of a stage compile nothing."""
        if self._telemetry and self._has_validated:
            return self._telemetry.doing("validating")
        self._has_validated = True
        return self.compiling("validation, and validating")

    def add(self, step: int, metrics, waited: float) -> None:
        """Takes the metrics of a step just dispatched; reads those of the one before."""
        self.drain()
        self._pending = step, metrics, waited

    def drain(self, validate: Callable[[], dict[str, float]] | None = None) -> None:
        """Reads the pending metrics, waiting for them, and writes their row if one is due; validates, off the clock."""
        if self._pending is None:
            return
        step, metrics, waited = self._pending
        self._pending = None
        metrics = jax.device_get(metrics)
        now = time.perf_counter()
        if self._since is None:
            self._since, rates = now, {}
        else:
            self._steps, self._waited = self._steps + 1, self._waited + waited
            rates = self._rates(now)
        loss = float(metrics["loss"])
        # A gradient that is lost leaves lost parameters behind, though the loss before them was none.
        for name, value in (("loss", loss), ("gradient norm", float(metrics["grad_norm"]))):
            if not np.isfinite(value):
                raise UserError(
                    f"the {name} of step {step} is {value} (batch digest {digest_hex(metrics['digest'])}): lower the "
                    "learning rate or the gradient clipping and run again, which resumes from the last checkpoint"
                )
        with self._validating() if validate else contextlib.nullcontext():
            validated = validate() if validate else {}
        if self._telemetry is None:
            return
        self._telemetry.progress(step, loss, rates.get("train/tokens_per_second"))
        if step % self._run.train.log_every == 0 or step == self._run.train.steps or validated:
            self._telemetry.write(self._row(step, metrics, rates, validated))
            self._since, self._waited, self._steps = time.perf_counter() if validate else now, 0.0, 0

    def _rates(self, now: float) -> dict[str, float]:
        seconds = (now - self._since) / self._steps
        rates = {
            "train/step_seconds": seconds,
            "train/tokens_per_second": self._tokens / seconds,
            "train/data_wait_seconds": self._waited / self._steps,
        }
        if self._peak:
            rates["train/mfu"] = self._flops / seconds / self._peak
        return rates

    def _row(self, step: int, metrics, rates, validated) -> dict[str, Any]:
        row = {"step": step}
        row |= {f"train/{name}": float(value) for name, value in metrics.items() if name != "digest"}
        row |= rates | {"train/batch_digest": digest_hex(metrics["digest"])}
        return row | {f"validation/{name}": value for name, value in validated.items()}


def _check_same_model(run: config.Run, workdir: str) -> None:
    """The run directory must hold the same model, but for settings of speed and dropout."""
    path = os.path.join(workdir, "config.json")
    if not storage.exists(path):
        return
    try:
        before = config.from_dict(json.loads(storage.read(path))["config"])
    except (ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to go on with the config given now") from error
    shared = [name for name in _FREE_SETTINGS if hasattr(run.model, name) and hasattr(before.model, name)]
    free = {name: getattr(run.model, name) for name in shared}
    if dataclasses.replace(before.model, **free) != run.model:
        raise UserError(f"{workdir} holds a run of another model: choose another --workdir")


def _describe(run: config.Run, mesh, workdir: str) -> None:
    """Writes config.json and copies the vocabulary."""
    packages = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    described = {
        "config": config.to_dict(run),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "git_commit": _git_commit(),
        "mesh": dict(mesh.shape),
    }
    storage.write(os.path.join(workdir, "config.json"), json.dumps(described, indent=2).encode("utf-8"))
    vocabulary = os.path.join(run.data.cache_dir, "vocabulary")
    for name in storage.names(vocabulary):
        storage.copy(os.path.join(vocabulary, name), os.path.join(workdir, "vocabulary", name))


def _git_commit() -> str | None:
    """The commit of the source tree, None outside of one."""
    try:
        command = ["git", "-C", os.path.dirname(__file__), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
