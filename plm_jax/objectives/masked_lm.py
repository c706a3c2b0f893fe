"""Masked language modeling."""

import functools
import itertools
import math
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

# Slots of independent draws exceed the mean number of predictions by this number of standard deviations. Words count as
# if they had this number of tokens each.
_DEVIATIONS, _WORD_TOKENS = 5, 4
_COPIED_KEYS = ("token_types", "segment_ids", "positions", "pair_label")


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Prediction of masked tokens from all other tokens (BERT, Devlin et al. 2019, arXiv:1810.04805).

    By default, masks are drawn again each time an example is read. The defaults are those of
    `create_pretraining_data.py` in google-research/bert. The budget of a row is the number of tokens to predict. Whole
    words fill the budget as in BERT's code: words are visited in random order, and words that would exceed the budget
    are skipped. A word with more tokens than the budget is therefore never masked, and a row that has only such words
    has no target; `count_unmaskable` counts the tokens of such words. N-grams of words follow the file of the same name
    in google-research/albert (Lan et al. 2020, arXiv:1909.11942). An n-gram that would exceed the budget or the row is
    shortened. An n-gram that overlaps another n-gram is skipped. The words before and after a separator are treated as
    adjacent. RoBERTa (Liu et al. 2019, arXiv:1907.11692) differs slightly: fairseq rounds the number of predictions at
    random, may mask the first token of a row, and draws no special tokens as random ids.

    Attributes:
      rate: number of tokens to predict, as a share of the tokens of a row, special tokens included; at least one token,
        unless `independent`.
      max_predictions: maximum number of predictions in a row; 0: the number that `rate` gives for a row without
        padding. BERT has 20 at length 128. Must be 0 if `independent`.
      mask_share: share of the predicted tokens that are replaced by the mask.
      random_share: share of the predicted tokens that are replaced by a random id; the remaining predicted tokens are
        unchanged.
      similar_share: share of the predicted words that are replaced by a similar word with the same number of tokens,
        drawn from `data.similar_words` (MacBERT, Cui et al. 2020, arXiv:2004.13922, has 0.8); a word without similar
        words is replaced by random ids. If `similar_share` is above 0, all shares are shares of words instead of
        tokens, and `whole_words` must be above 0.
      whole_words: maximum number of neighboring words that are masked together; 0 masks single tokens; 1 masks all
        tokens of a word (BERT's whole-word masking); n masks 1 to n words, where the probability of k words is
        proportional to 1/k (ALBERT has 3). If it is above 0, examples need `word_starts`.
      ngram_weights: relative frequency of n-grams of 1, 2, …, `whole_words` words, such as (0.4, 0.3, 0.2, 0.1) for
        MacBERT; empty: 1/k for k words.
      smoothing: exponent s: tokens are drawn without replacement with weight count^-s, so that rare tokens are
        predicted more often; 0: equal weights. The count is the number of occurrences of the token in the training
        split of the row's source. DistilBERT has 0.7, but draws from a batch instead of a row; XLM has 0.5.
      independent: whether each token is predicted with probability `rate`, independently of other tokens, so that the
        number of predictions varies and can be 0. If `whole_words` is 1, words are drawn instead of tokens. ModernBERT
        draws tokens in this way, including special tokens; ERNIE draws units such as words or phrases in this way. A
        row has slots for the mean number of predictions plus five standard deviations, where a word counts as four
        tokens. About one row in a million has more predictions than slots; a random subset of its predictions is used.
        A packed row has as many slots as a single row of its length; if its inner rows together have more predictions,
        the last predictions are dropped.
      windows: whether one n-gram, of a random size n, is drawn from each window of n · floor(1 / `rate`) words. The
        drawn words are predicted from left to right until the number of tokens reaches the budget. The last word may
        exceed the budget, but not `max_predictions`. If `max_predictions` is 0, the last word is cut at the budget.
        With `whole_words` of 0, words are tokens. DeBERTa masks in this way (microsoft/DeBERTa, mlm_task.py). It draws
        a sixth of the words but predicts only 15 % of the tokens, so the end of a full row is rarely predicted. Masks
        and unknown tokens are not predicted.
      duplicates: number of different maskings of each row. Each epoch uses one of the maskings, and then the maskings
        repeat (static masking, as in BERT's files, and in RoBERTa's comparison with 10 maskings). 0: a new masking each
        time a row is read.
    """

    kind: ClassVar[str] = "masked_lm"
    architectures: ClassVar[tuple[str, ...]] = ("encoder",)
    loss: ClassVar[str] = "masked_lm"
    targets: ClassVar[str] = (
        "the masked tokens; with sentence pairs, the loss also includes the classification of the pairs"
    )
    inputs: ClassVar[tuple[str, ...]] = ("text", "row")
    separators: ClassVar[tuple[str, ...]] = ("eos", "sep")
    rate: ranges.ShareAboveZero = 0.15
    max_predictions: ranges.LengthOrZero = 0
    mask_share: ranges.Share = 0.8
    random_share: ranges.Share = 0.1
    similar_share: ranges.Share = 0.0
    whole_words: ranges.LengthOrZero = 0
    ngram_weights: tuple[ranges.MixtureRate, ...] = ()
    smoothing: ranges.Scale = 0.0
    independent: bool = False
    duplicates: ranges.CountOrZero = 0
    windows: bool = False

    def __post_init__(self):
        if self.mask_share + self.random_share + self.similar_share > 1 + 1e-9:
            raise UserError(
                f"config.objective.mask_share is {self.mask_share}, random_share {self.random_share} and similar_share "
                f"{self.similar_share}: their sum must be at most 1"
            )
        if self.ngram_weights and (len(self.ngram_weights) != self.whole_words or not sum(self.ngram_weights) > 0):
            raise UserError(
                f"config.objective.ngram_weights is {self.ngram_weights} and whole_words {self.whole_words}: set one "
                "weight for each number of words up to whole_words, at least one of them above 0"
            )
        if self.independent and self.whole_words > 1:
            raise UserError(
                f"config.objective.independent masks single units, but whole_words is {self.whole_words}: set it to 1 "
                "for words or 0 for tokens"
            )
        if self.independent and self.max_predictions:
            raise UserError(
                f"config.objective.max_predictions is {self.max_predictions}, but independent draws have no maximum: "
                "set max_predictions to 0 or independent to False"
            )
        if self.smoothing and (self.whole_words or self.independent or self.windows):
            raise UserError(
                "config.objective.smoothing applies to single tokens only: set smoothing to 0; or set whole_words to "
                "0, and independent and windows to False"
            )
        if self.windows and self.independent:
            raise UserError("config.objective.windows and independent exclude each other: set one of them to False")
        if self.similar_share and not self.whole_words:
            raise UserError("config.objective.similar_share replaces words: set whole_words to at least 1")

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return ("word_starts",) * (self.whole_words > 0) + ("token_counts",) * (self.smoothing > 0)

    @override
    def target_length(self, length: int) -> int:
        if not self.independent:
            return self.max_predictions or self.budget(length)
        variance = length * self.rate * (1 - self.rate) * (_WORD_TOKENS if self.whole_words else 1)
        return min(length, math.ceil(length * self.rate + _DEVIATIONS * math.sqrt(variance)))

    @override
    def max_targets(self, num_tokens: int) -> int:
        if self.windows:
            return min(self.target_length(num_tokens), num_tokens)
        return 0 if self.independent else min(self.target_length(num_tokens), self.budget(num_tokens))

    def budget(self, num_tokens: int) -> int:
        """Returns the number of tokens to predict in a row of `num_tokens` tokens: the share `rate`.

        The number is rounded, halves to even, and is at least 1, as in BERT's code.
        """
        return max(1, round(num_tokens * self.rate))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Masks some of the tokens that `is_maskable` accepts.

        Args:
          example: `tokens` [L]; optionally `mask` [L], 0 at padding. For whole words, also `word_starts`, the sorted
            indices of the first tokens of words; a token after an unmaskable token always begins a word. For
            `smoothing`, also `token_counts` [L], the number of occurrences of each token.

        Returns:
          `tokens` and `mask` [L] int32; `targets` and `target_positions` [P] int32, sorted by position; and
          `target_weights` [P] float32, with P = `target_length(L)`. Unused slots are 0. The keys `token_types`,
          `segment_ids`, `positions` and `pair_label` of the example are unchanged.

        Raises:
          UserError: the vocabulary has no mask and `mask_share` is above 0, or `word_starts` or `token_counts` are
            needed and missing.
        """
        if special.mask is None and self.mask_share:
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
        if not self.whole_words or self.windows or not num:
            return 0, len(candidates)
        sizes = np.diff(self.begins_words(candidates, example).nonzero()[0], append=len(candidates))
        return int(sizes[sizes > num].sum()), len(candidates)

    def _prepare(
        self, example: dict[str, np.ndarray], special: Special
    ) -> tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"], Bool[np.ndarray, " real"], int]:
        """Prepares a row for masking.

        Returns:
          A copy of `tokens` [L] int32; `mask` [L] int32; a bool array, whether each token up to the last non-padding
          token may be predicted; and the number of tokens to predict, or the maximum number if `independent`.
        """
        tokens = np.array(example["tokens"], np.int32)
        mask = np.asarray(example["mask"], np.int32) if "mask" in example else np.ones(len(tokens), np.int32)
        (real,) = mask.nonzero()
        end = int(real[-1]) + 1 if len(real) else 0  # Short rows are mostly padding, which is skipped.
        maskable = self.is_maskable(tokens[:end], mask[:end], special)
        num = min(self.target_length(len(tokens)), int(np.count_nonzero(maskable)))
        if not self.independent:
            num = min(num, self.budget(self.num_rated(tokens[:end], mask[:end], special)))
        return tokens, mask, maskable, num

    def num_rated(self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special) -> int:
        """Returns the number of tokens that the budget is a share of: all tokens except padding."""
        return int(np.count_nonzero(mask))

    def is_maskable(
        self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special
    ) -> Bool[np.ndarray, " real"]:
        """Returns whether each token of a row, up to the last non-padding token, may be predicted, bool [n].

        These are all tokens except padding, bos, eos, cls and sep and, with `windows`, mask and unk.
        """
        excluded = (special.mask, special.unk) if self.windows else ()
        is_text = _is_text(special.bos, special.eos, special.cls, special.sep, *excluded)
        return is_text.take(tokens, mode="clip") & (mask > 0)

    def choose_positions(
        self,
        maskable: Bool[np.ndarray, " real"],
        num: int,
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Int[np.ndarray, " positions"]:
        """Chooses the sorted positions of `num` maskable tokens, or fewer if whole words do not fill the budget.

        If `independent`, the number of chosen tokens is random and at most `num`. With `windows` and `max_predictions`,
        the last word may exceed `num`.
        """
        (candidates,) = maskable.nonzero()
        if not num:
            return candidates[:0]
        if self.windows:
            begins = self.begins_words(candidates, example) if self.whole_words else np.ones(len(candidates), np.bool_)
            size = int(1 / self.rate)
            positions = candidates[_from_windows(begins, num, size, self._cumulative_gram_weights, rng)]
            return positions[: self.max_predictions or num]
        if not self.whole_words:
            if self.independent:
                return candidates[_independent(np.arange(len(candidates)), self.rate, num, rng)]
            return candidates[rows.subset(len(candidates), num, rng, self._weights(candidates, example))]
        begins = self.begins_words(candidates, example)
        if self.independent:
            return candidates[_independent(begins.cumsum() - 1, self.rate, num, rng)]
        return candidates[_whole_words(begins, num, self._cumulative_gram_weights, rng)]

    def _weights(
        self, candidates: Int[np.ndarray, " candidates"], example: dict[str, np.ndarray]
    ) -> Float[np.ndarray, " candidates"] | None:
        """Returns the relative weight with which each candidate is drawn; None for equal weights."""
        if not self.smoothing:
            return None
        if "token_counts" not in example:
            raise UserError("smoothed masking needs `token_counts` in each example: add them, or set smoothing to 0")
        return np.maximum(example["token_counts"][candidates], 1.0) ** -self.smoothing

    @functools.cached_property
    def _cumulative_gram_weights(self) -> Float[np.ndarray, " words"]:
        weights = self.ngram_weights or 1 / np.arange(1, max(1, self.whole_words) + 1)
        return np.cumsum(weights)

    def begins_words(
        self, candidates: Int[np.ndarray, " candidates"], example: dict[str, np.ndarray]
    ) -> Bool[np.ndarray, " candidates"]:
        """Returns whether each candidate begins a word, bool [n]; `candidates` are sorted positions in the row.

        The first candidate and every candidate after a gap count as beginnings.

        Raises:
          UserError: the example has no `word_starts`.
        """
        if "word_starts" not in example:
            raise UserError("whole-word masking needs `word_starts` in each example: add them, or set whole_words to 0")
        starts = np.zeros(len(example["tokens"]), np.bool_)
        starts[example["word_starts"]] = True
        begins = starts[candidates]
        begins[0] = True
        begins[1:] |= candidates[1:] - candidates[:-1] > 1
        return begins

    def draw_replacements(
        self, positions: Int[np.ndarray, " positions"], example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " positions"], dict[str, np.ndarray]]:
        """Draws for each position a number in [0, 1) that decides the replacement at this position.

        All tokens of a word have the same number if words are replaced by similar words.

        Returns:
          A pair: the numbers, and a dict of arrays with one value per target, which are added to the row.
        """
        if not self.similar_share or not len(positions):
            return rng.random(len(positions)), {}
        word = self.begins_words(positions, example).cumsum() - 1
        return rng.random(word[-1] + 1)[word], {}

    def replace_tokens(
        self,
        targets: Int[np.ndarray, " positions"],
        draws: Float[np.ndarray, " positions"],
        positions: Int[np.ndarray, " positions"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Num[np.ndarray, " positions"]:
        """Returns the ids that replace `targets`, the tokens at `positions`; `draws` decide the kind of replacement.

        Ids are floats, and random ids have a fractional part, which a conversion to int32 removes.
        """
        vocab_size, mask = special.vocab_size, special.mask
        if self.similar_share and mask is not None:  # Then random ids are never the mask.
            replaced = rng.random(len(targets)) * (vocab_size - 1)
            replaced += replaced >= mask
        else:
            replaced = rng.random(len(targets)) * vocab_size
        np.putmask(replaced, draws >= self.mask_share + self.similar_share + self.random_share, targets)
        if self.mask_share:
            np.putmask(replaced, draws < self.mask_share, special.required("mask"))
        if self.similar_share and special.similar_words is not None and len(targets):
            (starts,) = self.begins_words(positions, example).nonzero()
            for start, end in itertools.pairwise([*starts.tolist(), len(targets)]):
                if self.mask_share <= draws[start] < self.mask_share + self.similar_share:
                    similar = special.similar_words.draw(targets[start:end], rng)
                    replaced[start:end] = replaced[start:end] if similar is None else similar
        return replaced


@functools.lru_cache(16)
def _is_text(*fixed: int | None) -> Bool[np.ndarray, " ids"]:
    """Returns a table, bool [max(fixed) + 2], which is False at the ids in `fixed` and True elsewhere.

    The last entry applies to all larger ids.
    """
    ids = np.array([token for token in fixed if token is not None], np.int64)
    table = np.ones(ids.max(initial=-1) + 2, np.bool_)
    table[ids] = False
    return table


def _independent(
    units: Int[np.ndarray, " candidates"], rate: float, most: int, rng: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    """Chooses each unit with probability `rate`; returns the sorted indices of the tokens of the chosen units.

    If the chosen units have more than `most` tokens, units are kept in random order while their total is at most
    `most`, and the remaining units are dropped.

    Args:
      units: index of the unit of each token, consecutive from 0.
    """
    chosen = rng.random(units[-1] + 1) < rate
    (tokens,) = chosen[units].nonzero()
    if len(tokens) <= most:
        return tokens
    sizes = np.bincount(units)
    order = rng.permutation(chosen.nonzero()[0])
    chosen[order[sizes[order].cumsum() > most]] = False
    return chosen[units].nonzero()[0]


def _from_windows(
    begins: Bool[np.ndarray, " candidates"],
    budget: int,
    size: int,
    cumulative_weights: Float[np.ndarray, " words"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " chosen"]:
    """Draws an n-gram of words from each window of `size` · n words; returns the sorted indices of chosen tokens.

    The drawn words are chosen from left to right, up to and including the word that reaches the budget.

    Args:
      begins: bool [n], whether each token begins a word; True for the first token.
      cumulative_weights: cumulative weights of n-grams of 1, 2, … words.
    """
    (first,) = begins.nonzero()
    num_words, sizes = len(first), np.diff(first, append=len(begins))
    draws = rng.random((num_words, 2))
    grams = 1 + cumulative_weights.searchsorted(draws[:, 0] * cumulative_weights[-1], side="right")
    drawn, begin = np.zeros(num_words, np.bool_), 0
    for gram, offset in zip(grams.tolist(), draws[:, 1].tolist(), strict=True):
        if begin >= num_words:
            break
        width = min(gram * size, num_words - begin)
        start = begin + int(offset * width)
        drawn[start : start + gram] = True
        begin = max(begin + width, min(start + gram, num_words))
    drawn[drawn] = (sizes[drawn].cumsum() - sizes[drawn]) < budget
    return drawn.repeat(sizes).nonzero()[0]


def _whole_words(
    begins: Bool[np.ndarray, " candidates"],
    budget: int,
    cumulative_weights: Float[np.ndarray, " words"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " chosen"]:
    """Chooses n-grams of words with at most `budget` tokens in total; returns the sorted indices of their tokens.

    Args:
      begins: bool [n], whether each token begins a word; True for the first token.
      cumulative_weights: cumulative weights of n-grams of 1, 2, … words.
    """
    (first,) = begins.nonzero()
    num_words = len(first)
    bounds = np.full(num_words + 1, len(begins))
    bounds[:-1] = first
    sizes = np.ones(num_words, np.int64)
    if len(cumulative_weights) > 1:
        draws = rng.random(num_words) * cumulative_weights[-1]
        sizes += cumulative_weights.searchsorted(draws, side="right")
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
