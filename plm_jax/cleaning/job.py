"""A cleaning run: from the files of a crawl to a folder of cleaned pages and a report, which appears when complete."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from plm_jax.cleaning import crawl, lists, progress, report, settings
from plm_jax.common import children, extras, leases, storage, trees
from plm_jax.common.errors import UserError

FORMAT = 1
# Compressed bytes of the crawl per output file. Most of the text is removed, so the rest fits a worker's memory.
_SHARD_BYTES = 2**28
_LATER_FIELDS = ("limits", "repetition", "quality", "fineweb", "decontamination")
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished"  # Marks a remote output that is being written, or whose run was stopped.
_USER_ERROR = re.compile(r"UserError: (.*?)(?: \[while running.*)?$", re.MULTILINE)


def clean(
    inputs: list[str],
    output: str,
    rule: settings.CleaningConfig,
    runner_options: Sequence[str] = (),
    show_progress: bool = True,
) -> None:
    """Writes the pages that pass all rules as JSON Lines, for `config.TextTable`, and prints what was removed.

    The folder contains `train-*.jsonl.gz` and `validation-*.jsonl.gz` (in one folder per language if there are
    several), `quarantine/*.jsonl.gz`, `report.{json,md,svg}` and `manifest.json`, written last. A local folder is
    written under another name and renamed; a folder in a bucket is written in place. A finished output of the same
    files and settings is left unchanged. If several runs on a machine write to one folder, one runs and the others
    wait; for a bucket, they are rejected. The kept pages and every byte of the files are independent of the runner.

    Args:
      inputs: paths or globs of WET, WARC or JSON Lines files.
      runner_options: options of `runners.pipeline`. Every worker must be able to access inputs and output.

    Raises:
      UserError: there is no input or no page in it, no page for training passes, a list is missing, an option is wrong,
        or the output contains other files or is not shared by the workers.
    """
    files = crawl.files(inputs)
    if rule.shards is None:
        size = sum(file.size for file in files.values())
        rule = dataclasses.replace(rule, shards=size // _SHARD_BYTES + 1)
    loaded = lists.load(rule)
    identity = _identity(files, rule, loaded)
    with _lock(output):
        if _read_manifest(output).get("identity") == identity:
            print(f"up to date at {output}")
            return
        beam = _import_pipeline()
        pipeline = beam.start(runner_options)
        folder = _empty_folder(output, files)
        beam.Cleaning(rule, folder).build(pipeline, files, loaded)
        _run(pipeline, len(files), show_progress)
        results = _read_report(folder)
        if "read" not in results["counts"]:
            storage.remove(folder)
            raise UserError(f"no page in {', '.join(inputs)} can be read: pass WET, WARC or JSON Lines files with text")
        text = _write_report(folder, rule, loaded, results["counts"])
        if not any(os.path.basename(name).startswith("train-") for name in results["files"]):
            storage.remove(folder)
            print(text)
            raise UserError("no page for training passed all rules: the table lists the reasons")
        manifest = {
            "format": FORMAT,
            "identity": identity,
            "settings": trees.to_dict(rule),
            "inputs": list(files),
            "files": results["files"],
        }
        storage.write(os.path.join(folder, _MANIFEST), json.dumps(manifest, indent=1).encode("utf-8"))
        if folder == output:
            storage.remove(os.path.join(folder, _UNFINISHED))
        else:
            storage.replace_folder(folder, os.path.realpath(output))
        print(f"{text}\n{output}")


def _lock(output: str) -> contextlib.AbstractContextManager:
    """Returns a context manager in which no other run writes to the output.

    Raises:
      UserError: another run writes to this output, which is in a bucket.
    """
    if storage.is_remote(output):
        return leases.held(f"{storage.canonical(output).rstrip('/')}.lock", f"cleans into {output}")
    return storage.locked(_hidden_path(output, "lock"))


def _identity(files: Mapping[str, crawl.CrawlFile], rule: settings.CleaningConfig, loaded: lists.Lists) -> str:
    """Returns the SHA-256 of the files' paths, sizes and times, the settings and the contents of the lists."""
    described = trees.to_dict(rule)
    # Later fields: leaving out their defaults keeps older identities valid.
    for f in dataclasses.fields(rule):
        if f.name in _LATER_FIELDS and getattr(rule, f.name) == f.default:
            del described[f.name]
    content = {
        "files": files,
        "settings": described,
        "lists": [storage.sha256(path) for path in loaded.files],
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def _read_manifest(folder: str) -> dict[str, Any]:
    """Returns the manifest of a finished run, empty if there is none."""
    try:
        manifest = json.loads(storage.read(os.path.join(folder, _MANIFEST)))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) and "inputs" in manifest else {}


