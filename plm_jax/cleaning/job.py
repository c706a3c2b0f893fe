"""A whole run: from the files of a crawl to a folder of cleaned pages with a report, done once and never half used."""

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
from plm_jax.common import children, leases, storage, trees
from plm_jax.common.errors import UserError

FORMAT = 1
# Of the crawl's files for each of the output's: compressed, and mostly left out, so that a worker can hold what stays.
_SHARD_BYTES = 2**28
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished"  # Marks a remote output that is being made, or whose run was stopped.
_USER_ERROR = re.compile(r"UserError: (.*?)(?: \[while running.*)?$", re.MULTILINE)


def clean(
    inputs: list[str],
    output: str,
    rule: settings.CleaningConfig,
    runner_options: Sequence[str] = (),
    show_progress: bool = True,
) -> None:
    """Writes the pages that pass all rules as JSON lines, for `config.JsonLines`, and prints what was removed.

    The folder holds `train-*.jsonl.gz` and `validation-*.jsonl.gz` (for several languages in a folder each),
    `quarantine/*.jsonl.gz`, `report.{json,md,svg}` and, last of all, `manifest.json`. It is made beside and renamed, or
    in a bucket filled in place; one that the same files and settings have made is left as it is. Of several runs of a
    machine into one folder at once one works and the others wait for it; into a bucket the others are refused. Which
    pages are kept and every byte of the files do not depend on the runner.

    Args:
      inputs: paths or globs of WET, WARC or JSON lines files.
      runner_options: as `runners.pipeline` takes them; every worker must reach inputs and output.

    Raises:
      UserError: no input, no page in it, none for training that passes, a missing list, a wrong option, an output that
        holds something else or that the workers do not share.
    """
    files = crawl.files(inputs)
    if rule.shards is None:
        size = sum(file.size for file in files.values())
        rule = dataclasses.replace(rule, shards=size // _SHARD_BYTES + 1)
    loaded = lists.load(rule)
    wanted = _identity(files, rule, loaded)
    with _alone(output):
        if _finished(output).get("identity") == wanted:
            print(f"up to date at {output}")
            return
        beam = _import_pipeline()
        pipeline = beam.start(runner_options)
        folder = _empty_folder(output, files)
        beam.Cleaning(rule, folder).build(pipeline, files, loaded)
        _run(pipeline, len(files), show_progress)
        found = _found(folder)
        if "read" not in found["counts"]:
            storage.remove(folder)
            raise UserError(f"no page in {', '.join(inputs)} can be read: give WET, WARC or JSON lines with text")
        text = _write_report(folder, rule, found["counts"])
        if not any(os.path.basename(name).startswith("train-") for name in found["files"]):
            storage.remove(folder)
            print(text)
            raise UserError("no page for training passed all rules: the table says why")
        manifest = {
            "format": FORMAT,
            "identity": wanted,
            "settings": trees.to_dict(rule),
            "inputs": list(files),
            "files": found["files"],
        }
        storage.write(os.path.join(folder, _MANIFEST), json.dumps(manifest, indent=1).encode("utf-8"))
        if folder == output:
            storage.remove(os.path.join(folder, _UNFINISHED))
        else:
            storage.replace_folder(folder, os.path.realpath(output))
        print(f"{text}\n{output}")


def _alone(output: str) -> contextlib.AbstractContextManager:
    """While it lasts no other run writes there.

    Raises:
      UserError: another one does so in a bucket.
    """
    if storage.is_remote(output):
        return leases.held(f"{storage.canonical(output).rstrip('/')}.lock", f"cleans into {output}")
    return storage.locked(_beside(output, "lock"))


def _identity(files: Mapping[str, crawl.CrawlFile], rule: settings.CleaningConfig, loaded: lists.Lists) -> str:
    """SHA-256 of the files' paths, sizes and times, the settings and the lists' contents."""
    described = trees.to_dict(rule)
    if rule.limits == settings.LimitsConfig():  # Which came later, and cleaned crawls are what they were.
        del described["limits"]
    what = {
        "files": files,
        "settings": described,
        "lists": [storage.sha256(path) for path in loaded.files],
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()


def _finished(folder: str) -> dict[str, Any]:
    """The manifest of a run that has ended, empty if there is none."""
    try:
        manifest = json.loads(storage.read(os.path.join(folder, _MANIFEST)))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) and "inputs" in manifest else {}


def _empty_folder(output: str, inputs: Iterable[str]) -> str:
    """Where a run writes: beside a local output, in place of a remote one, of which nothing else is left.

    Raises:
      UserError: the output is a file, or holds inputs or something that no such run has made.
    """
    final = storage.absolute(output)
    if os.path.isfile(final):
        raise UserError(f"{output} is a file: give --output a new folder")
    found = storage.names(output)
    if found and not _finished(output) and _UNFINISHED not in found:
        raise UserError(f"{output} holds other files, such as {found[0]}: give --output a new folder")
    # By whatever name: the earlier output goes, and would take the inputs with it.
    inside = os.path.join(storage.canonical(output), "")
    for path in inputs:
        if storage.canonical(path).startswith(inside):
            raise UserError(f"{output} holds the input {path}: give --output a new folder")
    if storage.is_remote(output):
        storage.write(os.path.join(output, _UNFINISHED), b"")
        # First of all the manifest: what is left without it is not taken for finished.
        for name in sorted(found, key=lambda name: name != _MANIFEST):
            if name != _UNFINISHED:
                storage.remove(os.path.join(output, name))
        return output
    folder = _beside(output, "tmp")
    storage.remove(folder)
    return folder


def _beside(output: str, ending: str) -> str:
    """The hidden path beside a local output, of which it may be given a link, with its name and an ending."""
    folder, name = os.path.split(os.path.realpath(output))
    return os.path.join(folder, f".{name}.{ending}")


def _import_pipeline() -> ModuleType:
    try:
        from plm_jax.cleaning import pipeline
    except ModuleNotFoundError as error:
        raise UserError("cleaning needs Apache Beam: pip install 'plm_jax[clean]'") from error
    return pipeline


def _run(pipeline: Any, num_files: int, show_progress: bool) -> None:
    """Runs a pipeline to its end."""
    # It would log the traceback of what a worker raises, which comes up here anyway.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    print(f"{num_files:,} files to clean", file=sys.stderr)
    try:
        with progress.shown(num_files, show_progress):
            children.shielded(lambda: pipeline.run().wait_until_finish())
    except Exception as error:  # Each runner wraps what its workers raise in its own way.
        mistake = _USER_ERROR.search(f"{type(error).__name__}: {error}")
        if mistake:
            raise UserError(mistake[1]) from error
        raise


def _found(folder: str) -> dict[str, Any]:
    """Files and counts as the workers report them."""
    try:
        return json.loads(storage.read(os.path.join(folder, "report.json")))
    except FileNotFoundError:
        raise UserError(f"the workers left nothing in {folder}: give an --output that they share") from None


def _write_report(folder: str, rule: settings.CleaningConfig, counts: dict[str, Any]) -> str:
    """Adds the table with examples and the picture to a folder; gives the table."""
    table = report.table(rule, counts)
    page = f"# What cleaning removed\n\n{table}\n![As a picture](report.svg)\n\n{report.examples(rule, counts)}"
    storage.write(os.path.join(folder, "report.md"), page.encode("utf-8"))
    storage.write(os.path.join(folder, "report.svg"), report.picture(rule, counts))
    return table
