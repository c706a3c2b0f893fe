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
    """Prediction of spans in a random order (XLNet, Yang et al. 2019, arXiv:1906.08237).

    Each target is predicted from text that is not predicted and from earlier targets.

    The rules are those of `data_utils.py` in zihangdai/xlnet. Each half of a row has its own targets and its own random
    order. The second half attends to the whole first half, and the first half does not attend to the second half.
    Within a half, all tokens attend to text that is not predicted, and this text attends neither to targets nor to
    `sep` and `cls`. The length n of a span is at most 5, with probability proportional to 1/n. A span begins at the
    start of a word, at a random position within a context of 6 n tokens. When no further span fits in a half, random
    single tokens fill up the number of predictions. Predictions of `sep` and `cls` are dropped, so a row may have a few
    unused slots. One rule differs from the published code: the vocabulary decides which pieces begin a word. The
    published code has a list of these pieces, which lacks digits and non-English letters.

    Attributes:
      num_predict: number of predictions in a row without padding; 0: a sixth of the length of the row, such as 85 of
        512.
      span_unit: unit of the length of a span: `tokens`, as in the published code, or `words`. The published code means
        to count words, but checks for the beginning of a word only at the first token of the span, so it counts tokens.
        A span of words that exceeds the number of predictions is shortened by whole words.
      perm_size: number of consecutive tokens that are permuted together. If half a row is longer, the half is split
        into blocks of this size. All blocks of a half use the same permutation, and later blocks attend to earlier
        blocks. If it is 0 or exceeds half a row, the half is one block, as in the published code.
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
          example: `tokens` [L] and `word_starts`, the sorted indices of the first tokens of words. Optionally `mask`
            [L], 0 at the padding at the end; `positions` [L], which count down if the text is in reverse; `token_types`
            [L]; and `segment_ids` [L].

        Returns:
          `tokens`, `mask` and `order` [L] int32; `targets` and `target_positions` [T] int32, sorted by position; and
          `target_weights` [T] float32, with T = `target_length(L)`. Unused slots are 0. The keys `token_types`,
          `segment_ids` and `positions` of the example are unchanged.

          `order` is the rank of each token as a key. A query of rank r sees the keys of lower ranks. The query of the
          token itself has rank `order + 1`, so it sees the token. The query that predicts the token has rank `order`,
          so it does not see the token.
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
    """Returns the spans [start, stop) of both halves of a row; the second half is longer if `length` is odd."""
    return [(0, length // 2), (length // 2, length)]


def draw_targets(
    starts: Bool[np.ndarray, " tokens"], num: int, by_words: bool, is_backward: bool, rng: np.random.Generator
) -> Bool[np.ndarray, " tokens"]:
    """Draws `num` tokens of half a row, first in spans and then one by one; returns whether each token is drawn.

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
    """Returns spans [start, stop), from left to right, with at most `num` tokens in total.

    Args:
      starts: whether each token begins a word.
      draws: numbers in [0, 1) that decide the length of each span and the offset of the span in its context.
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
    """Returns the rank of each token of a row as a key of attention, int32 [L]; queries of higher rank see the key.

    In each half, tokens that are not ranked have the lowest rank. Ranked tokens have different ranks: each block of
    `perm_size` consecutive tokens (0: the whole half) is in a random order, and later blocks rank above earlier blocks.
    All ranks of the second half exceed all ranks of the first half by at least 2.
    """
    order = np.zeros(len(is_ranked), np.int32)
    for number, (start, stop) in enumerate(halves(len(is_ranked))):
        size = min(perm_size or stop - start, stop - start)
        parts, offsets = np.divmod(np.arange(stop - start), max(1, size))
        ranks = 1 + parts * size + rng.permutation(size)[offsets]
        order[start:stop] = number * (len(is_ranked) + 1) + ranks * is_ranked[start:stop]
    return order


def _is_any(tokens: Int[np.ndarray, " length"], *ids: int | None) -> Bool[np.ndarray, " length"]:
    """Returns whether each token is one of `ids`; ids that are None are ignored."""
    result = np.zeros(len(tokens), np.bool_)
    for special_id in ids:
        if special_id is not None:
            result |= tokens == special_id
    return result


def _span_end(starts: bytes, start: int, gram: int, most: int | None) -> int:
    """Returns the end of a span, exclusive. If the span does not fit, the result is at least the number of tokens.

    Args:
      starts: 1 for each token that begins a word, else 0.
      gram: number of tokens, or number of words if `most` is set.
      most: maximum number of tokens of the span; words that would exceed it are left out.
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
