"""The loop of a pretraining run: stages, steps, validation, checkpoints, telemetry."""

import contextlib
import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from plm_jax import config
from plm_jax.common import progress, users
from plm_jax.common.errors import Interrupted, UserError
from plm_jax.data.reader import Reader, blank_batch, digest_hex
from plm_jax.data.sources import task_mixtures
from plm_jax.losses.loss import untrained_heads
from plm_jax.models import registry
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import (
    epochs,
    incidents,
    profiling,
    resume,
    run_directory,
    selection,
    warm_start,
    weights_and_biases,
    workdir_lock,
)
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.goodput import Ledger
from plm_jax.runs.heartbeat import Heartbeat
from plm_jax.runs.interruption import Interruption
from plm_jax.runs.saving import Saving
from plm_jax.runs.task_evaluation import TaskEvaluation
from plm_jax.runs.telemetry import Telemetry, heard
from plm_jax.runs.validation import Validation
from plm_jax.training import flops, optimizers, spikes, trainable
from plm_jax.training import mesh as meshes
from plm_jax.training import state as states
from plm_jax.training.program import Program, fitted

Restore = Callable[[int, states.TrainState], states.TrainState]
# Of what a step gives, what is not one number for a row.
_NO_FIGURES = ("digest", "norms", "incident", "limits")


def pretrain(
    run: config.Run,
    workdir: str,
    allow_changes: bool = False,
    refuse_damaged: bool = False,
    began: float | None = None,
) -> None:
    """Trains until `run.train.steps`, from the newest checkpoint in `workdir` if there is one.

    The run that is trained and noted has the tasks of a mixture of seqio's as sources (`task_mixtures.expanded`), and
    the steps of its epochs (`epochs.resolved`).

    Args:
      allow_changes: goes on from a checkpoint of another config, too, whose batches or optimizer are not those of this
        one; the examples that it reads follow on those that were read.
      refuse_damaged: a checkpoint that is damaged is an error; else the run goes on from the one before.
      began: when this start did, in seconds since 1970; by default now.

    Raises:
      UserError: the batch does not fit the mesh, the cache or a checkpoint does not fit the config, the loss is lost,
        another process trains in `workdir`, or too many saves failed.
      Interrupted: it was asked to stop, and its last step is saved.
    """
    began = began or time.time()
    is_first = jax.process_index() == 0
    run = epochs.resolved(task_mixtures.expanded(run))
    tasks = TaskEvaluation(run, workdir)
    run_directory.read(workdir)
    resumed = resume.find(run, workdir, refuse_damaged)
    best = selection.read_start(run, workdir, resumed, refuse_damaged)
    trainer = Trainer(run, resumed=resumed)
    notes, changes = list(best.notes), []
    if resumed:
        changes = trainer.changes()
        notes = [*resumed.notes(run, changes), *notes]
        if is_first and (resumed.step == run.train.steps or any(change.refused for change in changes)):
            print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)
            notes = []
        resumed.check(run, changes, allow_changes)
        if resumed.step == run.train.steps:
            if is_first:
                more = "train.steps" if run.train.epochs is None else "train.epochs"
                print(f"{workdir} is finished at step {resumed.step}: raise {more} to go on", file=sys.stderr)
            return
    trainer.reader.check_vocabulary()
    # Only now: a mistake leaves nothing behind. The tasks of the last checkpoint are scored when the run has ended.
    with tasks, workdir_lock.held(workdir), Interruption(run.checkpoint.grace_seconds) as interruption:
        resume.take(resumed, workdir)
        notes += selection.set_aside(best)
        _train(trainer, workdir, resumed, best, (notes, changes), began, interruption, tasks)


