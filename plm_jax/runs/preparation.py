"""Prepares the caches of a run, and finds those that are missing or out of date."""

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
    """Writes the cache of each source of a run into `output` (default: `data.cache_dir`), and its vocabulary.

    A source whose rate is 0 in every phase is left out. Each task of a seqio mixture has its own cache.

    Args:
      executor: engine that tokenizes; None to tokenize in one pass on this machine.

    Raises:
      UserError: a source or the vocabulary is missing or invalid.
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
    """Prepares the caches of the config's sources in a child process, so that this one never imports TensorFlow.

    It prepares the caches that are missing, and the caches whose texts or settings differ from those of the config.

    Args:
      arguments: the flags that make `prepare` read the same config.
      trained: name of what was trained on the existing caches; if it is set, they are not replaced.

    Raises:
      UserError: a cache has other texts or settings than the config, and it must not be replaced because something was
        trained on it or because the job has several processes.
    """
    if not progress.is_first():
        return
    # A folder in a bucket exists as soon as its upload begins.
    last = "manifest.json" if storage.is_remote(run.data.cache_dir) else ""
    missing, changed, checked = [], [], set()
    for each in (run, config.expand_mixtures(run)):  # Of a mixture what is noted of it, and then its tasks' caches.
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
    finished = subprocess.run(children.command("prepare", *arguments), env=children.with_package(os.environ))
    if finished.returncode:
        sys.exit(finished.returncode)


def changed_caches(run: config.Run, names: Iterable[str]) -> list[str]:
    """Returns a line for each of these sources whose cache does not have the texts and settings of the config.

    Prints which caches could not be compared, and why.

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
        _say(f"cannot compare the texts of {', '.join(unseen)}: using their caches as they are")
    return changed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
