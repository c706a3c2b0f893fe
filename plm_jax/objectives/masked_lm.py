"""Masked language modeling."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int, Num
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special

_COPIED_KEYS = ("token_types", "segment_ids", "positions", "pair_label")


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Prediction of masked tokens from all other tokens (BERT, Devlin et al. 2019, arXiv:1810.04805).

    By default, masks are drawn again each time an example is read. The defaults are those of
    `create_pretraining_data.py` in google-research/bert. Whole words fill the budget as they do there: in random order,
    skipping words that would exceed it. A word with more tokens than the budget is therefore never masked, and a row of
    such words has no target; `count_unmaskable` counts them. N-grams of words follow the same file in
    google-research/albert (Lan et al. 2020, arXiv:1909.11942), with these rules: an n-gram that would exceed the budget
    or the row is shortened; an n-gram that overlaps another one is skipped; the words before and after a separator are
    treated as adjacent. RoBERTa (Liu et al. 2019, arXiv:1907.11692) differs slightly: fairseq rounds the number of
    predictions at random, may mask the first token of a row, and draws no special tokens as random ids.

    Attributes:
      rate: share of a row's tokens, including special tokens, that are predicted; at least one token is.
      max_predictions: maximum number of predictions in a row; 0: as many as `rate` needs in a full row. BERT has 20 at
        length 128.
      mask_share: share of the predicted tokens that are replaced by the mask.
      random_share: share of the predicted tokens that are replaced by a random id; the tokens in neither share are
        unchanged.
      whole_words: maximum number of neighboring words that are masked together; 0 masks single tokens; 1 masks all
        tokens of a word (BERT's whole-word masking); n masks up to n words, k of them with probability proportional to
        1/k (ALBERT has 3). Above 0, it needs `word_starts`.
      duplicates: number of different maskings of each row, one per epoch, before they repeat (static masking: BERT's
        files, RoBERTa's comparison with 10); 0: a new masking every time.
    """

    kind: ClassVar[str] = "masked_lm"
    architectures: ClassVar[tuple[str, ...]] = ("encoder",)
    loss: ClassVar[str] = "masked_lm"
    targets: ClassVar[str] = "the masked tokens; with sentence pairs the loss is theirs and the pairs' added up"
    inputs: ClassVar[tuple[str, ...]] = ("text", "row")
    separators: ClassVar[tuple[str, ...]] = ("eos", "sep")
    rate: ranges.ShareAboveZero = 0.15
    max_predictions: ranges.LengthOrZero = 0
    mask_share: ranges.Share = 0.8
    random_share: ranges.Share = 0.1
    whole_words: ranges.LengthOrZero = 0
    duplicates: ranges.CountOrZero = 0

    def __post_init__(self):
        if self.mask_share + self.random_share > 1:
            raise UserError(
                f"config.objective.mask_share is {self.mask_share} and random_share {self.random_share}: "
                "their sum must be at most 1"
            )

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return ("word_starts",) if self.whole_words else ()

    @override
    def target_length(self, length: int) -> int:
        return self.max_predictions or self.budget(length)

    def budget(self, num_tokens: int) -> int:
        """Returns the number of predictions for `num_tokens`; Python's `round`, halves to even, as in BERT's code."""
        return max(1, round(num_tokens * self.rate))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Masks tokens, except special tokens that begin or end a row or document.

        Args:
          example: `tokens` [L]; optionally `mask` [L], 0 at padding; for whole words `word_starts`, the sorted indices
            of the first tokens of words. Tokens after an unmaskable token always begin a word.

        Returns:
          `tokens` and `mask` [L] int32; `targets` and `target_positions` [P] int32, sorted by position, and
          `target_weights` [P] float32, with P = `target_length(L)` and 0 in unused slots; `token_types`, `segment_ids`,
          `positions` and `pair_label` unchanged.

        Raises:
          UserError: the vocabulary has no mask, or `word_starts` are missing.
        """
        if special.mask is None:
            raise UserError("masked language modeling needs a mask id: set config.vocabulary.mask")
        tokens, mask, maskable, num = self._prepare(example, special)
        slots = self.target_length(len(tokens))
        positions = self.choose_positions(maskable, num, example, special, rng)
        num = len(positions)
        targets = tokens[positions]
        draws, more = self.draw_replacements(positions, example, rng)
        tokens[positions] = self.replace_tokens(targets, draws, positions, example, special, rng)
        row = {key: np.asarray(example[key], np.int32) for key in _COPIED_KEYS if key in example}
        row |= {name: rows.padded(values, num, slots) for name, values in more.items()}
        return row | {
            "tokens": tokens,
            "mask": mask,
            "targets": rows.padded(targets, num, slots),
            "target_positions": rows.padded(positions, num, slots),
            "target_weights": rows.padded(1, num, slots, dtype=np.float32),
        }

    @override
    def count_unmaskable(self, example: dict[str, np.ndarray], special: Special) -> tuple[int, int]:
        _, _, maskable, num = self._prepare(example, special)
        (candidates,) = maskable.nonzero()
        if not self.whole_words or not num:
            return 0, len(candidates)
        sizes = np.diff(self.begins_words(candidates, example).nonzero()[0], append=len(candidates))
        return int(sizes[sizes > num].sum()), len(candidates)

    def _prepare(
        self, example: dict[str, np.ndarray], special: Special
    ) -> tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"], Bool[np.ndarray, " real"], int]:
        """Prepares a row for masking.

        Returns:
          A copy of `tokens` and `mask` [L] int32; whether each token up to the last real one may be predicted, bool;
          the number of tokens to predict.
        """
        tokens = np.array(example["tokens"], np.int32)
        mask = np.asarray(example["mask"], np.int32) if "mask" in example else np.ones(len(tokens), np.int32)
        (real,) = mask.nonzero()
        end = int(real[-1]) + 1 if len(real) else 0  # Short rows are mostly padding, which is skipped.
        maskable = self.is_maskable(tokens[:end], mask[:end], special)
        rated = self.num_rated(tokens[:end], mask[:end], special)
        num = min(self.target_length(len(tokens)), self.budget(rated), int(np.count_nonzero(maskable)))
        return tokens, mask, maskable, num

    def num_rated(self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special) -> int:
        """Returns the number of tokens that `rate` is a share of: all real tokens, special tokens included."""
        return int(np.count_nonzero(mask))

    def is_maskable(
        self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special
    ) -> Bool[np.ndarray, " real"]:
        """Returns whether each token of a row up to the last real one may be predicted, bool [n]."""
        is_text = _is_text(special.bos, special.eos, special.cls, special.sep)
        return is_text.take(tokens, mode="clip") & (mask > 0)

    def choose_positions(
        self,
        maskable: Bool[np.ndarray, " real"],
        num: int,
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Int[np.ndarray, " positions"]:
        """Chooses the positions of `num` maskable tokens, sorted; fewer if whole words do not fill the budget."""
        (candidates,) = maskable.nonzero()
        if not self.whole_words or not num:
            return candidates[rows.subset(len(candidates), num, rng)]
        begins = self.begins_words(candidates, example)
        return candidates[_whole_words(begins, num, self.whole_words, rng)]

    def begins_words(
        self, candidates: Int[np.ndarray, " candidates"], example: dict[str, np.ndarray]
    ) -> Bool[np.ndarray, " candidates"]:
        """Returns whether each candidate, a sorted position in the row, begins a word, bool [n]."""
        if "word_starts" not in example:
            raise UserError("whole-word masking needs examples with `word_starts`")
        starts = np.zeros(len(example["tokens"]), np.bool_)
        starts[example["word_starts"]] = True
        begins = starts[candidates]
        begins[0] = True
        begins[1:] |= candidates[1:] - candidates[:-1] > 1
        return begins

    def draw_replacements(
        self, positions: Int[np.ndarray, " positions"], example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " positions"], dict[str, np.ndarray]]:
        """Draws a number in [0, 1) per position, which decides its replacement; also returns more arrays of targets."""
        return rng.random(len(positions)), {}

    def replace_tokens(
        self,
        targets: Int[np.ndarray, " positions"],
        draws: Float[np.ndarray, " positions"],
        positions: Int[np.ndarray, " positions"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Num[np.ndarray, " positions"]:
        """Returns the ids that replace `targets`, the tokens at `positions`, as their `draws` decide."""
        replaced = rng.random(len(targets)) * special.vocab_size
        np.putmask(replaced, draws >= self.mask_share + self.random_share, targets)
        np.putmask(replaced, draws < self.mask_share, special.mask)
        return replaced


@functools.lru_cache(16)
def _is_text(*fixed: int | None) -> Bool[np.ndarray, " ids"]:
    """Returns a table, bool [largest of these ids + 2], of whether an id is not among `fixed`.

    The last entry applies to all larger ids.
    """
    ids = np.array([token for token in fixed if token is not None], np.int64)
    table = np.ones(ids.max(initial=-1) + 2, np.bool_)
    table[ids] = False
    return table


def _whole_words(
    begins: Bool[np.ndarray, " candidates"], budget: int, longest: int, rng: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    """Chooses n-grams of up to `longest` words with at most `budget` tokens; returns their sorted token indices.

    Args:
      begins: whether each token begins a word, bool [n]; the first one does.
    """
    (first,) = begins.nonzero()
    num_words = len(first)
    bounds = np.full(num_words + 1, len(begins))
    bounds[:-1] = first
    sizes = np.ones(num_words, np.int64)
    if longest > 1:
        weights = np.cumsum(1 / np.arange(1, longest + 1))
        sizes += weights.searchsorted(rng.random(num_words) * weights[-1], side="right")
        sizes = np.minimum(sizes, np.arange(num_words, 0, -1))
    starts, sizes = bounds.tolist(), sizes.tolist()
    taken = bytearray(num_words)
    # Sequential, since each word depends on those chosen before; the budget is used up after a few.
    for word in rng.permutation(num_words).tolist():
        size, start = sizes[word], starts[word]
        while size and starts[word + size] - start > budget:
            size -= 1
        if size and 1 not in taken[word : word + size]:
            taken[word : word + size] = b"\1" * size
            budget -= starts[word + size] - start
            if not budget:
                break
    return np.frombuffer(taken, np.bool_).repeat(bounds[1:] - first).nonzero()[0]
