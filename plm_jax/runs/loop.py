"""The training loop of a run: builds or restores its state, and runs a step and the callbacks for every batch."""

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from plm_jax import config
from plm_jax.common import users
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import epochs, phase_costs, resume, run_directory, selection, setup, weights_and_biases, workdir_lock
from plm_jax.runs.audits import Audit, CheckReplicas
from plm_jax.runs.callbacks import Callback, Stop, TrainingContext
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.compile_ahead import PhaseSteps
from plm_jax.runs.coordination import Coordinator
from plm_jax.runs.goodput import Goodput
from plm_jax.runs.heartbeat import Heartbeat
from plm_jax.runs.incidents import RollBack
from plm_jax.runs.interruption import Interruption
from plm_jax.runs.metrics_logger import MetricsLogger
from plm_jax.runs.profiling import Profiler
from plm_jax.runs.programs import Programs
from plm_jax.runs.saving import Coordinate, Save
from plm_jax.runs.setup import TrainingSetup
from plm_jax.runs.task_evaluation import TaskEvaluation
from plm_jax.runs.telemetry import Telemetry, report_logs
from plm_jax.runs.validation import Validate


def pretrain(
    run: config.Run,
    workdir: str,
    allow_changes: bool = False,
    refuse_damaged: bool = False,
    began: float | None = None,
) -> bool:
    """Trains a run, starting from the newest checkpoint in `workdir` if there is one.

    Training ends after `run.train.steps` steps, or earlier because of `evaluation.patience`. The tasks of a seqio
    mixture become sources of the run. If `train.epochs` is set, the number of steps is computed from it.

    Args:
      allow_changes: whether to resume despite changes that are otherwise rejected, such as changes of the data or the
        optimizer; the run then continues after the examples that were already read.
      refuse_damaged: whether damage of the newest checkpoint or of the best weights is an error; if not, the run
        resumes from the newest intact checkpoint.
      began: time of this start, in seconds since 1970; by default now.

    Returns:
      Whether this call trained; False if the run was finished before.

    Raises:
      UserError: the config does not fit the devices, the caches or a checkpoint, or another process trains in
        `workdir`. Also raised if training cannot continue: too many steps in a row had no update, an audit found a
        device that computes wrongly, or too many saves failed.
      Interrupted: the run was asked to stop, and its last step is saved.
    """
    began = began or time.time()
    run = epochs.resolve_steps(config.expand_mixtures(run))
    run_directory.read(workdir)
    resumed = resume.find_latest_checkpoint(workdir, run.train.steps, refuse_damaged)
    job = setup.build(run, resumed)
    validation_hash = selection.hash_validation(run, job.reader)
    best = selection.read_start(run.evaluation.select, workdir, resumed, validation_hash, refuse_damaged)
    module_flags = users.flags(run) if run.evaluation.tasks else []
    tasks = TaskEvaluation(run.evaluation.tasks, run.data.sources, workdir, module_flags)
    notes = [*resumed.notes(run, job.changes), *best.notes] if resumed else list(best.notes)
    if resumed:
        has_stopped = selection.has_stopped(run.evaluation, resumed.step, best.history)
        is_finished = resumed.step == run.train.steps or has_stopped
        if is_finished or any(change.refused for change in job.changes):
            _print(notes)
            notes = []
        resumed.check(run, job.changes, allow_changes)
        if is_finished:
            field = "train.steps" if run.train.epochs is None else "train.epochs"
            field = "evaluation.patience" if has_stopped else field
            other = ", or choose another --workdir to train with the changed settings" if job.changes else ""
            _print([f"{workdir} is finished at step {resumed.step}: raise {field} to train further{other}"])
            return False
    job.reader.check_vocabulary()
    # Locked only after all checks, so that a rejected run leaves no files. The exit of `tasks` waits for the evaluation
    # of the last checkpoint.
    with tasks, workdir_lock.lock(workdir), Interruption(run.checkpoint.grace_seconds) as interruption:
        resume.set_damaged_aside(resumed, workdir)
        notes += selection.set_aside(best)
        _train(job, workdir, best, notes, began, interruption, tasks)
    return True