def _train(
    trainer: "Trainer",
    workdir: str,
    resumed: resume.Resumed | None,
    best: selection.Start,
    told: tuple[list[str], list[resume.Change]],
    began: float,
    interruption: Interruption,
    tasks: TaskEvaluation,
) -> None:
    """Trains in a run directory that this job holds; `told` are what is to be said, and what changed."""
    run, (notes, changes), is_first = trainer.run, told, jax.process_index() == 0
    described = run_directory.read(workdir) or {}
    run_id = described.get("run_id") or (resumed and resumed.meta.get("run_id")) or run_directory.new_id()
    run_id = folders.broadcast(run_id)
    ledger = Ledger(max(0.0, time.time() - began))
    place = jax.process_index(), jax.process_count()
    heartbeat = Heartbeat(workdir, ledger, began, run.train.stall_minutes, *place)
    base = run.checkpoint.save_every if run.train.incidents.spikes == "roll_back" else 0
    with heartbeat, Checkpoints(workdir, run.checkpoint, base, run_id) as checkpoints:
        state, started = trainer.start(checkpoints)
        first_step = int(state.step)
        logged_every = (resumed.before if resumed else run).train.log_every
        telemetry = Telemetry(workdir, first_step, run.train.steps, logged_every) if is_first else None
        with telemetry or contextlib.nullcontext(), heard(telemetry.say if telemetry else lambda line: None):
            if telemetry:
                start = run_directory.start(first_step, [change[:3] for change in changes])
                run_directory.write(workdir, run_id, run, trainer.mesh.shape, [*described.get("history", []), start])
                for note in [*notes, *started, *trainer.notes(), *trainer.reader.notes(), *trainer.validation.notes()]:
                    telemetry.say(note)
                sink = weights_and_biases.Sink(run, workdir, telemetry.say)
                telemetry.pass_on(sink.write, sink.close)
            saving = Saving(run.checkpoint, checkpoints, telemetry, interruption, f"{workdir}/{first_step}", tasks)
            select = run.evaluation.select
            selector = selection.Selection(trainer.validation, checkpoints, select, best) if select else None
            with ledger.spending("steps"):
                trainer.run_stages(state, first_step, checkpoints, saving, selector, telemetry, ledger, workdir)
            if selector and telemetry and (lost := selector.describe_lost()):
                telemetry.say(lost)


