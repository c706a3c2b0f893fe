"""Autoregressive blank infilling."""

import bisect
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special

# The shortest text that `short_probability` makes, in tokens (THUDM/GLM, blocklm_utils.py).
_SHORTEST = 32


class _Blanks(NamedTuple):
    """Spans of a text, rising; the mask that stands for each; whether eop follows each; whether they are short ones."""

    starts: np.ndarray
    lengths: np.ndarray
    mask: int
    closed: bool = True
    short: bool = False


@dataclass(frozen=True)
class BlankInfilling(Objective):
    """Blanks in a text are filled token by token, in any order (GLM, Du et al. 2022, arXiv:2103.10360).

    A row is part A, cls if there is one and the text with one mask for each span that is cut out of it, and part B, the
    spans in random order, each behind sop; part B predicts each span and eop. Part A sees itself, part B sees part A
    and what precedes. Every token has two positions: its place in part A, which for part B is that of the span's mask,
    and its place within the span, counted from 1 at sop, 0 in part A.

    The rules and defaults are those of `blocklm_utils.py` in THUDM/GLM, but for these: each row draws its own kind of
    blanks, not each batch; every way to place short spans is equally likely; a shortened text is the only one of its
    row, begins anywhere and is not cut where sentences end; the ends of sentences are the cache's.

    Attributes:
      rate: short spans, or sentences, are drawn until so much of the text, rounded down, is cut out.
      mean_span_length, max_span_length: short spans have lengths from a Poisson distribution with this parameter,
        without 0 and what exceeds the maximum. They lie within documents and do not touch.
      sentence_rate: share of rows whose blanks are whole sentences, of which each has the mask `smask`.
      document_rate: share of rows that have one long blank, with the mask `gmask`.
      document_min_share: the least share of the text that this blank takes; the most is all but two tokens.
      document_end_share: how often it is the end of the text, which then has no eop; always so where there are several
        documents.
      block_mask_rate: share of the inputs of short spans, not of what they predict, that `dblock` replaces.
      short_probability: share of rows that hold a shorter stretch of their text.
    """

    kind: ClassVar[str] = "blank_infilling"
    architectures: ClassVar[tuple[str, ...]] = ("decoder",)
    loss: ClassVar[str] = "masked_lm"
    targets: ClassVar[str] = "the tokens of the blanks and their ends"
    fills_blanks: ClassVar[bool] = True
    rate: ranges.InnerShare = 0.15
    mean_span_length: Annotated[float, ranges.Range(0, 100, above=True, below=True)] = 3.0
    max_span_length: Annotated[int, ranges.Range(1, 2**16)] = 39
    sentence_rate: ranges.Share = 0.0
    document_rate: ranges.Share = 0.0
    document_min_share: ranges.InnerShare = 0.25
    document_end_share: ranges.Share = 0.5
    block_mask_rate: ranges.Share = 0.0
    short_probability: ranges.Share = 0.0

    def __post_init__(self):
        if self.sentence_rate + self.document_rate > 1:
            raise UserError(
                f"config.objective.sentence_rate is {self.sentence_rate} and document_rate {self.document_rate}: "
                "give rates that add up to at most 1"
            )

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        """What of an example it reads beyond its tokens."""
        return ("sentence_starts",) if self.sentence_rate else ()

    def text_length(self, length: int) -> int:
        """The tokens of text and cls that with masks, sop and eop make a row of `length`: 512 make 592.

        Raises:
          UserError: no number does.
        """
        return _text_length(self, length)

    @override
    def input_length(self, length: int) -> int:
        """The text of a row but for cls: 511 for a row of 592."""
        return self.text_length(length) - 1

    @override
    def num_positions(self, length: int) -> int:
        """Those of the text: what fills blanks has the positions of their masks."""
        return self.text_length(length)

    @override
    def target_length(self, length: int) -> int:
        """Slots for part B: 154 in a row of 592 with short spans alone."""
        return self._lengths(self.text_length(length))[1]

    def _lengths(self, num_tokens: int) -> tuple[int, int]:
        """The lengths of the row and of part B, both with slots for all that may be cut out of so many tokens."""
        spans, longest = self._spans(num_tokens), num_tokens - 1
        if not self.sentence_rate + self.document_rate:
            longest = min(longest, self._budget(num_tokens) + self.max_span_length - 1)
        return num_tokens + 2 * spans, longest + spans

    def _budget(self, num_tokens: int) -> int:
        """How many of so many tokens are cut out at least."""
        return max(1, int(num_tokens * self.rate))

    def _spans(self, num_tokens: int) -> int:
        """At most so many spans are cut out of so many tokens: six standard deviations above the mean number of short
        ones, by the renewal theorem, so that the limit is as good as never met.
        """
        budget, (mean, variance) = self._budget(num_tokens), _moments(self.mean_span_length, self.max_span_length)
        return min(budget, math.ceil(budget / mean + 6 * math.sqrt(budget * variance / mean**3)))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Cuts blanks out and appends what fills them.

        Args:
          example: `tokens` [input_length(L)], without cls, eos after each document but one that is cut; `mask` of that
            shape, 0 at padding behind the text, may be left out where there is none; `sentence_starts` [s], where
            sentences begin, of use for sentence blanks: a document without any counts as one sentence.

        Returns:
          `tokens`, `positions` and `block_positions` [L] int32, part A and then part B; `prefix_lengths` [] int32, the
          length of part A. `targets` and `target_positions` [T] int32 and `target_weights` [T] float32,
          T = `target_length(L)`: what part B predicts, and where. Unused slots are 0, unused tokens pad.

        Raises:
          UserError: the vocabulary lacks a special id; documents are kept apart.
        """
        self._check(example, special)
        tokens = np.asarray(example["tokens"], np.int32)
        length, target_length = self._lengths(len(tokens) + 1)
        if "mask" in example:
            tokens = tokens[: np.count_nonzero(example["mask"])]
        sentences = np.asarray(example.get("sentence_starts", ()), np.int64)
        if rng.random() < self.short_probability and len(tokens) > _SHORTEST:
            size = int(rng.integers(_SHORTEST - 1, len(tokens)))
            first = int(rng.integers(len(tokens) - size + 1))
            tokens, sentences = tokens[first : first + size], sentences - first
        framed = int(special.cls is not None)
        text = np.empty(len(tokens) + framed, np.int32)
        text[:framed], text[framed:] = special.cls or 0, tokens
        blanks = self._draw(text, framed, framed + sentences, special, rng)
        part_a, part_b = _parts(text, blanks, special, rng)
        if self.block_mask_rate and blanks.short:
            hidden = (rng.random(part_b.shape[1]) < self.block_mask_rate) & (part_b[_BLOCK_POSITION] > 1)
            part_b[_TOKEN, hidden] = special.required("dblock")
        row = np.zeros((4, length), np.int32)
        row[_TOKEN] = special.pad or 0
        first, num = len(part_a), part_b.shape[1]
        row[_TOKEN, :first], row[_POSITION, :first] = part_a, np.arange(first)
        row[:, first : first + num] = part_b
        return {
            "tokens": row[_TOKEN],
            "positions": row[_POSITION],
            "block_positions": row[_BLOCK_POSITION],
            "prefix_lengths": np.array(first, np.int32),
            "targets": rows.padded(part_b[_TARGET], num, target_length),
            "target_positions": rows.padded(first + np.arange(num), num, target_length),
            "target_weights": rows.padded(1, num, target_length, dtype=np.float32),
        }

    def _check(self, example: dict[str, np.ndarray], special: Special) -> None:
        needed = {"mask": True, "sop": True, "eop": True}
        needed |= {"smask": self.sentence_rate, "gmask": self.document_rate, "dblock": self.block_mask_rate}
        for name, rate in needed.items():
            if rate and getattr(special, name) is None:
                raise UserError(f"blank infilling as configured needs an id for {name}: set config.vocabulary.{name}")
        rows.check_joined(example, "blank infilling")

    def _draw(
        self,
        text: Int[np.ndarray, " length"],
        first: int,
        sentences: Int[np.ndarray, " sentences"],
        special: Special,
        rng: np.random.Generator,
    ) -> _Blanks:
        """The blanks of a text [n], of which tokens from `first` on may be cut out; sentences begin at `sentences`."""
        ends = np.zeros(0, np.int64) if special.eos is None else first + (text[first:] == special.eos).nonzero()[0]
        bounds = np.concatenate([[first - 1], ends, [len(text)]])
        begins, ends = bounds[:-1] + 1, bounds[1:]
        kind = rng.random()
        if kind < self.document_rate and len(text) > 2:
            return self._long(text, int(ends[0]), special, rng)
        if self.document_rate <= kind < self.document_rate + self.sentence_rate:
            return self._sentences(text, sentences, begins, ends, special, rng)
        return self._short(text, begins, ends, special, rng)

    def _long(self, text: Int[np.ndarray, " length"], end: int, special: Special, rng: np.random.Generator) -> _Blanks:
        """One blank at the text's end, or within its first document, which ends at `end`, if that is all."""
        least = max(1, int(self.document_min_share * len(text)))
        length = int(rng.integers(min(least, len(text) - 2), len(text) - 1))
        if end < len(text) - 1 or rng.random() < self.document_end_share:
            return _Blanks(np.array([len(text) - length]), np.array([length]), special.required("gmask"), closed=False)
        start = int(rng.integers(1, end - length + 1))
        return _Blanks(np.array([start]), np.array([length]), special.required("gmask"))

    def _sentences(
        self,
        text: Int[np.ndarray, " length"],
        sentences: Int[np.ndarray, " sentences"],
        begins: Int[np.ndarray, " documents"],
        ends: Int[np.ndarray, " documents"],
        special: Special,
        rng: np.random.Generator,
    ) -> _Blanks:
        is_start = np.zeros(len(text) + 1, np.bool_)
        is_start[sentences[(sentences >= begins[0]) & (sentences < len(text))]] = True
        is_start[begins] = True
        (starts,) = is_start.nonzero()
        stops = np.minimum(np.append(starts[1:], len(text)), ends[begins.searchsorted(starts, side="right") - 1])
        lengths = stops - starts
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        order = rng.permutation(len(starts))
        num = 1 + int(lengths[order].cumsum().searchsorted(self._budget(len(text))))
        chosen = np.sort(order[: min(num, self._spans(len(text)))])
        return _Blanks(starts[chosen], lengths[chosen], special.required("smask"))

    def _short(
        self,
        text: Int[np.ndarray, " length"],
        begins: Int[np.ndarray, " documents"],
        ends: Int[np.ndarray, " documents"],
        special: Special,
        rng: np.random.Generator,
    ) -> _Blanks:
        most = self._spans(len(text))
        lengths = 1 + _cumulative(self.mean_span_length, self.max_span_length).searchsorted(rng.random(most))
        lengths = lengths[: 1 + lengths.cumsum().searchsorted(self._budget(len(text)))]
        lengths = rng.permutation(lengths)  # The last one drawn tends to be long.
        starts, placed = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for begin, room, own in zip(begins.tolist(), *_share(lengths, ends - begins + 1, rng), strict=True):
            if own:
                own = np.array(own)
                # Each span takes one token more than its length, which keeps it off the next one. Shrunk to that one
                # they are a subset of the places; each is then moved by the lengths of those before it.
                starts.append(begin + rows.subset(room + len(own), len(own), rng) + own.cumsum() - own)
                placed.append(own)
        return _Blanks(np.concatenate(starts), np.concatenate(placed), special.required("mask"), short=True)


