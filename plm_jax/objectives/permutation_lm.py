"""Permutation language modeling."""

import bisect
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives import rows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special

# Largest length of a span, and the number of tokens in its context per unit of its length.
MAX_GRAM, CONTEXT = 5, 6
_WEIGHTS = 1 / np.arange(1, MAX_GRAM + 1)
# Probabilities of a length of at most 1, 2, …, MAX_GRAM - 1.
_CUMULATIVE = (_WEIGHTS.cumsum()[:-1] / _WEIGHTS.sum()).tolist()
_COPIED_KEYS = ("token_types", "segment_ids", "positions")


@dataclass(frozen=True)
class PermutationLM(Objective):
    """Prediction of spans in a random order, each token from all other text and earlier targets (XLNet, Yang et al.
    2019, arXiv:1906.08237).

    The rules are those of `data_utils.py` in zihangdai/xlnet. Each half of a row has its own targets and its own random
    order. The second half sees all of the first, the first half nothing of the second. Text that is not predicted is
    seen from everywhere in its half and sees neither targets nor `sep` and `cls`. Spans of n tokens with probability
    proportional to 1/n, n up to 5, begin at the start of a word at a random position within a context of 6 n tokens.
    At the end of a half, single random tokens fill up the number of predictions. Tokens drawn at `sep` and `cls` are
    dropped, so that a row has a few unused slots. Words begin where the vocabulary says; the source's list of pieces
    that begin a word lacks digits and letters outside of English.

    Attributes:
      num_predict: number of predictions in a row; 0: a sixth of its length, such as 85 of 512.
      span_unit: unit of the length of a span: `tokens`, as in the published code, or `words`, as in the paper. The code
        searches for the end of n words, but tests the token at the start of the span every time. Spans of words are
        shortened by words if they exceed the number of predictions.
      perm_size: number of consecutive tokens that are permuted together; if half a row is longer, it is split into
        blocks of this size, which all use the same permutation, and later blocks attend to earlier ones. 0, or more
        than half a row: half a row, as published.
    """

    kind: ClassVar[str] = "permutation_lm"
    architectures: ClassVar[tuple[str, ...]] = ("xlnet",)
    loss: ClassVar[str] = "permutation_lm"
    targets: ClassVar[str] = "spans in a random order"
    reads: ClassVar[tuple[str, ...]] = ("word_starts",)
    inputs: ClassVar[tuple[str, ...]] = ("text", "row")
    num_predict: ranges.LengthOrZero = 0
    span_unit: Literal["tokens", "words"] = "tokens"
    perm_size: ranges.LengthOrZero = 0

    @override
    def target_length(self, length: int) -> int:
        return self.num_predict or max(1, length // CONTEXT)

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Draws targets and their order; tokens are unchanged.

        Args:
          example: `tokens` [L]; `word_starts`, the sorted indices of the first tokens of words; optionally `mask` [L],
            0 at padding at the end; `positions` [L], which count down if the text is in reverse; `token_types` and
            `segment_ids` [L].

        Returns:
          `tokens` and `mask` [L] int32; `order` [L] int32; `targets` and `target_positions` [T] int32, sorted by
          position, and `target_weights` [T] float32, with T = `target_length(L)` and 0 in unused slots; `token_types`,
          `segment_ids` and `positions` unchanged.

          `order` is the rank of each token as a key. A query of rank r sees the keys of lower ranks. Rank `order + 1`
          of a token's own query lets it see itself, rank `order` of a query that predicts the token does not.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        mask = np.asarray(example["mask"], np.int32) if "mask" in example else np.ones(len(tokens), np.int32)
        is_special = _is_any(tokens, special.sep, special.cls)
        starts = is_special | _is_any(tokens, special.eos)
        starts[example["word_starts"]] = True
        is_backward = "positions" in example and example["positions"][0] > example["positions"][-1]
        num_real, slots = int(np.count_nonzero(mask)), self.target_length(len(tokens))
        is_drawn = np.zeros(len(tokens), np.bool_)
        for (start, stop), num in zip(halves(len(tokens)), (slots - slots // 2, slots // 2), strict=True):
            real = slice(start, max(start, min(stop, num_real)))
            num = num * (real.stop - start) // max(1, stop - start)
            is_drawn[real] = draw_targets(starts[real], num, self.span_unit == "words", is_backward, rng)
        (positions,) = (is_drawn & ~is_special).nonzero()
        num = len(positions)
        row = {key: np.asarray(example[key], np.int32) for key in _COPIED_KEYS if key in example}
        return row | {
            "tokens": tokens,
            "mask": mask,
            "order": draw_order((is_drawn | is_special) & (mask > 0), self.perm_size, rng),
            "targets": rows.padded(tokens[positions], num, slots),
            "target_positions": rows.padded(positions, num, slots),
            "target_weights": rows.padded(1, num, slots, dtype=np.float32),
        }


def halves(length: int) -> list[tuple[int, int]]:
    """Returns the tokens [start, stop) of both halves of a row; the second one is longer if `length` is odd."""
    return [(0, length // 2), (length // 2, length)]


def draw_targets(
    starts: Bool[np.ndarray, " tokens"], num: int, by_words: bool, is_backward: bool, rng: np.random.Generator
) -> Bool[np.ndarray, " tokens"]:
    """Draws `num` tokens of half a row, in spans and then one by one.

    Args:
      starts: whether each token begins a word.
      by_words: whether the length of a span is a number of words.
      is_backward: whether the tokens are in reverse, so that a word continues to the left.
    """
    directed = starts[::-1] if is_backward else starts
    chosen = np.zeros(len(starts), np.bool_)
    for start, stop in draw_spans(directed, num, by_words, rng.random((num, 2))):
        chosen[start:stop] = True
    order = rng.permutation(len(starts))
    chosen[order[~chosen[order]][: num - np.count_nonzero(chosen)]] = True
    return chosen[::-1] if is_backward else chosen


def draw_spans(
    starts: Bool[np.ndarray, " tokens"], num: int, by_words: bool, draws: Float[np.ndarray, "num 2"]
) -> list[tuple[int, int]]:
    """Returns spans [start, stop) with at most `num` tokens together, each within a context, from left to right.

    Args:
      starts: whether each token begins a word.
      draws: numbers in [0, 1) for the length of each span and its offset in the context.
    """
    spans, position, start_bytes = [], 0, starts.tobytes()
    for draw, offset in draws.tolist():
        gram = min(1 + bisect.bisect_right(_CUMULATIVE, draw), num)
        left = int(offset * gram * CONTEXT)
        start = start_bytes.find(1, position + left)
        stop = _span_end(start_bytes, start, gram, num if by_words else None)
        if start < 0 or stop >= len(starts):
            break
        spans.append((start, stop))
        num -= stop - start
        if not num:
            break
        position = stop + gram * CONTEXT - left
    return spans


def draw_order(
    is_ranked: Bool[np.ndarray, " length"], perm_size: int, rng: np.random.Generator
) -> Int[np.ndarray, " length"]:
    """Returns the rank of each token of a row as a key of attention, int32 [L]: queries of higher ranks see it.

    In each half, tokens that are not ranked have the lowest rank. The others have different ranks: each block of
    `perm_size` consecutive tokens (0: the half) is in a random order, and later blocks rank above earlier ones. All
    ranks of the second half exceed those of the first by at least 2.
    """
    order = np.zeros(len(is_ranked), np.int32)
    for number, (start, stop) in enumerate(halves(len(is_ranked))):
        size = min(perm_size or stop - start, stop - start)
        parts, offsets = np.divmod(np.arange(stop - start), max(1, size))
        ranks = 1 + parts * size + rng.permutation(size)[offsets]
        order[start:stop] = number * (len(is_ranked) + 1) + ranks * is_ranked[start:stop]
    return order


def _is_any(tokens: Int[np.ndarray, " length"], *ids: int | None) -> Bool[np.ndarray, " length"]:
    """Returns whether each token is one of these ids, except None."""
    result = np.zeros(len(tokens), np.bool_)
    for special_id in ids:
        if special_id is not None:
            result |= tokens == special_id
    return result


def _span_end(starts: bytes, start: int, gram: int, most: int | None) -> int:
    """Returns the end of a span, or the number of tokens if it does not end before the last one.

    Args:
      starts: 1 for each token that begins a word, else 0.
      gram: number of tokens, or number of words if `most` is set.
      most: largest number of tokens; words that exceed it are left out.
    """
    if most is None:
        return start + gram
    stop = len(starts)
    end = start
    for _ in range(gram):
        end = starts.find(1, end + 1)
        if end < 0:
            return len(starts)
        if end - start > most:
            break
        stop = end
    return stop
