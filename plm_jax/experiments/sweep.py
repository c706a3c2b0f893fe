"""Sweeps: trains and evaluates several runs of one base config and prints tables of their results."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

from tqdm import tqdm

from plm_jax.common import leases, metrics, progress, storage
from plm_jax.common.errors import Interrupted, UserError, nearest
from plm_jax.experiments import comparison, setups
from plm_jax.experiments.launchers import Here, Launcher, Local, Slurm, report
from plm_jax.experiments.members import Member, is_finished, result, write_json
from plm_jax.experiments.sweep_files import LOCK, RESULTS, TABLE, check_sources, load_comparisons, load_members

_STOPPED = "the sweep was stopped: run the same command again to continue"


def run(path: str, workdir: str, seeds: Sequence[int] = (), launcher: Launcher | None = None) -> None:
    """Trains and evaluates the unfinished runs of a sweep, and prints a table of all runs.

    Updates two files in `workdir` after each run: `sweep.json` (base config, all results and comparisons) and
    `table.md`.

    Args:
      seeds: each run whose overrides do not set `train.seed` is trained once with each of these seeds. By default, each
        run is trained once, with the seed of its config. With any other seed, its run directory is NAME-seedSEED.
      launcher: launcher of the runs; default: one after another on this machine.

    Raises:
      UserError: the sweep file is invalid, `workdir` is not writable, or another sweep uses it. Also raised, after all
        other runs were executed, if a run or its parent failed, or if a run directory contains a run with another
        config, or a run whose parent has been trained again since.
      Interrupted: the sweep and its runs were stopped.
    """
    sweep = _Sweep(path, workdir, seeds)
    with sweep.lock():
        unfinished = sweep.find_unfinished()
        sweep.execute(unfinished, launcher or Local())
        sweep.finish()


def run_one(path: str, workdir: str, seeds: Sequence[int], folder: str) -> None:
    """Trains and evaluates one run in a process of a launcher's job, while other jobs may execute other runs.

    Args:
      folder: name of the run directory.

    Raises:
      UserError: the sweep file is invalid, the run does not exist, its parent is not finished, or the run failed.
      Interrupted: the run was stopped.
    """
    sweep = _Sweep(path, workdir, seeds)
    members = {member.folder: member for member in sweep.members}
    if folder not in members:
        raise UserError(f"--run={folder}: {path} has no such run; {nearest(folder, members)}")
    member, unfinished = members[folder], sweep.find_unfinished()
    if member.parent in sweep.pending | sweep.errors.keys():
        raise UserError(f"{folder} {member.waiting_message}, which is not finished: train that run first")
    sweep.execute([member] if member in unfinished else [], Here())
    if member.workdir in sweep.errors:
        raise UserError(sweep.errors[member.workdir])


def enqueue(path: str, workdir: str, seeds: Sequence[int], slurm: Slurm) -> None:
    """Queues a job for each run that is neither finished nor queued, and prints the table of results so far.

    The job of a run starts after the job of the run's parent.

    Raises:
      UserError: a job cannot be queued, or `run` would raise a `UserError` for this sweep.
    """
    sweep = _Sweep(path, workdir, seeds)
    with sweep.lock():
        # Jobs are listed first, so that a run that ends in between is found finished.
        jobs = slurm.queued()
        unfinished = sweep.find_unfinished()
        for member in unfinished:
            with sweep.record_errors(member):
                name = slurm.name(member)
                if member.parent in sweep.errors:
                    raise UserError(member.waiting_message)
                if name in jobs:
                    report(f"{member.folder}: already queued, job {jobs[name]}")
                    continue
                parent = next((other for other in unfinished if other.workdir == member.parent), None)
                after = jobs[slurm.name(parent)] if parent else None
                jobs[name] = slurm.submit(member, after)
                report(f"{member.folder}: queued, job {jobs[name]}" + (f" after job {after}" if after else ""))
        sweep.finish()
        if unfinished:
            report(f"run the same command again when the jobs have ended, to print the table of {workdir}")


class _Sweep:
    """State of a sweep.

    Attributes:
      members: runs.
      errors: error messages, by run directory.
      pending: directories of runs that are waiting or running.
    """

    def __init__(self, path: str, workdir: str, seeds: Sequence[int]):
        self._workdir, self.members = workdir, load_members(path, workdir, seeds)
        self._comparisons = load_comparisons(path, {member.name for member in self.members})
        check_sources(path, self._comparisons, self.members)
        self._changed_targets = comparison.changed_targets([member.run for member in self.members])
        runs = {member.name: member.run for member in self.members}
        self._setups = setups.table(runs, setups.by_run(self._comparisons["published"]))
        self.errors: dict[str, str] = {}
        self.pending: set[str] = set()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the sweep's folder.

        Raises:
          UserError: another sweep uses the folder, or it is not writable.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(leases.held(os.path.join(self._workdir, LOCK), f"sweeps in {self._workdir}"))
            except OSError as error:
                raise UserError(f"cannot write {self._workdir} ({error.strerror}): use another --workdir") from error
            yield

    @contextlib.contextmanager
    def record_errors(self, member: Member) -> Iterator[None]:
        """Records a `UserError` or `OSError` raised within the context as the error of a run."""
        try:
            yield
        except UserError as error:
            self.errors[member.workdir] = str(error)
        except OSError as error:
            self.errors[member.workdir] = f"cannot write {error.filename} ({error.strerror})"

    def find_unfinished(self) -> list[Member]:
        """Returns the runs that are not finished, and marks them as pending. Records errors of other runs."""
        unfinished = []
        for member in self.members:
            with self.record_errors(member):
                if not is_finished(member):
                    unfinished.append(member)
        self.pending = {member.workdir for member in unfinished}
        num_finished = len(self.members) - len(self.errors) - len(unfinished)
        report(f"{len(self.members)} runs, {num_finished} of them already finished")
        return unfinished

    def execute(self, unfinished: Sequence[Member], launcher: Launcher) -> None:
        """Trains and evaluates runs, each after its parent, and updates the results after each run.

        Raises:
          Interrupted: the sweep was stopped, and its runs have ended.
        """
        self.write_results()
        waiting, running, num_ended, start = list(unfinished), {}, 0, time.monotonic()
        max_running = launcher.parallel or max(1, len(unfinished))
        with futures.ThreadPoolExecutor(max_running) as pool, launcher.report_progress():
            try:
                while waiting or running:
                    ready = [member for member in waiting if member.parent not in self.pending]
                    for member in ready[: max_running - len(running)]:
                        waiting.remove(member)
                        index = len(unfinished) - len(waiting)
                        report(f"== {index}/{len(unfinished)} {member.folder}: {member.workdir}")
                        running[pool.submit(self._execute_one, member, launcher)] = index, member
                    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                        index, member = running.pop(future)
                        future.result()
                        self.pending.discard(member.workdir)
                        self.write_results()
                        num_ended += 1
                        left = (time.monotonic() - start) / num_ended * (len(unfinished) - num_ended)
                        error = self.errors.get(member.workdir)
                        outcome = f"failed: {error}" if error else "finished"
                        remaining = f"about {tqdm.format_interval(left)} left"
                        report(f"== {index}/{len(unfinished)} {member.folder} {outcome}; {remaining}")
            except BaseException as error:
                launcher.processes.stop(*error.args if isinstance(error, KeyboardInterrupt) else ())
                futures.wait(running)
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted(_STOPPED) from error
                raise

    def _execute_one(self, member: Member, launcher: Launcher) -> None:
        with self.record_errors(member):
            if member.parent in self.errors:
                raise UserError(member.waiting_message)
            launcher.execute(member)

    def write_results(self) -> str:
        """Returns the tables in Markdown. The first process also writes the results so far to the sweep's folder."""
        results = [
            result(member, self.errors.get(member.workdir), member.workdir in self.pending) for member in self.members
        ]
        comparisons, tables = self._comparisons, [comparison.table(results)]
        compared, note = comparisons["compared"], ""
        if compared is None:
            compared, note = comparison.default_comparison(results, self._changed_targets)
        if comparisons["baselines"]:
            tables.append(comparison.baselines_table(results, comparisons["baselines"]))
        if compared:
            tables.append(comparison.paper_table(results, comparisons["published"], compared))
        below = comparison.METHOD if compared else note
        table = "\n".join(map(comparison.to_markdown, tables)) + (f"\n{below}\n" if below else "")
        published = [{"run": row.run, "figures": row.figures, "source": row.source} for row in comparisons["published"]]
        baselines = [{"run": row.run, "metric": row.metric, "others": row.columns} for row in comparisons["baselines"]]
        tree = {"baselines": baselines, "published": published, "setups": self._setups, "note": note}
        tree["compared"] = {name: comparison.to_json(metric) for name, metric in compared.items()}
        user_metrics = metrics.of_users({name for member in results for name in member["metrics"]})
        tree["metrics"] = {name: dataclasses.asdict(metric) for name, metric in user_metrics.items()}
        if progress.is_first():
            write_json(self._workdir, RESULTS, {"runs": results, **comparisons, **tree})
            storage.write(os.path.join(self._workdir, TABLE), table.encode("utf-8"))
        return table

    def finish(self) -> None:
        """Prints the tables.

        Raises:
          UserError: runs failed.
        """
        for member in self.members:  # A finished run may have started from a run that is rejected now.
            if member.parent in self.errors:
                self.errors.setdefault(member.workdir, member.waiting_message)
        print(self.write_results(), end="", flush=True)
        if self.errors:
            reasons = "; ".join(f"{os.path.basename(folder)}: {error}" for folder, error in self.errors.items())
            failed = f"{len(self.errors)} of {len(self.members)} runs failed"
            raise UserError(f"{failed} ({reasons}): fix them and run the same command again")
