"""Builds the cache of one source: tokenizes its documents, shuffles them once and writes them."""

import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import tqdm

from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, stages, tokenizing
from plm_jax.data.prepare.shuffle import KEYS_FILE, Shuffle, Shuffled, write_shards
from plm_jax.data.sources.corpus import Corpus, Skipped
from plm_jax.data.sources.source import InputsTargetsSource, Source

# Descriptions of the rules of `groups.HeldOutRule` in reports, formatted with the fraction.
_RULES = {
    "source": "the validation split of the source",
    "hash": "validation_fraction {:g}",
    "top-up": "validation_fraction {:g} would hold out fewer than the minimum of 20; the maximum is 10 %",
    "none": "",
}


def build_cache(
    data: DataConfig,
    name: str,
    vocabulary: vocabularies.Vocabulary,
    identity: str,
    folder: str,
    show_progress: bool,
    engine: stages.Engine | None,
    origin: staleness.Origin,
) -> None:
    """Writes the cache of a source to the folder `name` in a local folder, and prints a report.

    Args:
      identity: hash of everything that the cache depends on (`reading.identity`).
      engine: engine that tokenizes; None to tokenize in one pass over the source, with a process per core.

    Raises:
      UserError: the source has an error, or no text in one of its splits.
    """
    final, temporary = os.path.join(folder, name), os.path.join(folder, f".{name}.tmp")
    storage.remove(temporary)
    shuffle_folder = os.path.join(temporary, "shuffle")
    os.makedirs(folder, exist_ok=True)
    os.mkdir(temporary)  # Unlike `makedirs`, it does not follow links.
    os.mkdir(shuffle_folder)
    source, skipped, task = data.sources[name], Skipped(), tokenizing.task(data, vocabulary.specials, name)
    job = identity if origin.contents else ""  # Without a fingerprint, documents may change unnoticed.
    num_documents, all_groups, fetch = _tokenize(data, name, task, job, shuffle_folder, engine, skipped, show_progress)
    skipped.check(name)
    has_validation = "validation" in reading.splits(name, source)
    fraction = data.validation_fraction
    rule = groups.HeldOutRule("source") if has_validation else all_groups.rule(fraction)
    with progress.doing(f"{name}: comparing validation with training rows"):
        overlap = groups.overlap(fetch(KEYS_FILE), rule)
    _check_splits(name, source, num_documents, overlap.validation, has_validation)
    splits = cache.SPLITS if overlap.validation else ("train",)
    size = vocabulary.vocab_size
    writers = {split: cache.SplitWriter(os.path.join(temporary, split), size, task.columns) for split in splits}
    with tqdm.tqdm(None, f"{name}: writing", num_documents, unit=" documents", disable=not show_progress) as written:
        write_shards(fetch, Shuffle(size, task.columns), writers, rule, written)
    shutil.rmtree(shuffle_folder)
    counts = {split: writer.close() for split, writer in writers.items()}
    manifest = {
        "identity": identity,
        "vocabulary": _describe(vocabulary),
        **cache.describe(size, task.columns, vocabulary.word_initial, temporary),
        "splits": counts,
        "validation": {"rule": rule.name, "overlap": overlap.shared},
        "source": staleness.describe(data, name, has_validation, origin.contents),
        "has_inputs_targets": isinstance(source, InputsTargetsSource),
        "texts": list(source.texts),
    }
    if task.segmenter:
        manifest["segmenter"] = task.segmenter
    if skipped.bad:
        manifest["bad_rows"] = dataclasses.asdict(skipped)
    staleness.record_files(temporary, source, origin)
    cache.publish(temporary, final, manifest)
    _report(name, num_documents, counts, skipped, final, _RULES[rule.name].format(fraction))
    _report_overlap(name, overlap, rule, all_groups.rows, fraction)


