"""Several runs of one base config, and one table of what they reached: training what `sweep_pages` describes."""

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
from plm_jax.experiments.launchers import Here, Launcher, Local, Slurm, say
from plm_jax.experiments.members import Member, is_finished, result, write_json
from plm_jax.experiments.sweep_files import LOCK, RESULTS, TABLE, members, others

_STOPPED = "the sweep was stopped: the same command goes on"


def run(path: str, workdir: str, seeds: Sequence[int] = (), launcher: Launcher | None = None) -> None:
    """Trains and evaluates the runs of a sweep that are not finished, and prints the table of all.

    `sweep.json`, with the base, every figure, and what they are compared with, and `table.md` are in `workdir`, brought
    up to date after each run.

    Args:
      seeds: the seeds of each run that does not set `train.seed` itself; by default its own alone. Those of other
        seeds are in NAME-seedSEED.
      launcher: where they are trained; by default one after another on this machine.

    Raises:
      UserError: the sweep's file cannot be used, or `workdir` not be written; another process sweeps in it; a run
        failed, or waits for its parent, which did; one of another config, or that began with former weights of its
        parent, is in its place. The other runs are done nevertheless.
      Interrupted: it was asked to stop, and so were its runs, which have ended.
    """
    sweep = _Sweep(path, workdir, seeds)
    with sweep.held():
        missing = sweep.look()
        sweep.carry_out(missing, launcher or Local())
        sweep.end()


def run_one(path: str, workdir: str, seeds: Sequence[int], folder: str) -> None:
    """Trains and evaluates one run, as a launcher's job, or one of its processes; others may do others meanwhile.

    Args:
      folder: the name of its run directory.

    Raises:
      UserError: there is no such run, or its parent is not finished; else as `run`.
      Interrupted: as `run`.
    """
    sweep = _Sweep(path, workdir, seeds)
    found = {member.folder: member for member in sweep.found}
    if folder not in found:
        raise UserError(f"--run={folder}: {path} has no such run; {nearest(folder, found)}")
    member, missing = found[folder], sweep.look()
    if member.parent in sweep.pending | sweep.errors.keys():
        raise UserError(f"{folder} {member.waits}, which is not finished: run that first")
    sweep.carry_out([one for one in missing if one is member], Here())
    if member.workdir in sweep.errors:
        raise UserError(sweep.errors[member.workdir])


def enqueue(path: str, workdir: str, seeds: Sequence[int], slurm: Slurm) -> None:
    """Queues a job for each run that is neither finished nor queued, after that of its parent; prints the table so far.

    Raises:
      UserError: as `run`; no job can be queued.
    """
    sweep = _Sweep(path, workdir, seeds)
    with sweep.held():
        # First: what ends while this looks around is then found finished.
        jobs = slurm.queued()
        missing = sweep.look()
        for member in missing:
            with sweep.noted(member):
                name = slurm.name(member)
                if member.parent in sweep.errors:
                    raise UserError(member.waits)
                if name in jobs:
                    say(f"{member.folder}: is queued, job {jobs[name]}")
                    continue
                parent = next((one for one in missing if one.workdir == member.parent), None)
                after = jobs[slurm.name(parent)] if parent else None
                jobs[name] = slurm.submit(member, after)
                say(f"{member.folder}: queued, job {jobs[name]}" + (f" after job {after}" if after else ""))
        sweep.end()
        if missing:
            say(f"the same command makes the table, of {workdir}, when they have ended")