def _share(
    lengths: Int[np.ndarray, " spans"], rooms: Int[np.ndarray, " documents"], rng: np.random.Generator
) -> tuple[list[int], list[list[int]]]:
    """Shares spans out to documents, each in proportion to the room that is left where it fits.

    Args:
      lengths: of the spans.
      rooms: of each document one more than its tokens.

    Returns:
      What room is left in each document, and the lengths of its spans. Where none fits a span is cut to the largest
      room; where there is none at all it is dropped.
    """
    if len(rooms) == 1 and (left := int(rooms[0] - lengths.sum()) - len(lengths)) > 0:
        return [left], [lengths.tolist()]
    left_rooms, own = rooms.tolist(), [[] for _ in rooms]
    for length, draw in zip(lengths.tolist(), rng.random(len(lengths)).tolist(), strict=True):
        length = min(length, max(left_rooms) - 1)
        if length < 1:
            break
        fitting = list(itertools.accumulate([room if room > length else 0 for room in left_rooms]))
        document = bisect.bisect_right(fitting, draw * fitting[-1])
        left_rooms[document] -= length + 1
        own[document].append(length)
    return left_rooms, own


# The rows of part B.
_TOKEN, _POSITION, _BLOCK_POSITION, _TARGET = range(4)


def _parts(
    text: Int[np.ndarray, " length"], blanks: _Blanks, special: Special, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " part_a"], Int[np.ndarray, "4 part_b"]]:
    """Part A [a], and part B [4, b]: its tokens, both positions and targets."""
    order = rng.permutation(len(blanks.starts))
    starts, lengths = blanks.starts[order], blanks.lengths[order]
    sizes = lengths + 1
    firsts = sizes.cumsum() - sizes
    within = np.arange(sizes.sum()) - firsts.repeat(sizes)
    # The token of the text that each place predicts; at eop, which follows the last one of its span, the one beyond.
    source = starts.repeat(sizes) + within
    kept = np.ones(len(text) + 1, np.bool_)
    kept[source] = False
    kept[starts] = kept[starts + lengths] = True
    kept = kept[:-1]
    part_a = text.copy()
    part_a[starts] = blanks.mask
    part_b = np.empty((4, len(within)), np.int32)
    part_b[_TOKEN] = text.take(source - 1, mode="clip")
    part_b[_TOKEN, firsts] = special.required("sop")
    part_b[_POSITION] = (kept.cumsum()[starts] - 1).repeat(sizes)
    part_b[_BLOCK_POSITION] = within + 1
    part_b[_TARGET] = text.take(source, mode="clip")
    part_b[_TARGET, firsts + lengths] = special.required("eop")
    return part_a[kept], part_b if blanks.closed else part_b[:, :-1]


@functools.cache
def _text_length(settings: BlankInfilling, length: int) -> int:
    found = bisect.bisect_left(range(length), length, key=lambda n: settings._lengths(n)[0])
    made = settings._lengths(found)[0]
    if found < 3 or made != length:
        raise UserError(f"blank infilling makes no row of length {length}: set config.data.length to {max(made, 5)}")
    return found


@functools.cache
def _cumulative(mean: float, most: int) -> Float[np.ndarray, " {most}"]:
    """The cumulative probabilities of lengths 1 to `most` under a Poisson distribution confined to them."""
    logs = [k * math.log(mean) - math.lgamma(k + 1) for k in range(1, most + 1)]
    weights = np.exp(np.array(logs) - max(logs))
    cumulative = weights.cumsum() / weights.sum()
    cumulative[-1] = 1.0
    return cumulative


@functools.cache
def _moments(mean: float, most: int) -> tuple[float, float]:
    """The mean and variance of that length."""
    probabilities, lengths = np.diff(_cumulative(mean, most), prepend=0.0), np.arange(1, most + 1)
    average = float(probabilities @ lengths)
    return average, float(probabilities @ lengths**2) - average**2