def _tokenize(
    data: DataConfig,
    name: str,
    task: tokenizing.TokenizingTask,
    job: str,
    target: str,
    engine: stages.Engine | None,
    skipped: Skipped,
    show_progress: bool,
) -> Shuffled:
    """Tokenizes a source.

    Args:
      job: identity of the engine's job; empty if the job cannot resume.
      target: folder for the files of the shuffle.
      skipped: counts of rows and bad rows, which this function increases.
    """
    if engine is not None:
        return stages.tokenize(data, task.vocabulary, name, job, target, engine, skipped, show_progress)
    with bar(f"{name}: tokenizing", data.sources[name].open(name), show_progress) as progress_bar:
        documents = reading.all_documents(data, name, skipped, progress_bar.update)
        num_documents, all_groups = tokenizing.tokenize(documents, task, target)
    return Shuffled(num_documents, all_groups, functools.partial(os.path.join, target))


def _check_splits(name: str, source: Source, num_documents: int, num_validation: int, has_validation: bool) -> None:
    """Rejects a source without documents for training, or whose own validation split has no documents."""
    if not num_documents:
        raise no_rows({name: source})
    if has_validation and not num_validation:
        raise no_rows({name: source}, "validation")
    if num_validation == num_documents:
        if has_validation:
            raise no_rows({name: source})
        raise UserError(f"source '{name}' has no document for training: lower config.data.validation_fraction")


def no_rows(sources: Mapping[str, Source], split: str = "train") -> UserError:
    """Returns the error for sources that have no row with text in `split`."""
    field = "path" if split == "train" else split
    descriptions = (f"'{name}' ({getattr(source, field, '') or split})" for name, source in sources.items())
    return UserError(f"no row of source {', '.join(descriptions)} has text: check its path and the field of the text")


def _report(name: str, num_documents: int, counts: dict[str, Any], skipped: Skipped, final: str, rule: str) -> None:
    """Prints the counts of a new cache, and the rule that chose the held-out rows."""
    held_out = "none held out, so it is not validated"
    if "validation" in counts:
        held_out = f"{counts['validation']['documents']:,} held out for validation ({rule})"
    tokens, size = (sum(split[count] for split in counts.values()) for count in ("tokens", "bytes"))
    print(
        f"{name}: {num_documents:,} documents, {held_out}, {counts['train']['tokens']:,} training tokens, "
        f"{size / tokens:.2f} bytes per token: {final}"
    )
    if skipped.bad:
        print(skipped.report(name))


def _report_overlap(
    name: str, overlap: groups.Overlap, rule: groups.HeldOutRule, num_rows: int, fraction: float
) -> None:
    """Prints how many validation rows are also training rows. Warns if there are such rows, or no validation rows."""
    if not overlap.validation:
        reason = "the rows to hold out have no tokens"
        if rule.name == "none":
            reason = f"all of its {num_rows:,} rows are of one group" if fraction else "data.validation_fraction is 0"
        _warn(f"no held-out rows in '{name}' ({reason}): it is not validated")
        return
    shared = {level: splits["validation"] for level, splits in overlap.shared.items()}
    line = (
        f"of {overlap.validation:,} validation documents, {shared['exact']:,} are identical to a training document, "
        f"{shared['normalized']:,} are identical after normalizing Unicode and white space, and "
        f"{shared['group']:,} share a group with a training document"
    )
    print(f"{name}: {line}")
    if any(shared.values()):
        _warn(f"validation and training of '{name}' overlap ({line}): remove the shared documents from one of the two")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


def bar(description: str, corpus: Corpus, show: bool) -> tqdm.tqdm:
    """Returns a progress bar for reading a source."""
    return tqdm.tqdm(None, description, disable=not show, **corpus.progress())


def _describe(vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """Returns the description of a vocabulary for the manifest of a cache, which training reads."""
    spec = vocabulary.specials
    return {
        "id": vocabularies.identity(vocabulary),
        "size": vocabulary.vocab_size,
        **{name: getattr(spec, name) for name in (*SPECIALS, "sentinels")},
        **({"lowercase": True} if spec.lowercase else {}),
        "kind": spec.spec.partition(":")[0],
        "files": {os.path.basename(path): storage.sha256(path) for path in vocabularies.files(spec.spec)},
    }