class Trainer(Program):
    """A run's program and the data that it is fed."""

    def __init__(self, run: config.Run, devices=None, resumed: resume.Resumed | None = None):
        """`resumed` is the checkpoint that the run goes on from."""
        super().__init__(run, devices, resumed and resumed.stages, resumed.step if resumed else 0)
        self._resumed = resumed
        with progress.doing("opening the caches"):
            rows = meshes.local_rows(meshes.batch_sharding(self.mesh), self.batch_size)
            self.reader = Reader(config.reader_config(run, self.stages), len(rows) / self.batch_size)
            self.validation = Validation(self, self.reader)
            self.validation.check_select()
        self._caches = {name: source.identity for name, source in self.reader.sources.items()}

    def changes(self) -> list[resume.Change]:
        """How the run differs from the one that it goes on from."""
        # The checkpoint tells the mesh of its last step, which its stages do not.
        last = next(stage for stage in config.resolve_phases(self.run) if self._resumed.step <= stage.end_step)
        try:
            mesh = meshes.build(config.mesh_of(self.run, last), self._devices)
        except UserError:  # Of a phase that is over: these devices need not fit it.
            mesh = self.mesh
        return self._resumed.changes(self.run, self._caches, self.reader.vocabulary["id"], mesh.shape)

    def start(self, checkpoints: Checkpoints) -> tuple[states.TrainState, list[str]]:
        """The state to begin with, and lines that say where it came from."""
        if self._resumed is None:
            self._refuse_untrained()
            return self.beginning()
        return self.restored(self._resumed, checkpoints.restore)

    def beginning(self) -> tuple[states.TrainState, list[str]]:
        """The state before the first step, and lines that say where it came from."""
        with progress.doing("drawing the parameters"):
            state = self.new_state()
        if not self.run.train.init_from:
            return state, []
        published = fitted(state, self.published_state, meshes.refitted)
        params, notes = warm_start.take(published.params, self.run.train, self.run.model)
        return fitted(published.replace(params=params), self.abstract_state, meshes.refitted), notes

    def restored(self, resumed: resume.Resumed, restore: Restore) -> tuple[states.TrainState, list[str]]:
        """The state of a checkpoint, which `restore` reads, and lines that say where it came from."""
        step, before = resumed.step, resumed.before
        # What was carried is of the batch size of then, and the moments are those of the optimizer of then.
        batch_size = resumed.meta.get("batch_size", self.batch_size)
        part = trainable.Trainable(before.train.trainable)
        optimizer = optimizers.build(before.optimizer, part, before.model)
        like = self.state_like(batch_size, optimizer)
        state = restore(step, self.state_like(batch_size, optimizer, padded=False))
        state, notes = fitted(state, like, meshes.refitted), [f"resumed after step {step}"]
        recent = incidents.window(resumed.meta.get("incidents", {}), self.run.train.incidents.window)
        state = state.replace(recent=meshes.place(recent, self.shardings.recent))
        same_kind = before.optimizer.kind == self.run.optimizer.kind and part == self.part
        if same_kind and _alike(like.optimizer, self.abstract_state.optimizer):
            return state.replace(optimizer=_in_types(state.optimizer, self.abstract_state.optimizer)), notes
        notes.append("the optimizer, or what it trains, is another: its moments begin anew, weights and step are kept")
        return state.replace(optimizer=self.new_moments(state.step)), notes

    def _refuse_untrained(self) -> None:
        """Raises `UserError` for a head that a new run would leave as it was drawn; one that goes on may have it."""
        batch = blank_batch(config.reader_config(self.run), self.stages[0].length)
        for head in untrained_heads(self.loss(), self.model(), batch):
            raise UserError(
                f"nothing trains the {head} head of config.model: objective '{self.run.objective.kind}' on config.data "
                "makes nothing that it learns from; leave the head out, or choose another objective or layout"
            )

    def batches(self, first_step: int):
        """The global batches from `first_step` on, each with the seconds that this host waited for it."""

        def host_rows(stage):
            return meshes.local_rows(meshes.batch_sharding(self.at(stage).mesh), stage.batch_size)

        local = self.reader.batches(first_step, host_rows)
        for stage in self.stages:
            if stage.end_step <= first_step:
                continue
            mesh, rows = self.at(stage).mesh, host_rows(stage)
            for _ in range(max(first_step, stage.first_step), stage.end_step):
                began = time.perf_counter()
                batch = next(local)
                waited = time.perf_counter() - began
                yield meshes.to_global(batch, rows, stage.batch_size, mesh), waited

    def incidents(self, workdir: str) -> incidents.Incidents:
        """What is known of the run's incidents where it begins, or goes on."""
        saved = self._resumed.meta.get("incidents", {}) if self._resumed else {}
        names = self.part.names(registry.shapes(self.run.model))
        return incidents.Incidents(self.run, workdir, self.reader, names, saved)

    def run_stages(
        self,
        state,
        first_step: int,
        checkpoints: Checkpoints,
        saving: Saving,
        selector: selection.Selection | None,
        telemetry: Telemetry | None,
        ledger: Ledger,
        workdir: str,
    ) -> None:
        """Steps through what is left of every stage.

        Raises:
          Interrupted: the run was asked to stop, and its step is saved.
        """
        run, step, seen = self.run, first_step, self.incidents(workdir)
        recorder, profiler = Recorder(self, telemetry, ledger, seen), profiling.Profiler(run, workdir)
        batches, program = ledger.awaited(self.batches(first_step)), self
        ledger.begin(first_step)
        for index, stage in enumerate(self.stages):
            if step >= stage.end_step:
                continue
            before, program = program, self.at(stage)
            train_step = program.stage_step(stage)
            state = program.place(state, before, stage.batch_size)
            recorder.begin(stage)
            begins = step
            for batch, waited in itertools.islice(batches, stage.end_step - step):
                with recorder.compiling(f"step {step + 1}") if step == begins else contextlib.nullcontext():
                    profiler.before(step + 1)
                    state, metrics = train_step(state, batch, *program.inputs(step))
                step += 1
                profiler.after(step, metrics)
                if seen.rolls_back and int(metrics["incident"]) == spikes.SPIKE:
                    checkpoints.wait()
                    state = seen.roll_back(self, program, stage, state, checkpoints.directory, checkpoints.restore)
                recorder.add(step, metrics, waited)
                decided = saving.after(step)
                is_last = step == run.train.steps
                validate = run.evaluation.every and (is_last or step % run.evaluation.every == 0)
                save = is_last or decided.save or step % run.checkpoint.save_every == 0
                if validate or save:
                    found = recorder.drain(
                        functools.partial(self.validation, state.params, stage) if validate else None
                    )
                is_best = selector and validate and selector.update(step, found)
                with ledger.saves() if save or is_best else contextlib.nullcontext():
                    if save or is_best:
                        published = fitted(state, program.published_state, meshes.refitted)
                        meta = self._meta(step, stage, index, seen.saved(state.recent), selector)
                    if is_best:
                        selector.save(step, published.params, meta)
                    if save:
                        saving.save(step, published, meta, is_last or bool(decided.stop))
                if decided.stop and not is_last:
                    raise Interrupted(
                        f"stopped by {decided.stop} after step {step}, which is saved: the same command goes on"
                    )
            recorder.drain()

    def _meta(
        self,
        step: int,
        stage: config.Phase,
        index: int,
        incident_state: Mapping[str, Any],
        selector: selection.Selection | None,
    ) -> dict[str, Any]:
        return {
            "config": config.to_dict(self.run),
            "modules": users.used(self.run),
            "versions": run_directory.versions(),
            "vocabulary_id": self.reader.vocabulary["id"],
            "caches": self._caches,
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "batch_size": stage.batch_size,
            "next_example": stage.first_example + (step - stage.first_step) * stage.batch_size,
            "phase": index,
            "mesh": dict(self.at(stage).mesh.shape),
            "devices": run_directory.devices(),
            "incidents": incident_state,
            "selected": selector.state() if selector else {},
        }


