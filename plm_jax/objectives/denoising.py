"""Denoising."""

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

# Function from a number to as many masks, of which some may be random ids.
Masks = Callable[[int], Int[np.ndarray, " _"]]


@dataclass(frozen=True)
class TokenMasking:
    """A share `rate` of the tokens is replaced by the mask, each by one."""

    kind: ClassVar[str] = "masking"
    rate: ranges.Share = 0.3


@dataclass(frozen=True)
class TokenDeletion:
    """A share `rate` of the tokens is left out without a trace."""

    kind: ClassVar[str] = "deletion"
    rate: ranges.Share = 0.3


@dataclass(frozen=True)
class TextInfilling:
    """Spans of words are replaced by one mask each, a span of no words by a mask more.

    Attributes:
      rate: share of the words that are in spans.
      mean_span_length: of the Poisson distribution of the spans' lengths, in words.
    """

    kind: ClassVar[str] = "infilling"
    rate: ranges.Share = 0.3
    mean_span_length: Annotated[float, ranges.Range(0.1, 2**24)] = 3.0


@dataclass(frozen=True)
class NoNoise:
    """Every token stays; sentences may still be permuted, tokens inserted, the text rotated."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Denoising(Objective):
    """The encoder reads a text with noise, the decoder says the text (BART, Lewis et al. 2020, arXiv:1910.13461).

    The noises come in the order of facebookresearch/fairseq, denoising_dataset.py: sentences are permuted, `noise` acts
    on tokens, tokens are inserted, the text is rotated. The defaults are the recipe of BART, which are not fairseq's.

    Counts of tokens, words and sentences are shares rounded up, drawn without replacement. As in fairseq, spans may
    meet: what they share is cut out once, and the mask of one that begins within another goes. Unlike there, sentences
    begin where the cache says, whatever the vocabulary (fairseq ends them at GPT-2's full stop, else at eos); a random
    id may be any (fairseq spares 0) and is drawn for each inserted mask, too (fairseq makes a fixed share of them
    random); and a rotation begins at each token as often (fairseq leaves the text as it is twice as often).

    Attributes:
      permute_sentences: share of the sentences that change places among themselves.
      noise: what happens to tokens or words.
      insert: so many tokens are added, as a share of those there, at places drawn uniformly.
      rotate: probability that the text begins at a token drawn uniformly, and ends with what was before it.
      random_share: probability of each mask, inserted or not, to be any id of the vocabulary instead.
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
        """What examples must have besides tokens."""
        words = () if isinstance(self.noise, NoNoise) else ("word_starts",)
        return (*words, "sentence_starts") if self.permute_sentences else words

    @override
    def input_length(self, length: int) -> int:
        """The most tokens that fit an encoder row of `length` with bos, eos and what is inserted; one may be left free.

        Raises:
          UserError: no number does.
        """
        num_tokens = int((length - 2) / (1 + self.insert)) + 1
        while num_tokens + math.ceil(self.insert * num_tokens) > length - 2:
            num_tokens -= 1
        if num_tokens < 1:
            raise UserError(f"denoising makes no row of length {length}: raise config.data.length")
        return num_tokens

    @override
    def target_length(self, length: int) -> int:
        """Length of the decoder's row beside an encoder row of `length`: the whole text, bos and eos."""
        return self.input_length(length) + 2

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Adds the noise.

        Args:
          example: `tokens` [input_length(L)]; `mask` of that shape, 0 at padding behind the text, may be left out where
            there is none. `sentence_starts` and `word_starts`, the rising indices of the tokens that begin sentences
            and words; left out, the text is one sentence, and each token is a word. `segment_ids` of that shape, the
            number of each token's document from 1, only if documents do not see each other: each gets its own noise.

        Returns:
          `tokens` and `mask` [L] int32: bos, the text with noise, eos; what does not fit, as after many spans of no
          words in a short text, is cut off before eos. `targets` [T] int32 and `target_weights` [T] float32, T =
          `target_length(L)`: bos, the text, eos. `decoder_tokens` [T] int32: the targets shifted right behind eos. If
          `segment_ids` were given, bos is of the first document and eos of the last; `segment_ids` [L] and
          `decoder_segment_ids` [T] int32, 0 at padding; the decoder starts each document from eos, at place 0 of
          `decoder_positions` [T] int32.

        Raises:
          UserError: the vocabulary has no bos, eos or mask.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        self._check(special)
        length, target_length = len(tokens) + math.ceil(self.insert * len(tokens)) + 2, len(tokens) + 2
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
        made = {
            "tokens": _framed(noised, length, special, pad),
            "mask": rows.padded(1, len(noised) + 2, length),
            "decoder_tokens": decoder_tokens,
            "targets": targets,
            "target_weights": rows.padded(1, len(tokens) + 2, target_length, dtype=np.float32),
        }
        if "segment_ids" in example:
            made["segment_ids"] = _numbered(np.array([len(part) for part in parts]), len(noised), length)
            ids = _numbered(np.diff(begins, append=len(tokens)), len(tokens), target_length)
            made["decoder_segment_ids"], made["decoder_positions"] = ids, rows.places(ids)
            # Of a document of which nothing is left there is nothing to say it from.
            made["target_weights"] *= np.isin(ids, made["segment_ids"])
            decoder_tokens[np.diff(ids, prepend=0) > 0] = special.required("eos")
        return made

    def _noised_apart(
        self,
        tokens: Int[np.ndarray, " length"],
        begins: Int[np.ndarray, " documents"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> list[Int[np.ndarray, " _"]]:
        """Of each document of a text [n], which begin at `begins`, what noise makes of it."""
        if len(begins) == 1:
            return [self._noised(tokens, example, special, rng)]
        ends, found = np.append(begins[1:], len(tokens)), []
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            own = {}
            for name in example.keys() & {"sentence_starts", "word_starts"}:
                starts = example[name]
                own[name] = starts[slice(*starts.searchsorted((begin, end)))] - begin
            found.append(self._noised(tokens[begin:end], own, special, rng))
        return found

    def _check(self, special: Special) -> None:
        writes_masks = self.insert > 0 or isinstance(self.noise, TextInfilling | TokenMasking)
        for name in ("bos", "eos", *(["mask"] if writes_masks else [])):
            if getattr(special, name) is None:
                raise UserError(f"denoising needs a special id {name}: set config.vocabulary.{name}")

    def _noised(
        self,
        tokens: Int[np.ndarray, " length"],
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Int[np.ndarray, " noised"]:
        """All noises on a text [n], one after another."""
        sentences, words = (_is_start(example.get(f"{name}_starts"), len(tokens)) for name in ("sentence", "word"))
        if self.permute_sentences and sentences is not None:
            order = _permuted(sentences, self.permute_sentences, rng)
            tokens, words = tokens[order], None if words is None else words[order]

        def masks(count: int) -> Int[np.ndarray, " {count}"]:
            made = np.full(count, special.required("mask"), np.int32)
            if self.random_share:
                random = rng.random(count) < self.random_share
                made[random] = rng.integers(special.vocab_size, size=np.count_nonzero(random))
            return made

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
    """A row [length]: bos, `text`, eos, and `pad`."""
    row = np.full(length, pad, np.int32)
    row[0], row[len(text) + 1] = special.required("bos"), special.required("eos")
    row[1 : len(text) + 1] = text
    return row


def _numbered(sizes: Int[np.ndarray, " _"], num_tokens: int, length: int) -> Int[np.ndarray, " {length}"]:
    """The number from 1 of each token's document in a framed row [length] int32, of documents of these sizes."""
    ids = np.repeat(np.arange(1, len(sizes) + 1), sizes)[:num_tokens]
    return rows.padded(np.concatenate([[1], ids, [len(sizes)]]), num_tokens + 2, length)


def _is_start(starts: Integer[np.ndarray, " _"] | None, num_tokens: int) -> Bool[np.ndarray, " {num_tokens}"] | None:
    """Bool [num_tokens], true at the indices `starts`, of which those beyond are of padding; None without any."""
    if starts is None:
        return None
    found = np.zeros(num_tokens, np.bool_)
    found[starts[: np.searchsorted(starts, num_tokens)]] = True
    return found


def _permuted(
    is_start: Bool[np.ndarray, " length"], share: float, rng: np.random.Generator
) -> Int[np.ndarray, " length"]:
    """Which token stands at each place [n] once a share of the sentences has changed places among themselves."""
    num_tokens = len(is_start)
    # What stands before the first start is the rest of a sentence.
    begins = np.concatenate([[0], 1 + np.flatnonzero(is_start[1:])]) if num_tokens else np.zeros(0, np.int64)
    lengths = np.diff(begins, append=num_tokens)
    order = np.arange(len(begins))
    chosen = rows.subset(len(begins), math.ceil(share * len(begins)), rng)
    order[chosen] = rng.permutation(chosen)
    lengths, begins = lengths[order], begins[order]
    moved = begins - (np.cumsum(lengths) - lengths)
    return np.arange(num_tokens) + np.repeat(moved, lengths)


def _span_lengths(budget: int, mean: float, rng: np.random.Generator) -> Int[np.ndarray, " spans"]:
    """Poisson draws until they add up to `budget`, the last cut to do so exactly."""
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
    """The text with spans of words, or of tokens where no words are told, replaced by a mask each."""
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
    return _inserted(tokens[~_goes_on(num_tokens, starts, first_words, lengths)], num_empty, masks, rng)


def _goes_on(
    num_tokens: int,
    starts: Int[np.ndarray, " words"],
    first_words: Int[np.ndarray, " spans"],
    lengths: Int[np.ndarray, " spans"],
) -> Bool[np.ndarray, " {num_tokens}"]:
    """Bool [num_tokens]: whether a token is in a span, but not the span's first; spans are stretches of words."""
    begins, ends = starts[first_words], np.append(starts, num_tokens)[np.minimum(first_words + lengths, len(starts))]
    changes = np.bincount(begins + 1, minlength=num_tokens + 1) - np.bincount(ends, minlength=num_tokens + 1)
    return changes[:-1].cumsum() > 0


def _inserted(
    tokens: Int[np.ndarray, " length"], count: int, masks: Masks, rng: np.random.Generator
) -> Int[np.ndarray, " noised"]:
    """`count` masks among the tokens, every way to merge the two equally likely."""
    if not count:
        return tokens
    row = np.empty(len(tokens) + count, np.int32)
    is_new = np.zeros(len(row), np.bool_)
    is_new[rows.subset(len(row), count, rng)] = True
    row[is_new], row[~is_new] = masks(count), tokens
    return row
