"""Masked language modelling."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special

_KEPT = ("token_types", "segment_ids", "positions", "pair_label")


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Predict some tokens from all others (BERT, Devlin et al. 2019, arXiv:1810.04805), drawn anew for every example.

    The defaults are those of `create_pretraining_data.py` in google-research/bert, and so is how whole words fill the
    budget: in random order, those left out that would overflow it. So a word of more tokens than a row may have
    predicted is never masked, and a row of such words has no target; `left_out` counts them. Stretches of several words
    are those of the same file in google-research/albert (Lan et al. 2020, arXiv:1909.11942): where one would overflow
    the budget it is shortened, one that begins near the row's end is as long as words remain (its length is drawn as
    everywhere else), one that meets another is left out, and what goes on behind a separator counts as next to it.
    RoBERTa (Liu et al. 2019, arXiv:1907.11692) differs little: fairseq rounds the number of predictions at random, may
    mask what begins a row, and draws random ids that are not special.

    Attributes:
      rate: share of a row's tokens, special ones counted, that are predicted; at least one is.
      max_predictions: slots for targets in a row; 0: as many as a whole row needs. BERT has 20 at length 128.
      mask_share, random_share: of the predicted tokens, those replaced by the mask and by any id of the vocabulary;
        the rest stay.
      whole_words: words masked together, which takes `word_starts`. 0: tokens are masked one by one; 1: all tokens of a
        word (BERT's whole-word masking); n: up to n neighbouring words, k of them with probability proportional to 1/k
        (ALBERT has 3).
      duplicates: how many masks each row has, an epoch each, after which they come again, as where masks are written to
        files once (BERT; "static masking" in RoBERTa's comparison, with 10); 0: a new one every time.
    """

    kind: ClassVar[str] = "masked_lm"
    architectures: ClassVar[tuple[str, ...]] = ("encoder",)
    loss: ClassVar[str] = "masked_lm"
    targets: ClassVar[str] = "the masked tokens; with sentence pairs the loss is theirs and the pairs' added up"
    takes: ClassVar[tuple[str, ...]] = ("text", "row")
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
                "give shares that add up to at most 1"
            )

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        """What examples must have besides tokens."""
        return ("word_starts",) if self.whole_words else ()

    @override
    def target_length(self, length: int) -> int:
        """Slots for targets in a row."""
        return self.max_predictions or self._budget(length)

    def _budget(self, num_tokens: int) -> int:
        """How many of so many tokens are predicted; Python's `round`, halves to even, as in the source."""
        return max(1, round(num_tokens * self.rate))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Masks tokens, never one that begins or ends a row or document.

        Args:
          example: `tokens` [L]; `mask` [L], 0 at padding, may be left out where there is none; where whole words are
            masked `word_starts`, the rising indices of the tokens that begin words; behind tokens that are never masked
            words begin in any case.

        Returns:
          `tokens` and `mask` [L] int32; `targets` and `target_positions` [P] int32, positions rising, and
          `target_weights` [P] float32, with P = `target_length(L)`, unused slots all 0; `token_types`, `segment_ids`,
          `positions` and `pair_label` as they were given.

        Raises:
          UserError: the vocabulary has no mask; `word_starts` are missing.
        """
        if special.mask is None:
            raise UserError("masked language modelling needs a mask id: set config.vocabulary.mask")
        tokens, mask, free, num = self._look(example, special)
        slots = self.target_length(len(tokens))
        positions = self._choose(free, num, example, rng)
        num = len(positions)
        targets = tokens[positions]
        draw, more = self._draw(positions, rng)
        random = rng.random(num)
        replaced = random * special.vocab_size
        np.putmask(replaced, draw >= self.mask_share + self.random_share, targets)
        np.putmask(replaced, draw < self.mask_share, special.mask)
        tokens[positions] = replaced
        kept = {key: np.asarray(example[key], np.int32) for key in _KEPT if key in example}
        kept |= {name: rows.padded(values, num, slots) for name, values in more.items()}
        return kept | {
            "tokens": tokens,
            "mask": mask,
            "targets": rows.padded(targets, num, slots),
            "target_positions": rows.padded(positions, num, slots),
            "target_weights": rows.padded(1, num, slots, dtype=np.float32),
        }

    @override
    def left_out(self, example: dict[str, np.ndarray], special: Special) -> tuple[int, int]:
        """How many tokens of a row, as `apply` takes it, are in words too long to be ever masked, and of how many."""
        _, _, free, num = self._look(example, special)
        (candidates,) = free.nonzero()
        if not self.whole_words or not num:
            return 0, len(candidates)
        sizes = np.diff(self._begins(candidates, example).nonzero()[0], append=len(candidates))
        return int(sizes[sizes > num].sum()), len(candidates)

    def _look(
        self, example: dict[str, np.ndarray], special: Special
    ) -> tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"], Bool[np.ndarray, " real"], int]:
        """A row's `tokens`, a copy, and `mask` [L] int32; which of them up to the last real one may be predicted, bool;
        and how many are to be.
        """
        tokens = np.array(example["tokens"], np.int32)
        mask = np.asarray(example["mask"], np.int32) if "mask" in example else np.ones(len(tokens), np.int32)
        (real,) = mask.nonzero()
        end = int(real[-1]) + 1 if len(real) else 0  # Of a short row most is padding, which need not be looked at.
        free = self._free(tokens[:end], mask[:end], special)
        rated = self._num_rated(tokens[:end], mask[:end], special)
        num = min(self.target_length(len(tokens)), self._budget(rated), int(np.count_nonzero(free)))
        return tokens, mask, free, num

    def _num_rated(self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special) -> int:
        """Returns the number of tokens of a row of which `rate` is the share to predict: special tokens count."""
        return int(np.count_nonzero(mask))

    def _free(
        self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special
    ) -> Bool[np.ndarray, " real"]:
        """Bool [n]: which tokens of a row up to its last real one may be predicted."""
        is_text = _is_text(special.bos, special.eos, special.cls, special.sep)
        return is_text.take(tokens, mode="clip") & (mask > 0)

    def _choose(
        self, free: Bool[np.ndarray, " real"], num: int, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> Int[np.ndarray, " positions"]:
        """The positions of `num` free tokens, rising; of fewer where whole words do not fill the budget."""
        (candidates,) = free.nonzero()
        if not self.whole_words or not num:
            return candidates[rows.subset(len(candidates), num, rng)]
        begins = self._begins(candidates, example)
        return candidates[_whole_words(begins, num, self.whole_words, rng)]

    def _begins(
        self, candidates: Int[np.ndarray, " candidates"], example: dict[str, np.ndarray]
    ) -> Bool[np.ndarray, " candidates"]:
        """Bool [n]: which of a row's candidates, rising positions, begin a word."""
        if "word_starts" not in example:
            raise UserError("masking whole words takes examples with `word_starts`")
        starts = np.zeros(len(example["tokens"]), np.bool_)
        starts[example["word_starts"]] = True
        begins = starts[candidates]
        begins[0] = True
        begins[1:] |= candidates[1:] - candidates[:-1] > 1
        return begins

    def _draw(
        self, positions: Int[np.ndarray, " positions"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " positions"], dict[str, np.ndarray]]:
        """For each position the number in [0, 1) that decides what its token is replaced by, and more to say of it."""
        return rng.random(len(positions)), {}


@functools.lru_cache(16)
def _is_text(*fixed: int | None) -> Bool[np.ndarray, " ids"]:
    """Bool [largest of these ids + 2]: whether an id is none of them; the last stands for all that are larger."""
    ids = np.array([token for token in fixed if token is not None], np.int64)
    table = np.ones(ids.max(initial=-1) + 2, np.bool_)
    table[ids] = False
    return table


def _whole_words(
    begins: Bool[np.ndarray, " candidates"], budget: int, longest: int, rng: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    """Stretches of up to `longest` words, of `budget` tokens at most: which tokens, rising.

    Args:
      begins: bool [n], whether a token begins a word; the first does.
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
    # Each depends on those before it; few are looked at, since the budget is soon used up.
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
