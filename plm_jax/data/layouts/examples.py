"""Examples of any layout with any objective: what the trainer's reader and seqio preprocessors share."""

import numpy as np

from plm_jax import config, objectives
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import documents, pairs, segments, streams, whole_sentences

Example = dict[str, np.ndarray]
Layout = (
    config.Blocks | config.SentencePairs | config.WholeSentences | config.Segments | config.Documents | config.Streams
)


def open_layout(
    layout: Layout,
    source: cache.Source,
    split: str,
    length: int,
    seed: int,
    objective: objectives.BoundObjective,
    characters: np.ndarray | None = None,
) -> layouts.Layout | streams.Streams:
    """A source's split in rows of `length`.

    Args:
      characters: [vocab_size, C], those of each word, for streams.

    Raises:
      UserError: an index that is damaged or cannot be written.
    """
    special = objective.special
    if isinstance(layout, config.SentencePairs):
        return pairs.SentencePairs(source, split, layout, length, seed, special, objective.reads)
    if isinstance(layout, config.WholeSentences):
        return whole_sentences.WholeSentences(source, split, layout, length, objective)
    if isinstance(layout, config.Segments):
        return segments.Segments(source, split, layout, length, seed, special, objective.reads)
    if isinstance(layout, config.Documents):
        return documents.Documents(source, split, layout, length, special, objective.reads)
    begin = begins_with(layout, special)
    stream = layouts.Stream(source.splits[split], objective.separator, special.pad, begin)
    if isinstance(layout, config.Streams):
        return streams.Streams(stream, length, special.bos, characters)
    needed, stride = objective.input_length(length), objective.stride(length)
    return layouts.Blocks(stream, needed, stride, not layout.attend_across_documents, objective.reads)


def begins_with(layout: Layout, special: objectives.Special) -> list[int]:
    """The special ids before each document of a stream."""
    return [getattr(special, name) for name in getattr(layout, "begin", ())]


def make(
    objective: objectives.BoundObjective,
    layout: layouts.Layout | streams.Streams,
    item: int,
    rng: np.random.Generator,
    word_initial: np.ndarray | None,
) -> Example:
    """An item of a layout with noise and targets; `word_initial` as `read` takes it."""
    return objective(read(objective, layout, item, rng, word_initial), rng)


def read(
    objective: objectives.BoundObjective,
    layout: layouts.Layout | streams.Streams,
    item: int,
    rng: np.random.Generator,
    word_initial: np.ndarray | None,
) -> Example:
    """An item of a layout with all that the objective reads.

    Args:
      word_initial: bool [vocab_size], for words masked whole where the layout does not say where they begin.
    """
    example = layout.example(item, rng)
    if "word_starts" in objective.reads and "word_starts" not in example:
        (example["word_starts"],) = word_initial[example["tokens"]].nonzero()
    return example


def blank(layout: Layout, length: int, objective: objectives.BoundObjective, max_characters: int = 0) -> Example:
    """An example without text: the keys, shapes and types of all that `make` gives.

    Args:
      max_characters: of a word, for streams.
    """
    text = np.zeros(1, np.int32)
    if isinstance(layout, config.SentencePairs | config.Segments):
        row = pairs.framed(text, text, length, objective.special)
        row |= {"pair_label": text[0]} if isinstance(layout, config.SentencePairs) else {}
    elif isinstance(layout, config.WholeSentences | config.Documents) and not objective.frames:
        row = layouts.framed([text], length, objective.special)
    elif isinstance(layout, config.Streams):
        characters = np.zeros((2, length, max_characters), np.int32)
        row = {"characters": characters, "targets": characters[..., 0]}
    else:
        needed, separate = objective.input_length(length), not getattr(layout, "attend_across_documents", True)
        row = layouts.row(np.zeros(needed, np.int32), np.zeros(0, np.int64), needed, separate)
    row |= {name: np.zeros(1, np.int64) for name in objective.reads}
    return objective(row, np.random.default_rng(0))