def _train(
    job: TrainingSetup,
    workdir: str,
    best: selection.Start,
    notes: Sequence[str],
    began: float,
    interruption: Interruption,
    tasks: TaskEvaluation,
) -> None:
    """Trains in a run directory that this job has locked."""
    run, first_step, saved = job.run, job.first_step, job.resumed.meta if job.resumed else {}
    described = run_directory.read(workdir) or {}
    run_id = folders.broadcast(described.get("run_id") or saved.get("run_id") or run_directory.new_id())
    goodput = Goodput(max(0.0, time.time() - began))
    process = jax.process_index(), jax.process_count()
    heartbeat = Heartbeat(workdir, goodput, began, run.train.stall_minutes, *process)
    base = folders.rollback_base(run)
    with heartbeat, Checkpoints(workdir, run.checkpoint, base, run_id) as checkpoints:
        state, restored = setup.starting_state(job, checkpoints.restore)
        history = described.get("history", [])
        with _open_telemetry(job, workdir, run_id, history, [*notes, *restored]) as telemetry:
            incidents = setup.new_incidents(job, workdir)
            count_costs = functools.partial(phase_costs.count, run)
            logger = MetricsLogger(run.train.log_every, count_costs, telemetry, goodput, incidents)
            coordinator = Coordinator(run.checkpoint, f"{workdir}/{first_step}")
            evaluation = run.evaluation
            selector = selection.Selection(job.validation, checkpoints, evaluation, best) if evaluation.select else None
            describe = functools.partial(setup.checkpoint_meta, job, incidents)
            callbacks: list[Callback] = [
                Profiler(run.train.profile_steps, workdir),
                logger,
                Audit(run.train, job.programs, logger, telemetry),
                Coordinate(coordinator, checkpoints, interruption, telemetry),
                Validate(job.validation, run.evaluation.every, logger),
                CheckReplicas(run.checkpoint, telemetry),
                Save(run.checkpoint, checkpoints, coordinator, logger, goodput, selector, describe, tasks, telemetry),
                Stop(),
            ]
            if base:
                load = functools.partial(setup.load_state, job, checkpoints.restore)
                roll_back = RollBack(incidents, job.program, checkpoints.directory, base, load, checkpoints.wait)
                callbacks.insert(1, roll_back)
            with goodput.measure("steps"):
                batches = goodput.measure_batches(setup.global_batches(job.programs, job.reader, first_step))
                goodput.begin(first_step)
                context = TrainingContext(job.programs.phases[0], job.program, state, first_step, run.train.steps)
                train(context, job.programs, batches, callbacks, logger.compiling)
            if context.step < run.train.steps and telemetry:
                telemetry.say(f"stopped at step {context.step}: {evaluation.select} has stopped improving")
            if selector and telemetry and (line := selector.describe_lost()):
                telemetry.say(line)


def train(
    context: TrainingContext,
    programs: Programs,
    batches: Iterator[tuple[Any, float]],
    callbacks: Sequence[Callback],
    compiling: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> None:
    """Trains from `context.step` until `context.num_steps`; at the end, `context` has the last state and metrics.

    Args:
      programs: programs of the run.
      batches: global batches of the steps after `context.step`, each with the seconds that this host waited for it.
      callbacks: called around every step, in their order.
      compiling: function from the name of a step to a context manager, within which the first step of each phase is
        compiled.
    """
    steps = PhaseSteps(programs)
    for phase in programs.phases:
        if phase.end_step <= context.step or context.is_last_step:
            continue
        program = programs.at(phase)
        context.state = program.place(context.state, context.program, phase.batch_size)
        context.phase, context.program = phase, program
        for callback in callbacks:
            callback.begin_phase(context)
        first_step, train_step = context.step, None
        for batch, waited in itertools.islice(batches, min(phase.end_step, context.num_steps) - first_step):
            is_first = context.step == first_step
            with compiling(f"step {context.step + 1}") if is_first else contextlib.nullcontext():
                train_step = train_step or steps.step(phase)
                for callback in callbacks:
                    callback.before_step(context)
                context.state, context.metrics = train_step(context.state, batch, *programs.inputs(context.step))
            context.step += 1
            if is_first:
                steps.prepare_next(context)
            context.batch = batch
            context.data_wait_seconds = waited
            for callback in callbacks:
                callback.after_step(context)
            if context.is_last_step:
                break
        for callback in callbacks:
            callback.end_phase(context)


@contextlib.contextmanager
def _open_telemetry(
    job: TrainingSetup, workdir: str, run_id: str, history: Sequence[dict[str, Any]], notes: Sequence[str]
) -> Iterator[Telemetry | None]:
    """Opens the files of metrics, writes config.json and reports notes in the first process; yields None in the others.

    Args:
      history: starts of the run so far, as in config.json.
      notes: lines to report before the notes about the program and the data.
    """
    if jax.process_index():
        with report_logs(lambda line: None):
            yield None
        return
    run = job.run
    logged_every = (job.resumed.saved_run if job.resumed else run).train.log_every
    with Telemetry(workdir, job.first_step, run.train.steps, logged_every) as telemetry, report_logs(telemetry.say):
        start = run_directory.start(job.first_step, [change[:3] for change in job.changes])
        run_directory.write(workdir, run_id, run, job.program.mesh.shape, [*history, start])
        for note in [*notes, *job.programs.notes(), *job.reader.notes(), *job.validation.notes()]:
            telemetry.say(note)
        if run.train.wandb_project:
            writer = weights_and_biases.WandbWriter(run, workdir, telemetry.say)
            telemetry.add_writer(writer.write, writer.close)
        yield telemetry


def _print(lines: Sequence[str]) -> None:
    """Prints lines to standard error, in the first process of a job."""
    if lines and jax.process_index() == 0:
        print(*lines, sep="\n", file=sys.stderr)
