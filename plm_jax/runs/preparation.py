"""Preparation of the caches of a run, and a search for missing or outdated caches."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from plm_jax import config
from plm_jax.common import children, progress, storage, tasks
from plm_jax.common.errors import UserError
from plm_jax.data.cache import similar_words, staleness
from plm_jax.data.prepare import caches
from plm_jax.data.sources import task_mixtures


def prepare(
    run: config.Run, output: str | None = None, show_progress: bool = True, executor: tasks.Executor | None = None
) -> None:
    """Writes the vocabulary of a run and the caches of its sources into `output` (default: `data.cache_dir`).

    A source whose rate is 0 in every phase is left out. Each task of a seqio mixture has its own cache. A cache that is
    up to date is kept.

    Args:
      executor: engine that tokenizes; None to tokenize in one pass on this machine.

    Raises:
      UserError: a source or the vocabulary is missing or invalid, or the run cannot be trained on the tasks of a
        mixture.
    """
    sources = config.read_sources(run)
    caches.check(sources)
    mixtures = task_mixtures.registered(sources)
    config.expand_mixtures(run, mixtures)  # Raises if the run cannot be trained on the tasks.
    caches.prepare(
        run.data,
        run.vocabulary,
        sources,
        mixtures,
        output=output,
        show_progress=show_progress,
        executor=executor,
    )


def prepare_if_needed(run: config.Run, arguments: Sequence[str], trained: str = "") -> None:
    """Prepares the caches of a run in a child process if one of them is missing or differs from the config.

    This process does not import TensorFlow. In all processes of a job except the first, the function does nothing.

    Args:
      arguments: flags with which the command `prepare` reads the config of `run`.
      trained: directories of runs that were trained on the existing caches, as text for error messages; unless it is
        empty, caches that differ from the config are an error.

    Raises:
      UserError: the texts or settings of a cache differ from the config, but the cache must not be replaced, because a
        run was trained on it or because the job has several processes.
      SystemExit: the child process failed.
    """
    if not progress.is_first():
        return
    caches.check_training(run.vocabulary)
    # A folder in a bucket exists as soon as its upload begins.
    last = "manifest.json" if storage.is_remote(run.data.cache_dir) else ""
    missing, changed, checked = [], [], set()
    for each in (run, config.expand_mixtures(run)):  # The record of each mixture, then the caches of its tasks.
        names = [name for name in config.read_sources(each) if name not in checked]
        absent = [name for name in names if not storage.exists(os.path.join(run.data.cache_dir, name, last))]
        changed += changed_caches(each, [name for name in names if name not in absent])
        missing += absent
        checked.update(names)
    if run.data.similar_words:
        words_folder = os.path.join(run.data.cache_dir, similar_words.NAME)
        if not storage.exists(os.path.join(words_folder, last)):
            missing.append(similar_words.NAME)
        elif not similar_words.is_current(run.data.cache_dir, run.data.similar_words):
            changed.append(f"{run.data.similar_words} has changed since {words_folder} was made")
    several = os.environ.get("JAX_NUM_PROCESSES", os.environ.get("SLURM_NTASKS", "1")) != "1"
    if changed and trained:
        raise UserError(
            f"{'; '.join(changed)}; {trained} was trained on it: undo the change, choose another --workdir, or "
            "prepare it again and resume with --allow_changes"
        )
    if changed and (several or os.environ.get("PLM_JAX_DISTRIBUTED") == "1"):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax prepare --config=…` first")
    if missing:
        _say(f"no cache of {', '.join(missing)} in {run.data.cache_dir}: preparing the data")
    for change in changed:
        _say(f"{change}: preparing it again")
    if not missing and not changed:
        return
    environment = children.with_package(os.environ)
    if run.train.init_from:  # This process has already printed the warnings about the model.
        environment["PYTHONWARNINGS"] = ",".join(
            filter(None, (os.environ.get("PYTHONWARNINGS"), "ignore::UserWarning"))
        )
    finished = subprocess.run(children.command("prepare", *arguments), env=environment)
    if finished.returncode:
        sys.exit(finished.returncode)


def changed_caches(run: config.Run, names: Iterable[str]) -> list[str]:
    """Returns one line for each source in `names` whose cache differs from the config in its texts or settings.

    Also prints which caches could not be compared, and why.

    Raises:
      UserError: a cache is missing or damaged.
    """
    changed, unseen = [], []
    for name in names:
        comparison = staleness.compare(run.data, name)
        if comparison.changed:
            changed.append(
                f"the cache of '{name}' in {run.data.cache_dir} differs from the config ({comparison.changed})"
            )
        elif comparison.unseen:
            unseen.append(f"'{name}' ({comparison.unseen})")
    if unseen:
        _say(f"warning: cannot compare the texts of {', '.join(unseen)}: using their caches as they are")
    return changed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
