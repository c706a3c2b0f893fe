"""The cache of one source: its documents tokenised, shuffled once and written."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import staleness
from plm_jax.data.prepare import reading, tokenising
from plm_jax.data.prepare.spill import Spill, write_shards
from plm_jax.data.sources.corpus import Corpus, Skipped


def make(
    run: config.Run,
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
    source, skipped, task = run.data.sources[name], Skipped(), tokenising.task(run, name)
    if beam_options is None:
        with bar(f"{name}: tokenising", source.open(name), show_progress) as drawn:
            unread = reading.all_documents(run, name, skipped, drawn.update)
            num_documents, has_validation = tokenising.tokenise(unread, task, unsorted)
    else:
        from plm_jax.data.prepare import beam  # A heavy import, and an optional one.

        num_documents, has_validation = beam.tokenise(run, name, unsorted, beam_options, skipped, show_progress)
    skipped.check(name)
    if not num_documents:
        raise no_rows({name: source})
    own = "validation" in reading.splits(name, source)
    if own and not has_validation:
        raise no_rows({name: source}, "validation")
    hold_first = not (own or has_validation) and reading.holds_first(num_documents, run.data.validation_fraction)
    splits = cache.SPLITS if has_validation or hold_first else ("train",)
    size = vocabulary.vocab_size
    writers = {split: cache.SplitWriter(os.path.join(temporary, split), size, task.columns) for split in splits}
    with tqdm.tqdm(None, f"{name}: writing", num_documents, unit=" documents", disable=not show_progress) as drawn:
        write_shards(unsorted, Spill(size, task.columns), writers, hold_first, drawn)
    shutil.rmtree(unsorted)
    counts = {split: writer.close() for split, writer in writers.items()}
    if not counts["train"]["tokens"]:
        if own:
            raise no_rows({name: source})
        raise UserError(f"source '{name}' has no document for training: lower config.data.validation_fraction")
    manifest = {
        "identity": wanted,
        "vocabulary": _describe(run.vocabulary, vocabulary),
        **cache.describe(size, task.columns, vocabulary.word_initial, temporary),
        "splits": counts,
        "source": staleness.describe(run, name, own),
        "has_inputs_targets": isinstance(source, config.InputsTargetsSource),
    }
    if task.segmenter:
        manifest["segmenter"] = task.segmenter
    if skipped.bad:
        manifest["bad_rows"] = dataclasses.asdict(skipped)
    staleness.note(temporary, source, origin)
    cache.publish(temporary, final, manifest)
    _tell(name, num_documents, counts, skipped, final)


def no_rows(sources: Mapping[str, config.Source], split: str = "train") -> UserError:
    """Returns the error for sources of which no row of a split has text."""
    field = "path" if split == "train" else split
    places = (f"'{name}' ({getattr(source, field, '') or split})" for name, source in sources.items())
    return UserError(
        f"no row of source {', '.join(places)} has text: give a source with rows, or check the field of the text"
    )


def _tell(name: str, num_documents: int, counts: dict[str, Any], skipped: Skipped, final: str) -> None:
    """Prints what was made."""
    held = "none held out, so validation leaves it out"
    if "validation" in counts:
        held = f"{counts['validation']['documents']:,} held out"
    tokens, size = (sum(split[of] for split in counts.values()) for of in ("tokens", "bytes"))
    print(
        f"{name}: {num_documents:,} documents, {held}, {counts['train']['tokens']:,} training tokens, "
        f"{size / tokens:.2f} bytes a token: {final}"
    )
    if skipped.bad:
        print(f"{name}: left out {skipped.bad:,} bad rows of {skipped.rows:,} ({skipped.told})")


def bar(description: str, corpus: Corpus, show: bool) -> tqdm.tqdm:
    """Progress through a source."""
    return tqdm.tqdm(None, description, disable=not show, **corpus.progress())


def _describe(spec: config.Vocabulary, vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """What the manifest says of the vocabulary: all that training needs to know."""
    return {
        "id": vocabularies.identity(vocabulary),
        "size": vocabulary.vocab_size,
        **{name: getattr(spec, name) for name in (*config.SPECIALS, "sentinels")},
        **({"lowercase": True} if spec.lowercase else {}),
        "kind": spec.spec.partition(":")[0],
        "files": {os.path.basename(path): storage.sha256(path) for path in vocabularies.files(spec.spec)},
    }
