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

# Minimum number of tokens of a text shortened by `short_probability` (THUDM/GLM, blocklm_utils.py).
_SHORTEST = 32


class _Blanks(NamedTuple):
    """Spans cut out of a text.

    Attributes:
      starts, lengths: starts and lengths of the spans, sorted by start.
      mask: id that replaces each span.
      closed: whether the targets of each span end with eop.
      short: whether the spans are short spans, not sentences or one long blank.
    """

    starts: np.ndarray
    lengths: np.ndarray
    mask: int
    closed: bool = True
    short: bool = False


@dataclass(frozen=True)
class BlankInfilling(Objective):
    """Autoregressive filling of blanks in a text, in random order (GLM, Du et al. 2022, arXiv:2103.10360).

    Part A of a row is the text, after cls if the vocabulary has one, with each cut span replaced by a mask. Part B is
    the spans in random order, each after sop; its targets are the tokens of each span and eop. Tokens of part A attend
    to part A; tokens of part B attend to part A and to earlier tokens of part B. Every token has two positions. The
    first one is a position in part A: for a token of part B, that of its span's mask. The second one is the position
    within the span: 0 in part A, and 1 at sop.

    Rules and defaults are those of `blocklm_utils.py` in THUDM/GLM, with these differences: the kind of blanks is drawn
    per row, not per batch; all placements of short spans are equally likely; boundaries of sentences come from the
    cache. A shortened text (`short_probability`) is alone in its row, begins at an arbitrary token and may end within a
    sentence.

    Attributes:
      rate: share of the text's tokens to cut out as short spans or sentences, rounded down, but at least one token. The
        last span may exceed this number.
      mean_span_length: mean of the Poisson distribution of the lengths of short spans. The distribution is then
        truncated to [1, max_span_length], which changes its mean. Short spans do not cross document boundaries and do
        not touch.
      max_span_length: maximum length of short spans.
      sentence_rate: share of rows whose blanks are full sentences, each replaced by the mask `smask`.
      document_rate: share of rows with a single long blank, replaced by the mask `gmask`.
      document_min_share: minimum length of a long blank, as a share of the text. The maximum length of a long blank is
        the length of the text minus two tokens.
      document_end_share: probability that a long blank is put at the end of the text; its targets then have no eop. In
        a row of several documents, a long blank is always put at the end.
      block_mask_rate: share of the input tokens of short spans that are replaced by `dblock`; targets are unchanged.
      short_probability: share of the rows of more than 32 tokens that have only a random part of their text. The part
        has at least 31 tokens.
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
                "their sum must be at most 1"
            )

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return ("sentence_starts",) if self.sentence_rate else ()

    def text_length(self, length: int) -> int:
        """Returns the number of text tokens, cls included, that fit in a row of `length` together with masks and sop.

        For example, with the default settings, a row of 592 has room for 512 text tokens.

        Raises:
          UserError: no number of tokens makes such a row.
        """
        return _text_length(self, length)

    @override
    def input_length(self, length: int) -> int:
        """Returns the number of text tokens without cls, for example 511 for a row of 592 with the default settings."""
        return self.text_length(length) - 1

    @override
    def num_positions(self, length: int) -> int:
        """Returns the number of tokens of the text, because tokens of part B have the positions of their masks."""
        return self.text_length(length)

    @override
    def target_length(self, length: int) -> int:
        """Returns the number of slots for part B, for example 154 in a row of 592 with the default settings."""
        return self._lengths(self.text_length(length))[1]

    def _lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the maximum lengths of the row and of part B for a text of `num_tokens`."""
        spans, longest = self._spans(num_tokens), num_tokens - 1
        if not self.sentence_rate + self.document_rate:
            longest = min(longest, self._budget(num_tokens) + self.max_span_length - 1)
        return num_tokens + 2 * spans, longest + spans

    def _budget(self, num_tokens: int) -> int:
        """Returns the minimum number of tokens to cut out of `num_tokens`."""
        return max(1, int(num_tokens * self.rate))

    def _spans(self, num_tokens: int) -> int:
        """Returns the maximum number of spans in a text of `num_tokens`.

        The maximum is six standard deviations above the mean number of short spans (by the renewal theorem), but at
        most `_budget`.
        """
        budget, (mean, variance) = self._budget(num_tokens), _moments(self.mean_span_length, self.max_span_length)
        return min(budget, math.ceil(budget / mean + 6 * math.sqrt(budget * variance / mean**3)))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Cuts blanks out of the text and appends their contents.

        Args:
          example: `tokens` [input_length(L)], without cls, and with eos after each document that ends in the row.
            Optionally `mask` of the same shape, 0 at padding after the text. Optionally `sentence_starts` [s], the
            indices of the first tokens of sentences; a document without sentence starts counts as one sentence.

        Returns:
          `tokens`, `positions` and `block_positions` [L] int32: part A and then part B. `prefix_lengths` [] int32: the
          length of part A. `targets` and `target_positions` [T] int32 and `target_weights` [T] float32: the targets of
          part B, with T = `target_length(L)`. Unused tokens are pad; everything else that is unused is 0.

        Raises:
          UserError: the vocabulary lacks a special id, or the row has `segment_ids`, which keep its documents apart.
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
                raise UserError(f"blank infilling needs an id for {name}: set config.vocabulary.{name}")
        rows.check_joined(example, "blank infilling")

    def _draw(
        self,
        text: Int[np.ndarray, " length"],
        first: int,
        sentences: Int[np.ndarray, " sentences"],
        special: Special,
        rng: np.random.Generator,
    ) -> _Blanks:
        """Draws the blanks of a text [n].

        Args:
          first: index of the first token that may be cut out.
          sentences: indices of the first tokens of sentences.
        """
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
        """Draws one long blank at the end of the text or, if the text is a single document, possibly elsewhere.

        Args:
          end: index of the first eos, or the length of the text if it has no eos.
        """
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
        for begin, room, sizes in zip(begins.tolist(), *_share(lengths, ends - begins + 1, rng), strict=True):
            if sizes:
                spans = np.array(sizes)
                # A free token follows each span. With spans shrunk to that token, a placement is a subset of the
                # positions; each span is then moved by the lengths of the spans before it.
                starts.append(begin + rows.subset(room + len(spans), len(spans), rng) + spans.cumsum() - spans)
                placed.append(spans)
        return _Blanks(np.concatenate(starts), np.concatenate(placed), special.required("mask"), short=True)


