"""Texts with blanks: `the [MASK] of the union` for masked models, `We the <extra_id_0> of` for span corruption."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import Vocabulary

# Masks of BERT and RoBERTa in texts.
MASKS: tuple[str, ...] = ("[MASK]", "<mask>")
SENTINEL = re.compile(r"<extra_id_(\d+)>")


class FillCandidate(NamedTuple):
    """Candidate token for a blank, and its probability."""

    text: str
    probability: float


class FilledText(NamedTuple):
    """Text with its blanks filled, and the candidates for each blank, most probable first."""

    text: str
    candidates: list[list[FillCandidate]]


def encode(vocabulary: Vocabulary, text: str, marks: Mapping[str, int]) -> list[int]:
    """Returns the ids of a text. Keys of `marks` in the text are encoded as their ids in `marks`.

    White space before a mark is removed, because it belongs to the filling. The text after a mark is encoded as the
    middle of a text, because vocabularies may treat the beginning of a text differently.
    """
    if not marks:
        return list(vocabulary.encode(text))
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    texts = [*(piece.rstrip() for piece in pieces[:-1:2]), pieces[-1]]
    tokens = list(vocabulary.encode(texts[0]))
    for mark, following in zip(pieces[1::2], texts[1:], strict=True):
        tokens += [marks[mark], *encode_within(vocabulary, following)]
    return tokens


def encode_within(vocabulary: Vocabulary, text: str) -> list[int]:
    """Returns the ids of a text that continues another text."""
    return list(vocabulary.encode("\n" + text)[len(vocabulary.encode("\n")) :])


def sentinel_ids(text: str, sentinels: Sequence[int]) -> dict[str, int]:
    """Returns a dict from the sentinels in a text, such as `<extra_id_0>`, to their ids.

    Args:
      sentinels: ids of the vocabulary's sentinels, in the order in which they are used.

    Raises:
      UserError: the text contains a sentinel that the vocabulary lacks.
    """
    numbers = {match[0]: int(match[1]) for match in SENTINEL.finditer(text)}
    for mark, number in numbers.items():
        if number >= len(sentinels):
            raise UserError(
                f"the prompt contains {mark}, but the vocabulary has {len(sentinels)} sentinels: number them from 0"
            )
    return {mark: sentinels[number] for mark, number in numbers.items()}


def fill_masks(
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    logits_LV: Float[Array, "length vocab"],
    mask_id: int,
    frame: Collection[int],
    top_k: int,
) -> FilledText:
    """Fills each mask of a text with the most probable token of the vocabulary.

    Args:
      tokens: ids of the text.
      logits_LV: logits for each token. There may be further rows for padding, and further columns for ids outside the
        vocabulary. Both are ignored.
      mask_id: id of the mask.
      frame: ids that are left out of the text.
      top_k: number of candidates for each mask, at most the size of the vocabulary.
    """
    row = np.array(tokens)
    positions = np.flatnonzero(row == mask_id)
    probabilities = jax.nn.softmax(logits_LV[positions, : vocabulary.vocab_size])
    best, ids = map(np.asarray, jax.lax.top_k(probabilities, min(top_k, vocabulary.vocab_size)))
    row[positions] = ids[:, 0]
    candidates = []
    for mask_ids, mask_probabilities in zip(ids.tolist(), best.tolist(), strict=True):
        pairs = zip(mask_ids, mask_probabilities, strict=True)
        candidates.append([FillCandidate(vocabulary.decode([token]), probability) for token, probability in pairs])
    return FilledText(vocabulary.decode([token for token in row.tolist() if token not in frame]), candidates)


def fill_spans(tokens: Sequence[int], answer: Sequence[int], sentinels: Collection[int]) -> list[int]:
    """Replaces each sentinel by the ids between this sentinel and the next sentinel in `answer`.

    A sentinel that `answer` lacks is not replaced.
    """
    spans: dict[int, list[int]] = {}
    span: list[int] = []
    for token in answer:
        if token in sentinels:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [filling for token in tokens for filling in spans.get(token, [token])]
