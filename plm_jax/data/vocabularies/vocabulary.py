"""The base class of vocabularies, and the identity of a vocabulary."""

import abc
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import sentences, symbols
from plm_jax.data.vocabulary_config import VocabularyConfig

Integers = Sequence[int] | np.ndarray


class Encoded(NamedTuple):
    """Tokens of several texts, one text after another.

    Attributes:
      ids: [n], ids of the tokens.
      offsets: [n], start of each token in its text; sorted within a text. The unit may differ between texts.
      sizes: [texts], number of tokens of each text.
      units: for each text, the function that measures a part of the text in the unit of the text's offsets, such as
        `len` for characters and `num_bytes` for bytes.
    """

    ids: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    units: Sequence[Callable[[str], int]]


class TokenSpans(NamedTuple):
    """Tokens of a text, and the span [begin, end) of each token in the text, in characters. All arrays are [n]."""

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


def num_bytes(text: str) -> int:
    """Returns the number of UTF-8 bytes of a text."""
    return len(text.encode("utf-8"))


# Largest number of units of a character: U+FDFA has 33 bytes in NFKD.
MAX_UNITS = 33


class Vocabulary(abc.ABC):
    """A vocabulary with the interface of `seqio.Vocabulary`, but without TensorFlow.

    Attributes:
      byte_offsets: whether `spans` and `encode_offsets` count UTF-8 bytes instead of characters.
      specials: section `vocabulary` of the config, with special ids and the numbers of added ids and sentinels.
      table: JSON value that determines how text is encoded, such as the tokens, their scores and the normalizer.
      word_initial: bool [vocab_size], whether a token begins a word; False for added ids and sentinels.
    """

    byte_offsets: ClassVar[bool]
    table: Any

    def __init__(self, specials: VocabularyConfig, word_initial: np.ndarray):
        """Initializes the vocabulary.

        Args:
          word_initial: bool, whether each token begins a word, without the added ids and sentinels.

        Raises:
          UserError: a special id is not an id of the vocabulary, or is the id of a sentinel.
        """
        self.specials = specials
        # Number of text bytes of each token for which it is the same in every text.
        self._byte_counts: Mapping[int, int] = {}
        word_initial = np.pad(word_initial, (0, specials.added))
        self._size = size = len(word_initial)
        self.word_initial = np.pad(word_initial, (0, specials.sentinels))
        for name in SPECIALS:
            value = getattr(specials, name)
            if value is not None and not 0 <= value < size:
                raise UserError(f"config.vocabulary.{name} is {value}: use an id below the vocabulary's size, {size}")

    @property
    def pad_id(self):  # noqa: D102
        return self.specials.pad

    @property
    def bos_id(self):  # noqa: D102
        return self.specials.bos

    @property
    def eos_id(self):  # noqa: D102
        return self.specials.eos

    @property
    def unk_id(self):  # noqa: D102
        return self.specials.unk

    @property
    def extra_ids(self):  # noqa: D102
        return self.specials.sentinels

    @property
    def _base_vocab_size(self) -> int:
        return self._size

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added ids and sentinels."""
        return self._size + self.extra_ids

    def encode(self, s: str) -> Sequence[int]:
        """Returns the ids of a text; adds no special tokens."""
        return self._encode(s)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids, up to and including the first eos.

        The sentinel with id `vocab_size` - 1 - k becomes `<extra_id_k>`, separated by spaces from its neighbors. Ids of
        `vocab_size` or more are decoded as unk; without an unk id, they are ignored.
        """
        ids = [int(i) for i in ids]
        if self.eos_id in ids:
            ids = ids[: ids.index(self.eos_id) + 1]
        parts = []
        for is_sentinel, group in itertools.groupby(ids, lambda i: self._size <= i < self.vocab_size):
            run = list(group)
            known = run if self.unk_id is None else [i if i < self._size else self.unk_id for i in run]
            parts += [f"<extra_id_{self.vocab_size - 1 - i}>" for i in run] if is_sentinel else [self._decode(known)]
        return " ".join(parts)

    @abc.abstractmethod
    def _encode(self, s: str) -> Sequence[int]: ...

    @abc.abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    @abc.abstractmethod
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        """Returns, for each text, its ids, and the start and the end of each token in the text.

        Starts and ends are in UTF-8 bytes if `byte_offsets`, and otherwise in characters.
        """

    def encode_offsets(self, texts: list[str]) -> list[tuple[Integers, Integers]]:
        """Returns, for each text, its ids, and the start of each token in the text, in the unit of `spans`."""
        return [(ids, begins) for ids, begins, _ in self.spans(texts)]

    def encode_spans(self, texts: list[str]) -> list[TokenSpans]:
        """Returns the tokens of each text with their spans in characters.

        A span has no white space at its beginning and end. If several tokens encode one character, each of them spans
        the whole character. A token of white space or of no text has an empty span.
        """
        encoded = []
        for text, (ids, begins, ends) in zip(texts, self.spans(texts), strict=True):
            begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
            if self.byte_offsets:
                letters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
                sizes = 1 + sum((letters >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
                byte_offsets = np.append(0, np.cumsum(sizes))
                begins, ends = byte_offsets.searchsorted(begins, side="right") - 1, byte_offsets.searchsorted(ends)
            spaces = np.fromiter(map(str.isspace, text), np.bool_, len(text))
            first, last = np.arange(len(text) + 1), np.arange(len(text) + 1)
            first[:-1][spaces] = len(text)
            last[1:][spaces] = 0
            first, last = np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)
            begins = np.minimum(first[begins], ends)
            encoded.append(TokenSpans(np.asarray(ids, np.int64), begins, np.maximum(last[ends], begins)))
        return encoded

    def encode_sentences(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns, for each text, its ids [n], and the sorted indices of the first tokens of its sentences."""
        ids, ends, (starts,), _ = self.encode_parts(texts, [sentences.boundaries])
        return [(ids[a:b], starts[(starts >= a) & (starts < b)] - a) for a, b in itertools.pairwise(ends.tolist())]

    def encode_flat(self, texts: list[str]) -> Encoded:
        """Encodes texts."""
        encoded = self.encode_offsets(texts)
        ids, offsets = (
            np.concatenate([np.zeros(0, np.int64), *(np.asarray(pair[part], np.int64) for pair in encoded)])
            for part in (0, 1)
        )
        unit = num_bytes if self.byte_offsets else len
        return Encoded(ids, offsets, np.array([len(text_ids) for text_ids, _ in encoded]), [unit] * len(texts))

    def encode_parts(
        self, texts: list[str], rules: Sequence[Callable[[str], list[int]]]
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], list[int]]:
        """Encodes texts and finds the first tokens of their parts, such as sentences or words.

        Args:
          rules: functions that split a text into parts. Each returns the sorted offsets, in characters, at which all
            parts except the first begin. White space between two parts belongs to the later part.

        Returns:
          Four values. First, the ids [n], one text after another. Second, the index of the first token of each text,
          followed by the number of all tokens, [texts + 1]. Third, for each rule, the sorted indices of the first
          tokens of parts, including the first part of each text. Parts without a first token of their own are left out.
          Fourth, for each text, the number of UTF-8 bytes before its second token: 0 if it has no token, all bytes if
          it has one. If its first two tokens are bytes of one character, the number is that of the first token.
        """
        ids, token_offsets, sizes, units = self.encode_flat(texts)
        ends = np.append(0, np.cumsum(sizes))
        first_bytes = [
            self._first_bytes(
                text, ids[begin : begin + min(2, size)], token_offsets[begin : begin + min(2, size)], unit
            )
            for text, begin, size, unit in zip(texts, ends.tolist(), sizes.tolist(), units, strict=False)
        ]
        # A single search for all texts: the offsets of each text are shifted into a range of its own, which is large
        # enough for its units.
        room = np.array([MAX_UNITS * len(text) + 1 for text in texts], np.int64)
        bases = np.cumsum(room) - room
        token_offsets = token_offsets + np.repeat(bases, sizes)
        starts = []
        for rule in rules:
            cuts = [_measure(text, rule(text), unit) for text, unit in zip(texts, units, strict=True)]
            counts = np.array(list(map(len, cuts)))
            flat = np.fromiter(itertools.chain.from_iterable(cuts), np.int64, counts.sum())
            tokens = np.searchsorted(token_offsets, flat + np.repeat(bases, counts))
            tokens = tokens[tokens < np.repeat(ends[1:], counts)]
            starts.append(np.unique(np.concatenate([ends[:-1][sizes > 0], tokens])))
        return ids, ends, starts, first_bytes

    def _first_bytes(self, text: str, ids: np.ndarray, offsets: np.ndarray, unit: Callable[[str], int]) -> int:
        """Returns the fourth result of `encode_parts` for a text, from the ids and offsets of its first two tokens."""
        if not len(ids):
            return 0
        if (count := self._byte_counts.get(int(ids[0]))) is not None:
            return count
        if len(ids) == 1:
            return num_bytes(text)
        second = int(offsets[1])
        if unit is num_bytes:
            return second
        return num_bytes(text[: self._character(text, second, unit)])

    def _character(self, text: str, offset: int, unit: Callable[[str], int]) -> int:
        """Returns the index of the character at an offset; `unit(text)` is the length of a text in the same unit."""
        return offset if unit is len else next(i for i in range(len(text)) if unit(text[:i]) >= offset)

    def __eq__(self, other):
        return isinstance(other, Vocabulary) and identity(self) == identity(other)

    def __hash__(self):
        return hash(identity(self))


def _measure(text: str, cuts: list[int], unit: Callable[[str], int]) -> list[int]:
    """Converts sorted offsets in characters to another unit; `unit(text)` is the length of a text in this unit."""
    if unit is len or not cuts or (unit is num_bytes and text.isascii()):
        return cuts
    parts = zip([0, *cuts], cuts, strict=False)
    return list(itertools.accumulate(unit(text[a:b]) for a, b in parts))


def identity(vocabulary: Vocabulary) -> str:
    """Returns a SHA-256 in hex that identifies a vocabulary.

    It is computed from everything that determines ids: the name of the class, `table`, the special ids, and the numbers
    of added ids and sentinels.
    """
    specials = {name: getattr(vocabulary.specials, name) for name in SPECIALS}
    # Settings added later enter only if they are set, so that older vocabularies keep their identity.
    specials = {name: i for name, i in specials.items() if i is not None or name not in symbols.SYMBOLS}
    specials |= {"sentinels": vocabulary.extra_ids} if vocabulary.extra_ids else {}
    specials |= {"added": vocabulary.specials.added} if vocabulary.specials.added else {}
    described = {"kind": type(vocabulary).__name__, "table": vocabulary.table, "specials": specials}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8")).hexdigest()
