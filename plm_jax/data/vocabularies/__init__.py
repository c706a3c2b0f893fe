"""Text to ids and back, as `seqio.Vocabulary`: SentencePiece, WordPiece, byte-level BPE, words, bytes, tokenizer.json.

Special ids come from the config's `vocabulary` section. Text never becomes a special token: `<|endoftext|>` in a
document is spelt out in pieces. `load` imports seqio and so TensorFlow, `load_plain` does not.
"""

import abc
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from plm_jax import config
from plm_jax.common import storage, wordpiece
from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.config import SPECIALS
from plm_jax.data.vocabularies import folding, sentences, stretches, tokenizer_files, words

# How a SentencePiece model writes the special ids for which it has no field (Lan et al. 2020, arXiv:1909.11942), and
# how a WordPiece file does.
SYMBOLS = {
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "sop": "<|startofpiece|>",
    "eop": "<|endofpiece|>",
    "smask": "[sMASK]",
    "gmask": "[gMASK]",
    "dblock": "[dBLOCK]",
}
WORDPIECE_SYMBOLS = {"pad": "[PAD]", "unk": "[UNK]", **SYMBOLS}
WORD_SYMBOLS = {"bos": words.BOS, "eos": words.EOS, "unk": words.UNK}


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


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8"))


# Units of a character at most: U+FDFA is 33 bytes of NFKD.
_MOST_UNITS = 33


