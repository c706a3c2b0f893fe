"""Texts with blanks: `the [MASK] of the union` for a masked model, `We the <extra_id_0> of` for one of spans."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from plm_jax.common.errors import UserError

# BERT's and RoBERTa's way to write it.
MASKS = ("[MASK]", "<mask>")
SENTINEL = re.compile(r"<extra_id_(\d+)>")


class FillCandidate(NamedTuple):
    """What may stand in a blank, and how probable it is there."""

    text: str
    probability: float


class Filled(NamedTuple):
    """A text with its blanks filled, and of each blank the candidates, most probable first."""

    text: str
    candidates: list[list[FillCandidate]]


def encode(vocabulary, text: str, marks: Mapping[str, int]) -> list[int]:
    """The tokens of `text`, its `marks` as the ids given for them.

    The space before a mark belongs to what fills the blank. What follows one is encoded as from the middle of a text,
    whose beginning a vocabulary may treat differently.
    """
    if not marks:
        return list(vocabulary.encode(text))
    *before, last = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    first, *parts = [*(part.rstrip() for part in before[::2]), last]
    tokens = list(vocabulary.encode(first))
    for mark, part in zip(before[1::2], parts, strict=True):
        tokens += [marks[mark], *within(vocabulary, part)]
    return tokens


def within(vocabulary, text: str) -> list[int]:
    """The tokens of `text` as from the middle of a text, whose beginning a vocabulary may treat differently."""
    return list(vocabulary.encode("\n" + text)[len(vocabulary.encode("\n")) :])


def sentinels_of(text: str, sentinels: Sequence[int]) -> dict[str, int]:
    """The sentinels written in a text, and their ids.

    Args:
      text: with `<extra_id_0>` for the first of them.
      sentinels: the vocabulary's, in the order in which they are used.

    Raises:
      UserError: the vocabulary has not so many.
    """
    found = {match[0]: int(match[1]) for match in SENTINEL.finditer(text)}
    for mark, number in found.items():
        if number >= len(sentinels):
            raise UserError(f"the prompt has {mark}, the vocabulary {len(sentinels)} sentinels: number them from 0")
    return {mark: sentinels[number] for mark, number in found.items()}


def fill_masks(
    vocabulary, tokens: Sequence[int], logits_LV: jax.Array, mask_id: int, frame: Collection[int], top_k: int
) -> Filled:
    """The text of `tokens` [L'] but for those in `frame`, each mask the most probable token of the vocabulary there."""
    tokens = np.array(tokens)
    at = np.flatnonzero(tokens == mask_id)
    probabilities = jax.nn.softmax(logits_LV[at, : vocabulary.vocab_size])
    best, ids = map(np.asarray, jax.lax.top_k(probabilities, min(top_k, vocabulary.vocab_size)))
    tokens[at] = ids[:, 0]
    candidates = [
        [FillCandidate(vocabulary.decode([token]), float(p)) for token, p in zip(*of_mask, strict=True)]
        for of_mask in zip(ids.tolist(), best, strict=True)
    ]
    return Filled(vocabulary.decode([token for token in tokens.tolist() if token not in frame]), candidates)


def fill_spans(tokens: Sequence[int], answer: Sequence[int], sentinels: Collection[int]) -> list[int]:
    """`tokens` with each sentinel replaced by what follows it in `answer`; one that is not there stays."""
    found: dict[int, list[int]] = {}
    span: list[int] = []
    for token in answer:
        if token in sentinels:
            span = found.setdefault(token, [])
        else:
            span.append(token)
    return [part for token in tokens for part in found.get(token, [token])]