def _empty_folder(output: str, inputs: Iterable[str]) -> str:
    """Returns the folder to write to: a hidden one next to a local output, or the emptied remote output itself.

    Raises:
      UserError: the output is a file, or contains inputs or files that no cleaning run has written.
    """
    final = storage.absolute(output)
    if os.path.isfile(final):
        raise UserError(f"{output} is a file: set --output to a new folder")
    names = storage.names(output)
    if names and not _read_manifest(output) and _UNFINISHED not in names:
        raise UserError(f"{output} contains other files, such as {names[0]}: set --output to a new folder")
    # The earlier output is removed, together with any inputs in it. Canonical paths see through links.
    inside = os.path.join(storage.canonical(output), "")
    for path in inputs:
        if storage.canonical(path).startswith(inside):
            raise UserError(f"{output} contains the input {path}: set --output to a new folder")
    if storage.is_remote(output):
        storage.write(os.path.join(output, _UNFINISHED), b"")
        # The manifest first: an output without it counts as unfinished.
        for name in sorted(names, key=lambda name: name != _MANIFEST):
            if name != _UNFINISHED:
                storage.remove(os.path.join(output, name))
        return output
    folder = _hidden_path(output, "tmp")
    storage.remove(folder)
    return folder


def _hidden_path(output: str, ending: str) -> str:
    """Returns the hidden path `.NAME.ending` next to a local output. Links are followed."""
    folder, name = os.path.split(os.path.realpath(output))
    return os.path.join(folder, f".{name}.{ending}")


def _import_pipeline() -> ModuleType:
    try:
        from plm_jax.cleaning import pipeline
    except ModuleNotFoundError as error:
        raise UserError(f"cleaning needs Apache Beam: {extras.fix('clean')}") from error
    return pipeline


def _run(pipeline: Any, num_files: int, show_progress: bool) -> None:
    # Beam would log the traceback of an error in a worker, which is raised here anyway.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    print(f"{num_files:,} files to clean", file=sys.stderr)
    try:
        with progress.shown(num_files, show_progress):
            children.shielded(lambda: pipeline.run().wait_until_finish())
    except Exception as error:  # Each runner wraps errors of its workers differently.
        mistake = _USER_ERROR.search(f"{type(error).__name__}: {error}")
        if mistake:
            raise UserError(mistake[1]) from error
        raise


def _read_report(folder: str) -> dict[str, Any]:
    """Returns the files and counts that the workers reported."""
    try:
        return json.loads(storage.read(os.path.join(folder, "report.json")))
    except FileNotFoundError:
        raise UserError(f"the workers wrote nothing to {folder}: set --output to a folder that they share") from None


def _write_report(folder: str, rule: settings.CleaningConfig, loaded: lists.Lists, counts: dict[str, Any]) -> str:
    """Writes the tables with examples and the plot to a folder. Returns the tables."""
    table = report.table(rule, counts) + report.contamination(loaded.evaluations, counts)
    page = f"# Text removed by cleaning\n\n{table}\n![Plot](report.svg)\n\n{report.examples(rule, counts)}"
    storage.write(os.path.join(folder, "report.md"), page.encode("utf-8"))
    storage.write(os.path.join(folder, "report.svg"), report.plot(rule, counts))
    return table