class Vocabulary(abc.ABC):
    """What `seqio.Vocabulary` asks in plain Python; sentence starts, an identity, and which tokens begin words.

    Attributes:
      byte_offsets: whether `encode_offsets` counts UTF-8 bytes; otherwise characters.
      specials: the config's section, its special ids and number of sentinels.
      table: what decides the ids, as JSON: tokens (with scores or merges) and normaliser.
      word_initial: bool [vocab_size]; no sentinel begins a word.
    """

    byte_offsets: ClassVar[bool]
    table: object

    def __init__(self, specials: config.Vocabulary, word_initial: np.ndarray):
        """`word_initial` is bool [size], without the ids that are added above."""
        self.specials = specials
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
    def encode_offsets(self, texts: list[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Ids of each text, and where in the text each token begins."""

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
        unit = _num_bytes if self.byte_offsets else len
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
        room = np.array([_MOST_UNITS * len(text) + 1 for text in texts], np.int64)
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
        if (own := self._own_bytes(int(ids[0]))) is not None:
            return own
        if len(ids) == 1:
            return _num_bytes(text)
        second = int(places[1])
        if unit is _num_bytes:
            return second
        return _num_bytes(text[: self._character(text, second, unit)])

    def _character(self, text: str, place: int, unit: Callable[[str], int]) -> int:
        """The character at a place of a text, in units that are no bytes."""
        return place if unit is len else next(i for i in range(len(text)) if unit(text[:i]) >= place)

    def _own_bytes(self, token: int) -> int | None:
        """How many bytes of text a token is wherever it is; None: that is not to be seen from the token."""
        del token
        return None

    def __eq__(self, other):
        return isinstance(other, Vocabulary) and identity(self) == identity(other)

    def __hash__(self):
        return hash(identity(self))


def _measure(text: str, cuts: list[int], unit: Callable[[str], int]) -> Iterable[int]:
    """Characters of a text, rising, in its units."""
    if unit is len or not cuts or (unit is _num_bytes and text.isascii()):
        return cuts
    parts = zip([0, *cuts], cuts, strict=False)
    return list(itertools.accumulate(unit(text[a:b]) for a, b in parts))


class SentencePiece(Vocabulary):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226); `lowercase`: of folded text."""

    byte_offsets = True

    def __init__(self, path: str, specials: config.Vocabulary):
        model = sentencepiece_model_pb2.ModelProto()
        try:
            data = _read(path)
            model.ParseFromString(data)
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        except Exception as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} is no SentencePiece model: give a whole one") from error
        tokens = [piece.piece for piece in model.pieces]
        num_text = len(tokens) - _own_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.sentencepiece_begins_words(tokens[:num_text])))
        pieces = {piece.piece: i for i, piece in enumerate(model.pieces)}
        for name in SPECIALS:
            own = pieces.get(SYMBOLS[name], -1) if name in SYMBOLS else getattr(self.processor, f"{name}_id")()
            given = getattr(specials, name)
            if given is not None and own >= 0 and own != given:
                raise UserError(f"config.vocabulary.{name} is {given} but {path} has {own}: set it to {own}")
        self._ink = [_ink_of(piece) for piece in model.pieces]
        self._ink_sizes = np.array(list(map(len, self._ink)))
        self.table = {
            "pieces": [(piece.piece, float(piece.score).hex(), piece.type) for piece in model.pieces],
            "normalizer": model.normalizer_spec.SerializeToString(deterministic=True).hex(),
            "kind": [model.trainer_spec.model_type, model.trainer_spec.byte_fallback],
        }
        if specials.lowercase:  # Only then, so that older vocabularies keep their identity.
            self.table["lowercase"] = True

    def _folded(self, text: str) -> str:
        return folding.fold(text) if self.specials.lowercase else text

    def _encode(self, s: str) -> Sequence[int]:
        return self.processor.encode(self._folded(s))

    def _decode(self, ids: Sequence[int]) -> str:
        return self.processor.decode([int(i) for i in ids if 0 <= i < self.processor.get_piece_size()])

    def _own_bytes(self, token: int) -> int | None:
        return 1 if self.processor.is_byte(token) else None

    def encode_offsets(self, texts: list[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Ids and byte offsets."""
        folded = list(map(self._folded, texts))
        begins = map(self._begins, folded)
        if self.specials.lowercase:
            begins = map(folding.own_bytes, texts, begins)
        return list(zip(self.processor.encode(folded), begins, strict=True))

    def _character(self, text: str, place: int, unit: Callable[[str], int]) -> int:
        is_folded = unit in _FOLDED.values()
        return folding.character(text, place, unit) if is_folded else super()._character(text, place, unit)

    def _begins(self, text: str) -> list[int]:
        data = self.processor.encode(text, out_type="serialized_proto")
        return [piece.begin for piece in sentencepiece_pb2.SentencePieceText.FromString(data).pieces]

    def encode_flat(self, texts: list[str]) -> Encoded:
        """The tokens of whole texts.

        The library's offsets cost more than its ids. Where the ink of the pieces is that of the text, as it is unless a
        normaliser changed some or a piece is unknown, the ink before a piece says where it begins. Places are those in
        folded text; units say how long a stretch of a text is there.
        """
        changed = [self.specials.lowercase and not text.isascii() for text in texts]
        texts = list(map(self._folded, texts))
        encoded = self.processor.encode(texts, num_threads=1)  # `prepare` has a process for each core.
        sizes = np.array(list(map(len, encoded)), np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64, sizes.sum())
        ink = self._ink_sizes[ids]
        places, ends = np.cumsum(ink) - ink, np.cumsum(sizes)
        units = []
        for text, found, end in zip(texts, encoded, ends.tolist(), strict=True):
            begin = end - len(found)
            # Where a text begins with white space of its own, that is before or after the first of its pieces.
            begins = bool(found) and (self._ink[found[0]] or not text[0].isspace())
            if begins and b"".join(map(self._ink.__getitem__, found)) == _ink(text):
                units.append(_num_ink)
                places[begin:end] -= places[begin]
            else:
                units.append(_num_bytes)
                places[begin:end] = self._begins(text)
        units = [_FOLDED[unit] if is_changed else unit for unit, is_changed in zip(units, changed, strict=True)]
        return Encoded(ids, places, sizes, units)


# White space of ASCII, as `str.isspace` has it.
_SPACES = bytes(i for i in range(128) if chr(i).isspace())


def _ink(text: str) -> bytes:
    """A text's UTF-8 without white space."""
    return text.encode("utf-8").translate(None, _SPACES)


def _num_ink(text: str) -> int:
    return len(_ink(text))


def _num_folded_bytes(text: str) -> int:
    return _num_bytes(folding.fold(text))


def _num_folded_ink(text: str) -> int:
    return _num_ink(folding.fold(text))


# By a unit of a text: the same unit of the text as it is folded.
_FOLDED = {_num_bytes: _num_folded_bytes, _num_ink: _num_folded_ink}


def _ink_of(piece: sentencepiece_model_pb2.ModelProto.SentencePiece) -> bytes:
    """The ink of a piece of SentencePiece; of one that is no text a byte that no text has."""
    if piece.type == piece.BYTE:
        return bytes([int(piece.piece[1:-1], 16)]).translate(None, _SPACES)
    is_text = piece.type in (piece.NORMAL, piece.USER_DEFINED)
    # With white space at its end a piece reaches further than its ink.
    reaches = piece.piece.strip("▁") and piece.piece.endswith("▁")
    return _ink(piece.piece.replace("▁", "")) if is_text and not reaches else b"\xff"


def _own_sentinels(path: str, tokens: Sequence[str], specials: config.Vocabulary) -> int:
    """With how many sentinels a file ends that are the config's; more, or other ids above them, would be their ids."""
    own = sum("<extra_id_" in token for token in tokens) if specials.sentinels else 0
    if own and specials.sentinels != own:
        raise UserError(f"config.vocabulary.sentinels is {specials.sentinels} but {path} has {own}: set it to that")
    if own and specials.added:
        raise UserError(f"{path} ends with its sentinels, no id goes above them: set config.vocabulary.added to 0")
    return own


def _check_not_text(path: str, specials: config.Vocabulary, text: Container[int]) -> None:
    """No special id may be that of a token that text becomes."""
    for name in SPECIALS:
        if (given := getattr(specials, name)) is not None and given in text:
            raise UserError(f"config.vocabulary.{name} is {given}, a token of text in {path}: give a special one's id")


class _Tokenizer(Vocabulary):
    """A vocabulary over a `tokenizers.Tokenizer`.

    Attributes:
      separable: whether it cuts text as `stretches` has it.
    """

    byte_offsets = False
    separable: ClassVar[bool] = True
    tokenizer: tokenizers.Tokenizer
    _sizes: Sequence[int | None] = ()

    def _own_bytes(self, token: int) -> int | None:
        return self._sizes[token] if token < len(self._sizes) else None

    @functools.cached_property
    def _stretches(self) -> stretches.Stretches:
        return stretches.Stretches(self.encode_offsets)

    def encode_flat(self, texts: list[str]) -> Encoded:
        """The tokens of whole texts."""
        if not self.separable:
            return super().encode_flat(texts)
        return Encoded(*self._stretches(texts), [len] * len(texts))

    def _encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.encode(s).ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([int(i) for i in ids if 0 <= i < self._size], skip_special_tokens=False)

    def encode_offsets(self, texts: list[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Ids and character offsets."""
        encoded = self.tokenizer.encode_batch(texts)
        return [(e.ids, [begin for begin, _ in e.offsets]) for e in encoded]


class BytePairs(_Tokenizer):
    """GPT-2's byte-level BPE (Radford et al. 2019) over a vocabulary and its merges."""

    def __init__(self, vocab_path: str, merges_path: str, specials: config.Vocabulary):
        vocab, merges = _read(vocab_path).decode("utf-8", "replace"), _read(merges_path).decode("utf-8", "replace")
        try:
            ids = json.loads(vocab)
            pairs = [tuple(line.split(" ")) for line in merges.splitlines() if line and not line.startswith("#version")]
            if sorted(ids.values()) != list(range(len(ids))):
                raise ValueError("ids are not 0 to size - 1")
            self.tokenizer = tokenizer_files.byte_level(tokenizers.models.BPE(ids, pairs))
        except Exception as error:
            raise UserError(
                f"{vocab_path} and {merges_path} make no BPE vocabulary ({one_line(error)}): give whole files"
            ) from error
        tokens = sorted(ids, key=ids.__getitem__)
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        merged = {*tokenizer_files.byte_characters(), *("".join(pair) for pair in pairs)}
        _check_not_text(vocab_path, specials, {i for token, i in ids.items() if token in merged})
        self._sizes = [len(token) for token in tokens]
        self.table = {"tokens": tokens, "merges": pairs}


class TikToken(_Tokenizer):
    """LLaMA 3's byte-level BPE over a file of tiktoken's; its special tokens are ids above the file (`added`)."""

    def __init__(self, path: str, specials: config.Vocabulary):
        data = _read(path)
        try:
            tokens, self.tokenizer = tokenizer_files.tiktoken(data)
        except ValueError as error:
            raise UserError(f"{path} is no file of tiktoken's ({one_line(error)}): give a whole one") from error
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        _check_not_text(path, specials, range(len(tokens)))
        self._sizes = [len(token) for token in tokens]
        self.table = {"tokens": tokens}


class HuggingFace(_Tokenizer):
    """A `tokenizer.json`: any model of Hugging Face's tokenizers, with what that does to text before.

    Tokens that the file marks as special never come from text, those that it adds without that mark do.
    """

    separable = False

    def __init__(self, path: str, specials: config.Vocabulary):
        data = _read(path)
        try:
            tree = json.loads(data)
            self.tokenizer, self._decoder = tokenizer_files.hugging_face(tree)
        except Exception as error:
            raise UserError(f"{path} is no tokenizer.json ({one_line(error)}): give a whole one") from error
        ids = self._decoder.get_vocab()
        names = {i: token for token, i in ids.items()}
        if not names:
            raise UserError(f"{path} has no tokens: give a whole one")
        tokens = [names.get(i, "") for i in range(max(names) + 1)]
        own = _own_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.begins_words(tree, tokens[: len(tokens) - own])))
        special = tokenizer_files.special_ids(tree, ids)
        _check_not_text(path, specials, names.keys() - special)
        self._sizes = tokenizer_files.own_bytes(tree, tokens)
        self.table = {key: tree.get(key) for key in ("model", "added_tokens", "normalizer", "pre_tokenizer")}

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode([int(i) for i in ids if 0 <= i < self._size], skip_special_tokens=False)


class WordPiece(_Tokenizer):
    """BERT's vocab.txt: words, one a line, and pieces of words after `##` (Devlin et al. 2019, arXiv:1810.04805).

    Text is cleaned and cut at white space, at punctuation and around each Chinese character; a word goes into its
    longest pieces, first to last, or is unknown. Of an uncased vocabulary text is lower-cased and its accents are
    dropped. Whether it is one `train_kind` says, else the file: if none of its tokens but the bracketed has an
    upper-case letter.
    """

    def __init__(self, path: str, specials: config.Vocabulary):
        tokens = wordpiece.read(_read(path))
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) < len(tokens) or "[UNK]" not in ids:
            raise UserError(f"{path} is no WordPiece vocabulary: give one token a line, none twice, one of them [UNK]")
        super().__init__(specials, np.array([not token.startswith("##") for token in tokens]))
        _check_symbols(path, ids, WORDPIECE_SYMBOLS, specials)
        kind = specials.train_kind
        lowercase = kind == "uncased" if kind else wordpiece.is_uncased(tokens)
        self.tokenizer = tokenizer_files.bert(ids, lowercase)
        self.table = {"tokens": tokens, "lowercase": lowercase}


def _check_symbols(path: str, ids: dict[str, int], symbols: dict[str, str], specials: config.Vocabulary) -> None:
    """The special ids must be those that a file gives their symbols, or lie above the file."""
    for name, symbol in symbols.items():
        own, given = ids.get(symbol), getattr(specials, name)
        is_added = own is None and given is not None and given >= len(ids)
        if given is not None and own != given and not is_added:
            has = f"has no {symbol}: add it" if own is None else f"has {own}: set it to {own}"
            raise UserError(f"config.vocabulary.{name} is {given} but {path} {has}")


class Words(Vocabulary):
    """Whole words, one a line of a file, as allenai/bilm-tf has them; others are `<UNK>`.

    Text is cut at white space alone: give it as the words' file has it, with punctuation apart.
    """

    byte_offsets = False

    def __init__(self, path: str, specials: config.Vocabulary):
        try:
            self.table = {"words": words.read(path)}
        except OSError as error:
            raise _unreadable(path, error) from error
        self._ids = {word: i for i, word in enumerate(self.table["words"])}
        if words.UNK not in self._ids:
            raise UserError(f"{path} has no {words.UNK}: add it")
        super().__init__(specials, np.ones(len(self._ids), np.bool_))
        _check_symbols(path, self._ids, WORD_SYMBOLS, specials)
        self._unknown = self._ids[words.UNK]
        for symbol in WORD_SYMBOLS.values():
            self._ids.pop(symbol, None)

    def _encode(self, s: str) -> Sequence[int]:
        return [self._ids.get(word, self._unknown) for word in s.split()]

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.table["words"][int(i)] for i in ids if 0 <= i < self._size)

    def encode_offsets(self, texts: list[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Ids and character offsets."""
        return [(self._encode(text), [match.start() for match in re.finditer(r"\S+", text)]) for text in texts]


class Bytes(Vocabulary):
    """UTF-8 bytes: id = byte. Special ids, if any, are 256 and up, sentinels above the last of them."""

    byte_offsets = True

    def __init__(self, specials: config.Vocabulary):
        given = [i for name in SPECIALS if (i := getattr(specials, name)) is not None]
        if given and min(given) < 256:
            raise UserError(f"config.vocabulary has special id {min(given)}, which is a byte: give 256 or more")
        super().__init__(specials, np.isin(np.arange(max([255, *given]) + 1), list(b" \t\n\r\v\f")))
        self.table = "bytes"

    def _encode(self, s: str) -> Sequence[int]:
        return list(s.encode("utf-8"))

    def _decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) for i in ids if 0 <= i < 256).decode("utf-8", errors="replace")

    def encode_offsets(self, texts: list[str]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Ids and byte offsets."""
        arrays = [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]
        return [(array, np.arange(len(array))) for array in arrays]


KINDS = {
    "sentencepiece": SentencePiece,
    "wordpiece": WordPiece,
    "bpe": BytePairs,
    "tiktoken": TikToken,
    "json": HuggingFace,
    "words": Words,
    "bytes": Bytes,
}
# The files that a spec names, by its scheme.
_FILES = {
    "sentencepiece": ("FILE",),
    "wordpiece": ("FILE",),
    "bpe": ("VOCAB", "MERGES"),
    "tiktoken": ("FILE",),
    "json": ("tokenizer.json",),
    "words": ("FILE",),
    "bytes": (),
}


def load(vocabulary: config.Vocabulary | str) -> Vocabulary:
    """As `load_plain`, and it is a `seqio.Vocabulary`."""
    from plm_jax.data.vocabularies import for_seqio  # Seconds, which tokenising alone need not wait.

    return _load(vocabulary, {scheme: for_seqio.of(kind) for scheme, kind in KINDS.items()})


def load_plain(vocabulary: config.Vocabulary | str) -> Vocabulary:
    """The vocabulary of a config section, or of a spec alone (then without special ids).

    Args:
      vocabulary: its `spec` is `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`, `tiktoken:FILE`,
        `json:tokenizer.json`, `words:FILE` or `bytes`.

    Raises:
      UserError: an unknown scheme; a missing or damaged file; special ids that do not fit it.
    """
    return _load(vocabulary, KINDS)


def _load(vocabulary: config.Vocabulary | str, kinds: Mapping[str, Callable[..., Vocabulary]]) -> Vocabulary:
    if isinstance(vocabulary, str):
        vocabulary = config.Vocabulary(spec=vocabulary)
    scheme, paths = _parse(vocabulary.spec)
    check_lowercase(vocabulary)
    return kinds[scheme](*paths, vocabulary)


def check_lowercase(vocabulary: config.Vocabulary) -> None:
    """Refuses `lowercase` where text is not folded by us."""
    scheme, _ = _parse(vocabulary.spec)
    if vocabulary.lowercase and scheme != "sentencepiece":
        instead = " and set train_kind to 'uncased'" if scheme == "wordpiece" else ""
        raise UserError(
            f"config.vocabulary.lowercase is for SentencePiece alone, the spec is of {scheme}: leave it out{instead}"
        )


def _parse(spec: str) -> tuple[str, list[str]]:
    """A spec's scheme and files."""
    scheme, _, rest = spec.partition(":")
    paths = [path for path in rest.split(",") if path]
    if scheme not in _FILES:
        raise UserError(f"config.vocabulary.spec is '{spec}': {nearest(scheme, _FILES)}")
    if len(paths) != len(_FILES[scheme]):
        raise UserError(
            f"config.vocabulary.spec is '{spec}': give {':'.join([scheme, ','.join(_FILES[scheme])]).rstrip(':')}"
        )
    return scheme, paths


def files(spec: str) -> list[str]:
    """The files that a spec names."""
    return _parse(spec)[1]


def within(spec: str, folder: str) -> str:
    """The spec with its files in `folder`, where `copy` puts them."""
    scheme, paths = _parse(spec)
    return ":".join([scheme, *([",".join(os.path.join(folder, os.path.basename(p)) for p in paths)] if paths else [])])


def copy(spec: str, folder: str) -> None:
    """Copies a spec's files into `folder`; no reader sees half of one."""
    for path in files(spec):
        storage.copy(path, os.path.join(folder, os.path.basename(path)))


def identity(vocabulary: Vocabulary) -> str:
    """SHA-256 of what decides ids: token table, special ids, normaliser; the same on every machine."""
    specials = {name: getattr(vocabulary.specials, name) for name in SPECIALS}
    # What came later counts only where it is given, so that older vocabularies keep their identity.
    specials = {name: i for name, i in specials.items() if i is not None or name not in SYMBOLS}
    specials |= {"sentinels": vocabulary.extra_ids} if vocabulary.extra_ids else {}
    specials |= {"added": vocabulary.specials.added} if vocabulary.specials.added else {}
    what = {"kind": type(vocabulary).__name__, "table": vocabulary.table, "specials": specials}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()


def _read(path: str) -> bytes:
    try:
        return storage.read(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"cannot read the vocabulary's {path} ({error.strerror}): mend config.vocabulary.spec")
