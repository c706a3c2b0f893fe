"""A cleaning run, from the files of a crawl to a folder of cleaned pages and a report."""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent import futures
from typing import Any

from plm_jax.cleaning import crawl, job_rules, lists, report, settings, stages
from plm_jax.cleaning.pages import Tally
from plm_jax.common import children, extras, jobs, storage, tasks, trees
from plm_jax.common.errors import UserError
from plm_jax.common.executors.local import LocalExecutor

FORMAT = 1
# Compressed bytes of the crawl per output file.
_SHARD_BYTES = 2**28
_MANIFEST = "manifest.json"
_WORK = ".work"  # Folder of a job in a remote output.
_COPIES = 16  # Files of a remote output that are copied at a time.


def clean(
    inputs: list[str],
    output: str,
    rule: settings.CleaningConfig,
    executor: tasks.Executor | None = None,
    show_progress: bool = True,
    part_bytes: int = 2**25,
) -> None:
    """Writes the pages that pass all rules as JSON Lines, for `config.TextTable`, and prints what was removed.

    The folder contains `train-*.jsonl.gz` and `validation-*.jsonl.gz` (with `Cld3Config`, in one folder per language),
    `quarantine/*.jsonl.gz`, `report.{json,md,svg}` and `manifest.json`, written last. Files without rows are not
    written. Files between the stages are in `.NAME.tmp` next to a local output, and in `.work` inside an output in a
    bucket. A repeated call resumes a run that was stopped. A finished output of the same files and settings is left
    unchanged. The kept pages and every byte of the files are independent of the executor and the number of its workers.

    Args:
      inputs: paths or globs of WET, WARC, JSON Lines or Parquet files.
      executor: engine that runs the tasks; every worker must be able to access inputs and output. Default: one process
        for each core of this machine.
      part_bytes: largest number of bytes of text that a task should hold in memory.

    Raises:
      UserError: there is no input, the input has no page, no page for training passes, a list is missing, tasks failed,
        the output is a file or contains other files, another run writes to it, or the extra `clean` or `report` is not
        installed.
    """
    for extra in ("clean", "report"):
        extras.require(extra)
    plan = make_plan(inputs, rule, part_bytes)
    files, rule, loaded = plan.files, plan.rule, plan.lists
    identity = _identity(files, rule, loaded)
    _check_output(output, files)
    work = os.path.join(output, _WORK) if storage.is_remote(output) else _hidden_path(output, "tmp")
    with jobs.exclusive(work, f"cleans into {output}"):
        if _read_manifest(output).get("identity") == identity:
            print(f"up to date at {output}")
            _remove(work)
            return
        job = jobs.begin(work, f"{identity} {part_bytes}")
        job_rules.write(job.folder, rule, loaded)
        print(f"{len(files):,} files to clean", file=sys.stderr)
        with executor or LocalExecutor() as engine:
            marks = children.in_background(lambda: tasks.run(job, stages.build(plan), engine, show_progress)).result()
        text = _finish(work, job.folder, output, identity, plan, marks)
    print(f"{text}\n{output}")


