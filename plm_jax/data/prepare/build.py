"""The cache of one source: its documents tokenised, shuffled once and written."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading
from plm_jax.data.prepare import tokenizing as tokenising
from plm_jax.data.prepare.shuffle import KEYS_FILE, Shuffle, write_shards
from plm_jax.data.sources.corpus import Corpus, Skipped
from plm_jax.data.sources.source import InputsTargetsSource, Source

# Descriptions of the rules of `groups.HeldOutRule` in reports, formatted with the fraction.
_RULES = {
    "source": "its own validation split",
    "hash": "groups with a hash below validation_fraction {:g}",
    "top-up": "groups with the smallest hashes, since fewer than 20 rows are below validation_fraction {:g}",
    "none": "",
}


def make(
    data: DataConfig,
    name: str,
    vocabulary: vocabularies.Vocabulary,
    wanted: str,
    folder: str,
    show_progress: bool,
    beam_options: Sequence[str] | None,
    origin: staleness.Origin,
) -> None:
    """Writes the cache of a source, of the identity `wanted`, into a local folder."""
    final, temporary = os.path.join(folder, name), os.path.join(folder, f".{name}.tmp")
    storage.remove(temporary)
    unsorted = os.path.join(temporary, "spill")
    os.makedirs(folder, exist_ok=True)
    os.mkdir(temporary)  # Which, unlike `makedirs`, goes through no link.
    os.mkdir(unsorted)
    source, skipped, task = data.sources[name], Skipped(), tokenising.task(data, vocabulary.specials, name)
    if beam_options is None:
        with bar(f"{name}: tokenising", source.open(name), show_progress) as drawn:
            unread = reading.all_documents(data, name, skipped, drawn.update)
            num_documents, of_groups = tokenising.tokenise(unread, task, unsorted)
    else:
        from plm_jax.data.prepare import beam  # A heavy import, and an optional one.

        num_documents, of_groups = beam.tokenise(
            data, vocabulary.specials, name, unsorted, beam_options, skipped, show_progress
        )
    skipped.check(name)
    has_validation = "validation" in reading.splits(name, source)
    fraction = data.validation_fraction
    rule = groups.HeldOutRule("source") if has_validation else of_groups.rule(fraction)
    with progress.doing(f"{name}: comparing validation with training rows"):
        overlap = groups.overlap(os.path.join(unsorted, KEYS_FILE), rule)
    _check_splits(name, source, num_documents, overlap.validation, has_validation)
    splits = cache.SPLITS if overlap.validation else ("train",)
    size = vocabulary.vocab_size
    writers = {split: cache.SplitWriter(os.path.join(temporary, split), size, task.columns) for split in splits}
    with tqdm.tqdm(None, f"{name}: writing", num_documents, unit=" documents", disable=not show_progress) as drawn:
        write_shards(unsorted, Shuffle(size, task.columns), writers, rule, drawn)
    shutil.rmtree(unsorted)
    counts = {split: writer.close() for split, writer in writers.items()}
    manifest = {
        "identity": wanted,
        "vocabulary": _describe(vocabulary),
        **cache.describe(size, task.columns, vocabulary.word_initial, temporary),
        "splits": counts,
        "validation": {"rule": rule.name, "overlap": overlap.shared},
        "source": staleness.describe(data, name, has_validation, origin.contents),
        "has_inputs_targets": isinstance(source, InputsTargetsSource),
    }
    if task.segmenter:
        manifest["segmenter"] = task.segmenter
    if skipped.bad:
        manifest["bad_rows"] = dataclasses.asdict(skipped)
    staleness.note(temporary, source, origin)
    cache.publish(temporary, final, manifest)
    _tell(name, num_documents, counts, skipped, final, _RULES[rule.name].format(fraction))
    _report_overlap(name, overlap, rule, of_groups.rows, fraction)


def _check_splits(name: str, source: Source, num_documents: int, num_validation: int, has_validation: bool) -> None:
    """Rejects a source without documents for training, or without any in its own validation split."""
    if not num_documents:
        raise no_rows({name: source})
    if has_validation and not num_validation:
        raise no_rows({name: source}, "validation")
    if num_validation == num_documents:
        if has_validation:
            raise no_rows({name: source})
        raise UserError(f"source '{name}' has no document for training: lower config.data.validation_fraction")


def no_rows(sources: Mapping[str, Source], split: str = "train") -> UserError:
    """Returns the error for sources that have no row with text in a split."""
    field = "path" if split == "train" else split
    descriptions = (f"'{name}' ({getattr(source, field, '') or split})" for name, source in sources.items())
    return UserError(
        f"no row of source {', '.join(descriptions)} has text: give a source with rows, or check the field of the text"
    )


def _tell(name: str, num_documents: int, counts: dict[str, Any], skipped: Skipped, final: str, rule: str) -> None:
    """Prints the counts of a new cache, and the rule that chose the held-out rows."""
    held = "none held out, so validation leaves it out"
    if "validation" in counts:
        held = f"{counts['validation']['documents']:,} held out ({rule})"
    tokens, size = (sum(split[of] for split in counts.values()) for of in ("tokens", "bytes"))
    print(
        f"{name}: {num_documents:,} documents, {held}, {counts['train']['tokens']:,} training tokens, "
        f"{size / tokens:.2f} bytes a token: {final}"
    )
    if skipped.bad:
        print(f"{name}: left out {skipped.bad:,} bad rows of {skipped.rows:,} ({skipped.summary})")


def _report_overlap(
    name: str, overlap: groups.Overlap, rule: groups.HeldOutRule, num_rows: int, fraction: float
) -> None:
    """Prints how many validation rows are also training rows; warns if any are, or if there are no validation rows."""
    if not overlap.validation:
        why = "the rows to hold out have no tokens"
        if rule.name == "none":
            why = f"all of its {num_rows:,} rows are of one group" if fraction else "data.validation_fraction is 0"
        _warn(f"nothing is held out of '{name}' ({why}): it is not validated")
        return
    shared = {level: splits["validation"] for level, splits in overlap.shared.items()}
    line = (
        f"of {overlap.validation:,} validation rows {shared['exact']:,} are training rows exactly, "
        f"{shared['normalized']:,} after NFC and collapsed white space, {shared['group']:,} by their group"
    )
    print(f"{name}: {line}")
    if any(shared.values()):
        _warn(f"validation and training of '{name}' overlap ({line}): remove these rows from one of them")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


def bar(description: str, corpus: Corpus, show: bool) -> tqdm.tqdm:
    """Progress through a source."""
    return tqdm.tqdm(None, description, disable=not show, **corpus.progress())


def _describe(vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """What the manifest says of the vocabulary: all that training needs to know."""
    spec = vocabulary.specials
    return {
        "id": vocabularies.identity(vocabulary),
        "size": vocabulary.vocab_size,
        **{name: getattr(spec, name) for name in (*SPECIALS, "sentinels")},
        **({"lowercase": True} if spec.lowercase else {}),
        "kind": spec.spec.partition(":")[0],
        "files": {os.path.basename(path): storage.sha256(path) for path in vocabularies.files(spec.spec)},
    }
