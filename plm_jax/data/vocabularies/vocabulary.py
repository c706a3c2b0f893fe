"""What every vocabulary is: text to ids and back, where sentences and words begin among them, an identity."""

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
    """The tokens of several texts, one text after another.

    Attributes:
      ids: [n].
      places: [n], where in its text each token begins, not falling.
      sizes: [texts], how many tokens each text has.
      units: of each text, in what `places` count it: how long a stretch of it is.
    """

    ids: np.ndarray
    places: np.ndarray
    sizes: np.ndarray
    units: Sequence[Callable[[str], int]]


class TokenSpans(NamedTuple):
    """The tokens of a text, and of each what of it from `begins` on and up to `ends` it is; all [n]."""

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


def num_bytes(text: str) -> int:
    """How many bytes of UTF-8 a text has."""
    return len(text.encode("utf-8"))


# Units of a character at most: U+FDFA is 33 bytes of NFKD.
MOST_UNITS = 33


class Vocabulary(abc.ABC):
    """What `seqio.Vocabulary` asks in plain Python; sentence starts, an identity, and which tokens begin words.

    Attributes:
      byte_offsets: whether `spans` and `encode_offsets` count UTF-8 bytes; otherwise characters.
      specials: the config's section, its special ids and number of sentinels.
      table: what decides the ids, as JSON: tokens (with scores or merges) and normaliser.
      word_initial: bool [vocab_size]; no sentinel begins a word.
    """

    byte_offsets: ClassVar[bool]
    table: Any

    def __init__(self, specials: VocabularyConfig, word_initial: np.ndarray):
        """`word_initial` is bool [size], without the ids that are added above."""
        self.specials = specials
        # Number of bytes of text of each token that has the same number wherever it is.
        self._own_bytes: Mapping[int, int] = {}
        word_initial = np.pad(word_initial, (0, specials.added))
        self._size = size = len(word_initial)
        self.word_initial = np.pad(word_initial, (0, specials.sentinels))
        for name in SPECIALS:
            value = getattr(specials, name)
            if value is not None and not 0 <= value < size:
                raise UserError(f"config.vocabulary.{name} is {value}: give an id below the vocabulary's size, {size}")

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
        """With sentinels."""
        return self._size + self.extra_ids

    def encode(self, s: str) -> Sequence[int]:
        """The ids of a text, no more."""
        return self._encode(s)

    def decode(self, ids: Iterable[int]) -> str:
        """Text up to the first eos; the k-th sentinel, k from 0, stands apart as `<extra_id_k>`."""
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
        """Ids of each text, and where in the text each token begins and ends."""

    def encode_offsets(self, texts: list[str]) -> list[tuple[Integers, Integers]]:
        """Ids of each text, and where in the text each token begins."""
        return [(ids, begins) for ids, begins, _ in self.spans(texts)]

    def encode_spans(self, texts: list[str]) -> list[TokenSpans]:
        """The tokens of each text, by its characters, white space around a token left out.

        Of the tokens of one character each is all of it; one that is white space, or nothing, has no length.
        """
        found = []
        for text, (ids, begins, ends) in zip(texts, self.spans(texts), strict=True):
            begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
            if self.byte_offsets:
                letters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
                sizes = 1 + sum((letters >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
                places = np.append(0, np.cumsum(sizes))
                begins, ends = places.searchsorted(begins, side="right") - 1, places.searchsorted(ends)
            spaces = np.fromiter(map(str.isspace, text), np.bool_, len(text))
            first, last = np.arange(len(text) + 1), np.arange(len(text) + 1)
            first[:-1][spaces] = len(text)
            last[1:][spaces] = 0
            first, last = np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)
            begins = np.minimum(first[begins], ends)
            found.append(TokenSpans(np.asarray(ids, np.int64), begins, np.maximum(last[ends], begins)))
        return found

    def encode_sentences(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids [n] of each whole text, and the first token of each of its sentences."""
        ids, ends, (starts,), _ = self.encode_parts(texts, [sentences.boundaries])
        return [(ids[a:b], starts[(starts >= a) & (starts < b)] - a) for a, b in itertools.pairwise(ends.tolist())]

    def encode_flat(self, texts: list[str]) -> Encoded:
        """The tokens of whole texts."""
        encoded = self.encode_offsets(texts)
        ids, places = (
            np.concatenate([np.zeros(0, np.int64), *(np.asarray(pair[part], np.int64) for pair in encoded)])
            for part in (0, 1)
        )
        unit = num_bytes if self.byte_offsets else len
        return Encoded(ids, places, np.array([len(found) for found, _ in encoded]), [unit] * len(texts))

    def encode_parts(
        self, texts: list[str], rules: Sequence[Callable[[str], list[int]]]
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], list[int]]:
        """Ids of whole texts; of each rule the first tokens of the parts into which it cuts them; how many UTF-8 bytes
        are the first token's: those before the second one, of several in one character its own.

        Args:
          rules: text → the characters at which a part other than the first begins, rising; none after white space.

        Returns:
          Ids [n] of one text after another; where each text begins among them and the last ends [texts + 1]; of each
          rule where a part does, rising, the first part of each text that has tokens among them; bytes of each text.
        """
        ids, places, sizes, units = self.encode_flat(texts)
        ends = np.append(0, np.cumsum(sizes))
        first_bytes = [
            self._first_bytes(text, ids[begin : begin + min(2, size)], places[begin : begin + min(2, size)], unit)
            for text, begin, size, unit in zip(texts, ends.tolist(), sizes.tolist(), units, strict=False)
        ]
        # Texts are laid out one after another, each with more room than units.
        room = np.array([MOST_UNITS * len(text) + 1 for text in texts], np.int64)
        offsets = np.cumsum(room) - room
        places = places + np.repeat(offsets, sizes)
        starts = []
        for rule in rules:
            cuts = [_measure(text, rule(text), unit) for text, unit in zip(texts, units, strict=True)]
            counts = np.array(list(map(len, cuts)))
            flat = np.fromiter(itertools.chain.from_iterable(cuts), np.int64, counts.sum())
            found = np.searchsorted(places, flat + np.repeat(offsets, counts))
            found = found[found < np.repeat(ends[1:], counts)]
            starts.append(np.unique(np.concatenate([ends[:-1][sizes > 0], found])))
        return ids, ends, starts, first_bytes

    def _first_bytes(self, text: str, ids: np.ndarray, places: np.ndarray, unit: Callable[[str], int]) -> int:
        """What `encode_parts` says of one text, from its first two tokens."""
        if not len(ids):
            return 0
        if (own := self._own_bytes.get(int(ids[0]))) is not None:
            return own
        if len(ids) == 1:
            return num_bytes(text)
        second = int(places[1])
        if unit is num_bytes:
            return second
        return num_bytes(text[: self._character(text, second, unit)])

    def _character(self, text: str, place: int, unit: Callable[[str], int]) -> int:
        """The character at a place of a text, in units that are no bytes."""
        return place if unit is len else next(i for i in range(len(text)) if unit(text[:i]) >= place)

    def __eq__(self, other):
        return isinstance(other, Vocabulary) and identity(self) == identity(other)

    def __hash__(self):
        return hash(identity(self))


def _measure(text: str, cuts: list[int], unit: Callable[[str], int]) -> list[int]:
    """Characters of a text, rising, in its units."""
    if unit is len or not cuts or (unit is num_bytes and text.isascii()):
        return cuts
    parts = zip([0, *cuts], cuts, strict=False)
    return list(itertools.accumulate(unit(text[a:b]) for a, b in parts))


def identity(vocabulary: Vocabulary) -> str:
    """SHA-256 of what decides ids: token table, special ids, normaliser; the same on every machine."""
    specials = {name: getattr(vocabulary.specials, name) for name in SPECIALS}
    # What came later counts only where it is given, so that older vocabularies keep their identity.
    specials = {name: i for name, i in specials.items() if i is not None or name not in symbols.SYMBOLS}
    specials |= {"sentinels": vocabulary.extra_ids} if vocabulary.extra_ids else {}
    specials |= {"added": vocabulary.specials.added} if vocabulary.specials.added else {}
    what = {"kind": type(vocabulary).__name__, "table": vocabulary.table, "specials": specials}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()