def make_plan(inputs: list[str], rule: settings.CleaningConfig, part_bytes: int) -> stages.Plan:
    """Lists the inputs, reads the lists that the settings name, and sets the number of shards if the settings do not.

    Raises:
      UserError: there is no input, or a list is missing or invalid.
    """
    files = crawl.files(inputs)
    if rule.shards is None:
        size = sum(file.size for file in files.values())
        rule = dataclasses.replace(rule, shards=size // _SHARD_BYTES + 1)
    return stages.Plan(files, rule, lists.load(rule), part_bytes)


def _finish(work: str, job_folder: str, output: str, identity: str, plan: stages.Plan, marks: tasks.Marks) -> str:
    """Writes the report and the manifest, and moves all files to the output. Returns the table of the report.

    Raises:
      UserError: no page can be read, or no page for training is left.
    """
    rule, files, counts = plan.rule, plan.files, _counts(stages.tally(marks))
    written = dict(sorted(file for mark in marks["write"] for file in mark.result["files"].items()))
    if "read" not in counts:
        _remove(work)
        names = ", ".join(list(files)[:3])
        raise UserError(f"no page in {names} can be read: pass WET, WARC, JSON Lines or Parquet files with text")
    table = report.table(rule, counts) + report.contamination(plan.lists.evaluations, counts)
    if not any(os.path.basename(name).startswith("train-") for name in written):
        _remove(work)
        print(table)
        raise UserError(
            "no page for training passed all rules (the table lists the reasons): relax rules with --set, or clean "
            "more files"
        )
    rows = {name: {"rows": rows, "characters": characters} for name, (rows, characters) in written.items()}
    folder = os.path.join(job_folder, "write")
    for name in set(storage.files_below(folder)) - written.keys():  # Of a task that was killed.
        storage.remove(os.path.join(folder, name))
    _write_report(folder, rule, rows, counts, table)
    manifest = {
        "format": FORMAT,
        "identity": identity,
        "settings": trees.to_dict(rule),
        "inputs": list(files),
        "files": rows,
    }
    encoded = json.dumps(manifest, indent=1).encode("utf-8")
    if storage.is_remote(output):
        _move(folder, output)
        storage.write(os.path.join(output, _MANIFEST), encoded)
    else:
        storage.write(os.path.join(folder, _MANIFEST), encoded)
        storage.replace_folder(folder, os.path.realpath(output))
    _remove(work)
    return table


def _remove(work: str) -> None:
    """Removes the folder of jobs; this run's lease is removed last."""
    jobs.clear(work)
    storage.remove(work)


def _move(folder: str, output: str) -> None:
    """Removes the earlier files of a remote output, and copies the files of `folder` to it. Can be repeated."""
    # The manifest first: an output without it counts as unfinished.
    storage.remove(os.path.join(output, _MANIFEST))
    names = storage.files_below(folder)
    for name in storage.names(output):
        if name != _WORK:
            storage.remove(os.path.join(output, name))
    with futures.ThreadPoolExecutor(_COPIES) as threads:
        copies = [
            threads.submit(storage.copy, os.path.join(folder, name), os.path.join(output, name)) for name in names
        ]
        for each in copies:
            each.result()


def _counts(tally: Tally) -> dict[str, Any]:
    """Returns a tally in the form in which the report stores it."""
    return {
        reason: {
            "number": count.number,
            "characters": count.characters,
            "examples": [{"url": url, "text": text} for _, url, text in count.examples],
        }
        for reason, count in sorted(tally.items())
    }


def _identity(files: Mapping[str, crawl.CrawlFile], rule: settings.CleaningConfig, loaded: lists.Lists) -> str:
    """Returns the SHA-256 of the files' paths, sizes and versions, the settings and the contents of the lists."""
    content = {
        "files": files,
        "settings": trees.to_dict(rule),
        "lists": list(loaded.files.values()),
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def _read_manifest(folder: str) -> dict[str, Any]:
    """Returns the manifest of a finished run, or an empty dict if there is no finished run."""
    try:
        manifest = json.loads(storage.read(os.path.join(folder, _MANIFEST)))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) and "inputs" in manifest else {}


def _check_output(output: str, inputs: Iterable[str]) -> None:
    """Rejects an output that is a file, or contains inputs or files that no cleaning run has written.

    Raises:
      UserError: the output is rejected.
    """
    if os.path.isfile(storage.absolute(output)):
        raise UserError(f"{output} is a file: set --output to a new folder")
    names = storage.names(output)
    is_unfinished = storage.is_remote(output) and jobs.LEASE in storage.names(os.path.join(output, _WORK))
    if names and not _read_manifest(output) and not is_unfinished:
        raise UserError(f"{output} contains other files, such as {names[0]}: set --output to a new folder")
    # The earlier output is removed, together with any inputs in it. Canonical paths see through links.
    inside = os.path.join(storage.canonical(output), "")
    for path in inputs:
        if storage.canonical(path).startswith(inside):
            raise UserError(f"{output} contains the input {path}: set --output to a new folder")


def _hidden_path(output: str, ending: str) -> str:
    """Returns the hidden path `.NAME.ending` next to a local output. Links are followed."""
    folder, name = os.path.split(os.path.realpath(output))
    return os.path.join(folder, f".{name}.{ending}")


def _write_report(
    folder: str, rule: settings.CleaningConfig, files: Mapping[str, Any], counts: Any, table: str
) -> None:
    """Writes three files to a folder: files and counts as JSON, the table with examples, and the plot."""
    content = json.dumps({"files": files, "counts": counts}, ensure_ascii=False, indent=1)
    page = f"# Text removed by cleaning\n\n{table}\n![Plot](report.svg)\n\n{report.examples(rule, counts)}"
    storage.write(os.path.join(folder, "report.json"), content.encode("utf-8"))
    storage.write(os.path.join(folder, "report.md"), page.encode("utf-8"))
    storage.write(os.path.join(folder, "report.svg"), report.plot(rule, counts))