class Recorder:
    """Reads metrics one step late, so that the device never waits for the host, and writes the rows."""

    def __init__(self, trainer: Trainer, telemetry: Telemetry | None, ledger: Ledger, seen: incidents.Incidents):
        self._run, self._telemetry, self._ledger, self._incidents = trainer.run, telemetry, ledger, seen
        chip = flops.chip(jax.devices()[0].device_kind)
        self._peak = chip and chip.flops * jax.device_count()
        self._pending = None
        self._since = None
        self._waited, self._steps = 0.0, 0

    def begin(self, stage: config.Phase) -> None:
        """A new stage: its first step compiles and is left out of the speeds."""
        self._tokens = flops.tokens_of_stage(self._run, stage)
        self._flops = flops.of_stage(self._run, stage)
        self._since, self._waited, self._steps = None, 0.0, 0
        self._has_validated = False

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """While it lasts a first step or validation is compiled, which is said with its seconds."""
        with self._ledger.spending("compile"), self._doing(f"compiling {what}", tells=True):
            yield

    @contextlib.contextmanager
    def _validating(self) -> Iterator[None]:
        """As `compiling`; later ones of a stage compile nothing."""
        what = "validating" if self._has_validated else "compiling validation, and validating"
        tells, self._has_validated = not self._has_validated, True
        with self._ledger.spending("validation"), self._doing(what, tells):
            yield

    def _doing(self, what: str, tells: bool) -> contextlib.AbstractContextManager:
        return self._telemetry.doing(what, tells) if self._telemetry else contextlib.nullcontext()

    def add(self, step: int, metrics, waited: float) -> None:
        """Takes the metrics of a step just dispatched; reads those of the one before."""
        self._ledger.dispatched(metrics["loss"])
        self.drain()
        self._pending = step, metrics, waited

    def drain(self, validate: Callable[[], dict[str, float]] | None = None) -> dict[str, float]:
        """Reads the pending metrics, waiting for them, and writes their row if one is due; validates, off the clock.

        Returns:
          What the validation found.
        """
        if self._pending is None:
            return {}
        step, metrics, waited = self._pending
        self._pending = None
        metrics = jax.device_get(metrics)
        self._ledger.stepped(step)
        now = time.perf_counter()
        if self._since is None:
            self._since, rates = now, {}
        else:
            self._steps, self._waited = self._steps + 1, self._waited + waited
            rates = self._rates(now)
        loss = float(metrics["loss"])
        incident = self._incidents.see(step, metrics, self._telemetry and self._telemetry.say)
        with self._validating() if validate else contextlib.nullcontext():
            validated = validate() if validate else {}
        if self._telemetry is None:
            return validated
        if odd := [name for name, value in validated.items() if not math.isfinite(value)]:
            self._telemetry.say(
                f"validation after step {step}: {', '.join(odd)} of no finite value, left out of its row"
            )
        self._telemetry.progress(step, loss, rates.get("train/tokens_per_second"))
        if step % self._run.train.log_every == 0 or step == self._run.train.steps or validated or incident:
            self._telemetry.write(self._row(step, metrics, rates, validated) | incident)
            self._since, self._waited, self._steps = time.perf_counter() if validate else now, 0.0, 0
        return validated

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
        numbers = {name: float(value) for name, value in metrics.items() if name not in _NO_FIGURES}
        row = {"step": step} | _finite("train", numbers) | self._incidents.norms(metrics)
        row |= rates | {"train/batch_digest": digest_hex(metrics["digest"])}
        return row | _finite("validation", validated)


def _finite(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that JSON has a form for, as PREFIX/NAME."""
    return {f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)}


def _alike(tree, other) -> bool:
    """Whether two trees have the same structure and shapes."""
    shapes = ([leaf.shape for leaf in jax.tree.leaves(one)] for one in (tree, other))
    return jax.tree.structure(tree) == jax.tree.structure(other) and next(shapes) == next(shapes)


def _in_types(tree, like):
    """The arrays of a tree in the types of those of another."""
    return jax.tree.map(lambda leaf, other: leaf if leaf.dtype == other.dtype else leaf.astype(other.dtype), tree, like)