def _share(
    lengths: Int[np.ndarray, " spans"], rooms: Int[np.ndarray, " documents"], rng: np.random.Generator
) -> tuple[list[int], list[list[int]]]:
    """Distributes spans among documents.

    Each document with room for a span gets it with a probability proportional to the document's remaining room.

    Args:
      lengths: lengths of the spans.
      rooms: for each document, its number of tokens plus one.

    Returns:
      A pair of lists: the remaining room of each document, and the lengths of the spans in each document. A span that
      fits in no document is cut to the largest remaining room, or dropped if no document has room.
    """
    if len(rooms) == 1 and (left := int(rooms[0] - lengths.sum()) - len(lengths)) > 0:
        return [left], [lengths.tolist()]
    left_rooms, spans = rooms.tolist(), [[] for _ in rooms]
    for length, draw in zip(lengths.tolist(), rng.random(len(lengths)).tolist(), strict=True):
        length = min(length, max(left_rooms) - 1)
        if length < 1:
            break
        fitting = list(itertools.accumulate([room if room > length else 0 for room in left_rooms]))
        document = bisect.bisect_right(fitting, draw * fitting[-1])
        left_rooms[document] -= length + 1
        spans[document].append(length)
    return left_rooms, spans


# Rows of the array that holds part B.
_TOKEN, _POSITION, _BLOCK_POSITION, _TARGET = range(4)


def _parts(
    text: Int[np.ndarray, " length"], blanks: _Blanks, special: Special, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " part_a"], Int[np.ndarray, "4 part_b"]]:
    """Returns part A [a], and part B [4, b]; the rows of part B are its tokens, both positions, and its targets."""
    order = rng.permutation(len(blanks.starts))
    starts, lengths = blanks.starts[order], blanks.lengths[order]
    sizes = lengths + 1
    firsts = sizes.cumsum() - sizes
    within = np.arange(sizes.sum()) - firsts.repeat(sizes)
    # Index of the token that each position predicts; one past the span where eop is predicted.
    source = starts.repeat(sizes) + within
    in_part_a = np.ones(len(text) + 1, np.bool_)
    in_part_a[source] = False
    in_part_a[starts] = in_part_a[starts + lengths] = True
    in_part_a = in_part_a[:-1]
    part_a = text.copy()
    part_a[starts] = blanks.mask
    part_b = np.empty((4, len(within)), np.int32)
    part_b[_TOKEN] = text.take(source - 1, mode="clip")
    part_b[_TOKEN, firsts] = special.required("sop")
    part_b[_POSITION] = (in_part_a.cumsum()[starts] - 1).repeat(sizes)
    part_b[_BLOCK_POSITION] = within + 1
    part_b[_TARGET] = text.take(source, mode="clip")
    part_b[_TARGET, firsts + lengths] = special.required("eop")
    return part_a[in_part_a], part_b if blanks.closed else part_b[:, :-1]


@functools.cache
def _text_length(settings: BlankInfilling, length: int) -> int:
    num_tokens = bisect.bisect_left(range(length), length, key=lambda n: settings._lengths(n)[0])
    nearest = settings._lengths(num_tokens)[0]
    if num_tokens < 3 or nearest != length:
        raise UserError(
            f"blank infilling cannot make a row of length {length}: set config.data.length to {max(nearest, 5)}"
        )
    return num_tokens


@functools.cache
def _cumulative(mean: float, most: int) -> Float[np.ndarray, " {most}"]:
    """Returns the cumulative probabilities of a Poisson distribution that is truncated to the lengths 1 to `most`."""
    logs = [k * math.log(mean) - math.lgamma(k + 1) for k in range(1, most + 1)]
    weights = np.exp(np.array(logs) - max(logs))
    cumulative = weights.cumsum() / weights.sum()
    cumulative[-1] = 1.0
    return cumulative


@functools.cache
def _moments(mean: float, most: int) -> tuple[float, float]:
    """Returns the mean and the variance of the lengths of short spans."""
    probabilities, lengths = np.diff(_cumulative(mean, most), prepend=0.0), np.arange(1, most + 1)
    average = float(probabilities @ lengths)
    return average, float(probabilities @ lengths**2) - average**2