class _Sweep:
    """What a sweep has come to.

    Attributes:
      found: its runs.
      errors: what is wrong with runs, by their directories.
      pending: the directories of runs that are to come, or go on.
    """

    def __init__(self, path: str, workdir: str, seeds: Sequence[int]):
        self._workdir, self.found = workdir, members(path, workdir, seeds)
        self._others = others(path, {member.name for member in self.found})
        runs = {member.name: member.run for member in self.found}
        self._setups = setups.table(runs, setups.by_run(self._others["published"]))
        self.errors: dict[str, str] = {}
        self.pending: set[str] = set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the sweep's folder.

        Raises:
          UserError: another process sweeps in it, or it cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(leases.held(os.path.join(self._workdir, LOCK), f"sweeps in {self._workdir}"))
            except OSError as error:
                raise UserError(f"cannot write {self._workdir} ({error.strerror}): give another --workdir") from error
            yield

    @contextlib.contextmanager
    def noted(self, member: Member) -> Iterator[None]:
        """Takes a mistake for that of a run."""
        try:
            yield
        except UserError as error:
            self.errors[member.workdir] = str(error)
        except OSError as error:
            self.errors[member.workdir] = f"cannot write {error.filename} ({error.strerror})"

    def look(self) -> list[Member]:
        """The runs that are not finished."""
        missing = []
        for member in self.found:
            with self.noted(member):
                if not is_finished(member):
                    missing.append(member)
        self.pending = {member.workdir for member in missing}
        say(f"{len(self.found)} runs, {len(self.found) - len(self.errors) - len(missing)} of them finished before")
        return missing

    def carry_out(self, missing: Sequence[Member], launcher: Launcher) -> None:
        """Has runs trained and evaluated, each after its parent, and tells after each what is reached.

        Raises:
          Interrupted: it was asked to stop, and the runs have ended.
        """
        self.tell()
        waiting, running, ended, began = list(missing), {}, 0, time.monotonic()
        most = launcher.parallel or max(1, len(missing))
        with futures.ThreadPoolExecutor(most) as pool, launcher.telling():
            try:
                while waiting or running:
                    for member in [one for one in waiting if one.parent not in self.pending][: most - len(running)]:
                        waiting.remove(member)
                        number = len(missing) - len(waiting)
                        say(f"== {number}/{len(missing)} {member.folder}: {member.workdir}")
                        running[pool.submit(self._carried_out, member, launcher)] = number, member
                    for done in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                        number, member = running.pop(done)
                        done.result()
                        self.pending.discard(member.workdir)
                        self.tell()
                        ended += 1
                        left = (time.monotonic() - began) / ended * (len(missing) - ended)
                        error = self.errors.get(member.workdir)
                        ending = f"failed: {error}" if error else "finished"
                        about = f"about {tqdm.format_interval(left)} left"
                        say(f"== {number}/{len(missing)} {member.folder} {ending}; {about}")
            except BaseException as error:
                launcher.processes.stop(*error.args if isinstance(error, KeyboardInterrupt) else ())
                futures.wait(running)
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted(_STOPPED) from error
                raise

    def _carried_out(self, member: Member, launcher: Launcher) -> None:
        with self.noted(member):
            if member.parent in self.errors:
                raise UserError(member.waits)
            launcher.carry_out(member)

    def tell(self) -> str:
        """Writes what the runs have reached so far, and gives the table."""
        results = [result(one, self.errors.get(one.workdir), one.workdir in self.pending) for one in self.found]
        beside, tables = self._others, [comparison.table(results)]
        compared = comparison.default_comparison(results) if beside["compared"] is None else beside["compared"]
        if beside["rivals"]:
            tables.append(comparison.beside(results, beside["rivals"]))
        if compared:
            tables.append(comparison.papers(results, beside["published"], compared))
        table = "\n".join(map(comparison.markdown, tables)) + (f"\n{comparison.METHOD}\n" if compared else "")
        published = [{"run": row.run, "figures": row.figures, "source": row.source} for row in beside["published"]]
        tree = {"rivals": [row._asdict() for row in beside["rivals"]], "published": published, "setups": self._setups}
        tree["compared"] = {name: comparison.to_json(metric) for name, metric in compared.items()}
        own = metrics.of_users({name for one in results for name in one["metrics"]})
        tree["metrics"] = {name: dataclasses.asdict(metric) for name, metric in own.items()}
        if progress.is_first():
            write_json(self._workdir, RESULTS, {"runs": results, **beside, **tree})
            storage.write(os.path.join(self._workdir, TABLE), table.encode("utf-8"))
        return table

    def end(self) -> None:
        """Prints the table.

        Raises:
          UserError: runs failed.
        """
        for member in self.found:  # What finished before may have weights of a run that is refused now.
            if member.parent in self.errors:
                self.errors.setdefault(member.workdir, member.waits)
        print(self.tell(), end="", flush=True)
        if self.errors:
            said = "; ".join(f"{os.path.basename(folder)}: {error}" for folder, error in self.errors.items())
            failed = f"{len(self.errors)} of {len(self.found)} runs failed"
            raise UserError(f"{failed} ({said}): mend them and run the same command again")
