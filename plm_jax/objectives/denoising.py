"""Denoising of whole texts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Int, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.examples import EncoderDecoderRows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special

# Returns the given number of masks, some of which may be random ids.
Masks = Callable[[int], Int[np.ndarray, " _"]]


@dataclass(frozen=True)
class TokenMasking:
    """Replacement of single tokens by masks.

    Attributes:
      rate: share of the tokens that are replaced.
    """

    kind: ClassVar[str] = "masking"
    rate: ranges.Share = 0.3


@dataclass(frozen=True)
class TokenDeletion:
    """Deletion of tokens.

    Attributes:
      rate: share of the tokens that are deleted.
    """

    kind: ClassVar[str] = "deletion"
    rate: ranges.Share = 0.3


@dataclass(frozen=True)
class TextInfilling:
    """Replacement of spans of words by one mask each; a span of no words inserts a mask.

    Attributes:
      rate: sum of the lengths of the spans, as a share of the number of words.
      mean_span_length: mean of the Poisson distribution of span lengths, in words.
    """

    kind: ClassVar[str] = "infilling"
    rate: ranges.Share = 0.3
    mean_span_length: Annotated[float, ranges.Range(0.1, 2**24)] = 3.0


@dataclass(frozen=True)
class NoNoise:
    """No noise on tokens. Sentences may still be permuted, masks may be inserted, and the text may be rotated."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Denoising(Objective):
    """Reconstruction of a text by the decoder from a noised text (BART, Lewis et al. 2020, arXiv:1910.13461).

    Noise is applied in the order of facebookresearch/fairseq, denoising_dataset.py: sentences are permuted, `noise` is
    applied to tokens or words, masks are inserted, the text is rotated. The defaults are the recipe of BART, which
    differs from fairseq's defaults.

    Tokens, words and sentences are drawn without replacement. The number that is drawn is the configured share of the
    tokens, words or sentences in the text, rounded up. As in fairseq, spans may overlap. The mask of a span that begins
    within another span is then dropped. There are four differences from fairseq. Sentence boundaries come from the
    cache for every vocabulary; fairseq ends sentences at GPT-2's full stop or, with another tokenizer, at eos. A mask
    that is replaced by a random id (`random_share`) may get any id of the vocabulary; fairseq never draws id 0.
    Inserted masks are replaced with the same probability as other masks; fairseq replaces a fixed share of the inserted
    masks. A rotation begins at each token with equal probability; in fairseq, the rotation that leaves the text
    unchanged is twice as likely as each other rotation.

    Attributes:
      permute_sentences: share of the sentences that are permuted.
      noise: noise on tokens or words.
      insert: number of masks that are inserted at random positions, as a share of the number of tokens.
      rotate: probability that the text is rotated to begin at a random token.
      random_share: probability that a mask is replaced by a random id of the vocabulary. Inserted masks are included.
    """

    kind: ClassVar[str] = "denoising"
    architectures: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    targets: ClassVar[str] = "the whole clean text, with its beginning and end tokens"
    frames: ClassVar[bool] = True
    separators: ClassVar[tuple[str, ...]] = ()  # fairseq joins documents without one.
    example_rows: ClassVar[type | None] = EncoderDecoderRows
    permute_sentences: ranges.Share = 1.0
    noise: TextInfilling | TokenMasking | TokenDeletion | NoNoise = TextInfilling()
    insert: ranges.Share = 0.0
    rotate: ranges.Share = 0.0
    random_share: ranges.Share = 0.0

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        words = () if isinstance(self.noise, NoNoise) else ("word_starts",)
        return (*words, "sentence_starts") if self.permute_sentences else words

    @override
    def input_length(self, length: int) -> int:
        """Returns the maximum number of tokens that fit in an encoder row of `length` with bos, eos and inserted masks.

        Raises:
          UserError: no token fits.
        """
        num_tokens = int((length - 2) / (1 + self.insert)) + 1
        while self._noised_length(num_tokens) > length:
            num_tokens -= 1
        if num_tokens < 1:
            raise UserError(f"denoising cannot make a row of length {length}: raise config.data.length")
        return num_tokens

    @override
    def row_length(self, length: int) -> int:
        """Returns the length of the encoder's row: `length` or, if no text has this length with masks, `length` - 1."""
        return self._noised_length(self.input_length(length))

    def _noised_length(self, num_tokens: int) -> int:
        """Returns the length of an encoder row for `num_tokens` tokens of text, with bos, eos and inserted masks."""
        return num_tokens + math.ceil(self.insert * num_tokens) + 2

    @override
    def target_length(self, length: int) -> int:
        """Returns the length of the decoder's row for an encoder row of `length`: the text, bos and eos."""
        return self.input_length(length) + 2

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Adds the noise.

        Args:
          example: `tokens` [input_length(L)]. Optionally `mask` of the same shape, 0 at padding after the text.
            Optionally `sentence_starts` and `word_starts`, the sorted indices of the first tokens of sentences and
            words; by default, the text is one sentence, and each token is a word. Optionally `segment_ids` of the same
            shape, the number of each token's document, counted from 1; the noise is then applied to each document
            separately.

        Returns:
          `tokens` and `mask` [R] int32, with R = `row_length(L)`: bos, the noised text and eos. A text that many empty
          spans have made too long is cut before eos. `targets` [T] int32 and `target_weights` [T] float32: bos, the
          text and eos, with T = `target_length(L)`. A document of which the encoder's row has no token has weights of
          0. `decoder_tokens` [T] int32: the targets shifted right by one, with eos as the first token.

          If the example has `segment_ids`, the row also has `segment_ids` [R] and `decoder_segment_ids` [T] int32: the
          number of each token's document, counted from 1, or 0 at padding. The first bos belongs to the first document,
          and the last eos belongs to the last document. The row then also has `decoder_positions` [T] int32, which
          restart at 0 in each document; at position 0, the decoder reads eos.

        Raises:
          UserError: the vocabulary lacks bos or eos, or lacks mask although the noise writes masks.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        self._check(special)
        length, target_length = self._noised_length(len(tokens)), len(tokens) + 2
        if "mask" in example:
            tokens = tokens[: np.count_nonzero(example["mask"])]
        begins = np.zeros(1, np.int64)
        if "segment_ids" in example:
            begins = np.flatnonzero(np.diff(example["segment_ids"][: len(tokens)], prepend=0))
        parts = self._noised_apart(tokens, begins, example, special, rng)
        noised, pad = np.concatenate(parts)[: length - 2], special.pad or 0
        targets = _framed(tokens, target_length, special, pad)
        decoder_tokens = np.full_like(targets, special.required("eos"))
        decoder_tokens[1:] = targets[:-1]
        row = {
            "tokens": _framed(noised, length, special, pad),
            "mask": rows.padded(1, len(noised) + 2, length),
            "decoder_tokens": decoder_tokens,
            "targets": targets,
            "target_weights": rows.padded(1, len(tokens) + 2, target_length, dtype=np.float32),
        }
        if "segment_ids" in example:
            row["segment_ids"] = _numbered(np.array([len(part) for part in parts]), len(noised), length)
            ids = _numbered(np.diff(begins, append=len(tokens)), len(tokens), target_length)
            row["decoder_segment_ids"], row["decoder_positions"] = ids, rows.segment_positions(ids)
            # A document of which no token is left in the encoder is not predicted.
            row["target_weights"] *= np.isin(ids, row["segment_ids"])
            decoder_tokens[np.diff(ids, prepend=0) > 0] = special.required("eos")
        return row

    def _noised_apart(
        self,
        tokens: Int[np.ndarray, " length"],
        begins: Int[np.ndarray, " documents"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> list[Int[np.ndarray, " _"]]:
        """Applies the noise to each document in the tokens [n] of a row; documents begin at the positions `begins`."""
        if len(begins) == 1:
            return [self._noised(tokens, example, special, rng)]
        ends, documents = np.append(begins[1:], len(tokens)), []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            local_starts = {}
            for name in example.keys() & {"sentence_starts", "word_starts"}:
                starts = example[name]
                local_starts[name] = starts[slice(*starts.searchsorted((begin, end)))] - begin
            documents.append(self._noised(tokens[begin:end], local_starts, special, rng))
        return documents

    def _check(self, special: Special) -> None:
        writes_masks = self.insert > 0 or isinstance(self.noise, TextInfilling | TokenMasking)
        for name in ("bos", "eos", *(["mask"] if writes_masks else [])):
            if getattr(special, name) is None:
                raise UserError(f"denoising needs an id for {name}: set config.vocabulary.{name}")

    def _noised(
        self,
        tokens: Int[np.ndarray, " length"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Int[np.ndarray, " noised"]:
        """Applies the noise to one text [n]; `example` may have `sentence_starts` and `word_starts`."""
        sentences, words = (_is_start(example.get(f"{name}_starts"), len(tokens)) for name in ("sentence", "word"))
        if self.permute_sentences and sentences is not None:
            order = _permuted(sentences, self.permute_sentences, rng)
            tokens, words = tokens[order], None if words is None else words[order]

        def masks(count: int) -> Int[np.ndarray, " {count}"]:
            ids = np.full(count, special.required("mask"), np.int32)
            if self.random_share:
                random = rng.random(count) < self.random_share
                ids[random] = rng.integers(special.vocab_size, size=np.count_nonzero(random))
            return ids

        match self.noise:
            case TokenMasking(rate):
                at = rows.subset(len(tokens), math.ceil(rate * len(tokens)), rng)
                tokens = tokens.copy()
                tokens[at] = masks(len(at))
            case TokenDeletion(rate):
                tokens = np.delete(tokens, rows.subset(len(tokens), math.ceil(rate * len(tokens)), rng))
            case TextInfilling(rate, mean):
                tokens = _infilled(tokens, words, rate, mean, masks, rng)
        if self.insert:
            tokens = _inserted(tokens, math.ceil(self.insert * len(tokens)), masks, rng)
        if self.rotate and len(tokens) and rng.random() < self.rotate:
            tokens = np.roll(tokens, -rng.integers(len(tokens)))
        return tokens


def _framed(text: Integer[np.ndarray, " _"], length: int, special: Special, pad: int) -> Int[np.ndarray, " {length}"]:
    """Returns a row [length]: bos, `text`, eos and padding."""
    row = np.full(length, pad, np.int32)
    row[0], row[len(text) + 1] = special.required("bos"), special.required("eos")
    row[1 : len(text) + 1] = text
    return row


def _numbered(sizes: Int[np.ndarray, " _"], num_tokens: int, length: int) -> Int[np.ndarray, " {length}"]:
    """Returns the number of each token's document, from 1, in a framed row [length] of documents of these sizes."""
    ids = np.repeat(np.arange(1, len(sizes) + 1), sizes)[:num_tokens]
    return rows.padded(np.concatenate([[1], ids, [len(sizes)]]), num_tokens + 2, length)


def _is_start(starts: Integer[np.ndarray, " _"] | None, num_tokens: int) -> Bool[np.ndarray, " {num_tokens}"] | None:
    """Returns a bool array [num_tokens] that is True at `starts` before padding; returns None if `starts` is None."""
    if starts is None:
        return None
    is_start = np.zeros(num_tokens, np.bool_)
    is_start[starts[: np.searchsorted(starts, num_tokens)]] = True
    return is_start


def _permuted(
    is_start: Bool[np.ndarray, " length"], share: float, rng: np.random.Generator
) -> Int[np.ndarray, " length"]:
    """Returns the order of the tokens [n] after a share of the sentences has been permuted."""
    num_tokens = len(is_start)
    # Tokens before the first start are the rest of a sentence.
    begins = np.concatenate([[0], 1 + np.flatnonzero(is_start[1:])]) if num_tokens else np.zeros(0, np.int64)
    lengths = np.diff(begins, append=num_tokens)
    order = np.arange(len(begins))
    chosen = rows.subset(len(begins), math.ceil(share * len(begins)), rng)
    order[chosen] = rng.permutation(chosen)
    lengths, begins = lengths[order], begins[order]
    moved = begins - (np.cumsum(lengths) - lengths)
    return np.arange(num_tokens) + np.repeat(moved, lengths)


def _span_lengths(budget: int, mean: float, rng: np.random.Generator) -> Int[np.ndarray, " spans"]:
    """Draws Poisson lengths until their sum reaches `budget`; the last length is cut, so that the sum is exact."""
    ends = np.zeros(0, np.int64)
    while not len(ends) or ends[-1] < budget:
        drawn = rng.poisson(mean, int(budget / mean) + 8)
        ends = np.concatenate([ends, (ends[-1] if len(ends) else 0) + drawn.cumsum()])
    ends = ends[: np.searchsorted(ends, budget) + 1]
    ends[-1] = budget
    return np.diff(ends, prepend=0)


def _infilled(
    tokens: Int[np.ndarray, " length"],
    is_start: Bool[np.ndarray, " length"] | None,
    rate: float,
    mean: float,
    masks: Masks,
    rng: np.random.Generator,
) -> Int[np.ndarray, " noised"]:
    """Replaces random spans of words (of tokens if `is_start` is None) by one mask each.

    For each empty span, inserts a mask at a random position.
    """
    num_tokens = len(tokens)
    starts = np.arange(num_tokens) if is_start is None else np.flatnonzero(is_start)
    budget = math.ceil(rate * len(starts))
    if not budget:
        return tokens
    lengths = _span_lengths(budget, mean, rng)
    num_empty = int(np.count_nonzero(lengths == 0))
    lengths = lengths[lengths > 0]
    first_words = rng.choice(len(starts), len(lengths), replace=False)
    tokens = tokens.copy()
    tokens[starts[first_words]] = masks(len(first_words))
    return _inserted(tokens[~_continues_span(num_tokens, starts, first_words, lengths)], num_empty, masks, rng)


def _continues_span(
    num_tokens: int,
    starts: Int[np.ndarray, " words"],
    first_words: Int[np.ndarray, " spans"],
    lengths: Int[np.ndarray, " spans"],
) -> Bool[np.ndarray, " {num_tokens}"]:
    """Returns whether each token is in a span without being the first token of the span, bool [num_tokens].

    Args:
      starts: indices of the first tokens of words.
      first_words, lengths: index of the first word and number of words of each span.
    """
    begins, ends = starts[first_words], np.append(starts, num_tokens)[np.minimum(first_words + lengths, len(starts))]
    changes = np.bincount(begins + 1, minlength=num_tokens + 1) - np.bincount(ends, minlength=num_tokens + 1)
    return changes[:-1].cumsum() > 0


def _inserted(
    tokens: Int[np.ndarray, " length"], count: int, masks: Masks, rng: np.random.Generator
) -> Int[np.ndarray, " noised"]:
    """Inserts `count` masks at random positions among the tokens; all results are equally likely."""
    if not count:
        return tokens
    row = np.empty(len(tokens) + count, np.int32)
    is_new = np.zeros(len(row), np.bool_)
    is_new[rows.subset(len(row), count, rng)] = True
    row[is_new], row[~is_new] = masks(count), tokens
    return row
