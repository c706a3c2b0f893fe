"""SentencePiece's models."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_pb2
from typing_extensions import override

from plm_jax.common import sentence_models
from plm_jax.common.errors import UserError, one_line
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import folding, symbols, tokenizer_files
from plm_jax.data.vocabularies.vocabulary import Encoded, Integers, Vocabulary, num_bytes
from plm_jax.data.vocabulary_config import VocabularyConfig

_PROTOCOL: Any = sentencepiece_pb2  # Its classes are made when it is imported.


class SentencePiece(Vocabulary):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226); `lowercase`: of folded text."""

    byte_offsets = True

    def __init__(self, path: str, specials: VocabularyConfig):
        data = symbols.read(path)
        try:
            model, self.processor = sentence_models.parse(data), sentence_models.processor(data)
        except ValueError as error:
            raise UserError(f"{path} is no SentencePiece model ({one_line(error)}): give a whole one") from error
        tokens = [piece.piece for piece in model.pieces]
        num_text = len(tokens) - symbols.own_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.sentencepiece_begins_words(tokens[:num_text])))
        pieces = {piece.piece: i for i, piece in enumerate(model.pieces)}
        for name in SPECIALS:
            own = (
                pieces.get(symbols.SYMBOLS[name], -1)
                if name in symbols.SYMBOLS
                else getattr(self.processor, f"{name}_id")()
            )
            given = getattr(specials, name)
            if given is not None and own >= 0 and own != given:
                raise UserError(f"config.vocabulary.{name} is {given} but {path} has {own}: set it to {own}")
        self._own_bytes = {i: 1 for i, piece in enumerate(model.pieces) if piece.type == piece.BYTE}
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

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        found = []
        for text in texts:
            pieces = self._pieces(self._folded(text))
            begins, ends = (np.array([getattr(piece, at) for piece in pieces], np.int64) for at in ("begin", "end"))
            for i in reversed(range(len(pieces) - 1)):  # Of the bytes of a character the last has what they are.
                if begins[i] == ends[i] and self.processor.is_byte(pieces[i].id):
                    begins[i], ends[i] = begins[i + 1], ends[i + 1]
            if self.specials.lowercase:
                last = np.maximum(folding.own_bytes(text, np.maximum(ends - 1, 0)) + 1, 0)
                ends, begins = np.where(ends > begins, last, -1), folding.own_bytes(text, begins)
                ends = np.maximum(ends, begins)
            found.append(([piece.id for piece in pieces], begins, ends))
        return found

    def _character(self, text: str, place: int, unit: Callable[[str], int]) -> int:
        is_folded = unit in _FOLDED.values()
        return folding.character(text, place, unit) if is_folded else super()._character(text, place, unit)

    def _begins(self, text: str) -> list[int]:
        return [piece.begin for piece in self._pieces(text)]

    def _pieces(self, text: str) -> Sequence[Any]:
        """What the library says of the tokens of folded text."""
        data = self.processor.encode(text, out_type="serialized_proto")
        return _PROTOCOL.SentencePieceText.FromString(data).pieces

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
                units.append(num_bytes)
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
    return num_bytes(folding.fold(text))


def _num_folded_ink(text: str) -> int:
    return _num_ink(folding.fold(text))


# By a unit of a text: the same unit of the text as it is folded.
_FOLDED = {num_bytes: _num_folded_bytes, _num_ink: _num_folded_ink}


def _ink_of(piece: Any) -> bytes:
    """The ink of a piece of SentencePiece; of one that is no text a byte that no text has."""
    if piece.type == piece.BYTE:
        return bytes([int(piece.piece[1:-1], 16)]).translate(None, _SPACES)
    is_text = piece.type in (piece.NORMAL, piece.USER_DEFINED)
    # With white space at its end a piece reaches further than its ink.
    reaches = piece.piece.strip("▁") and piece.piece.endswith("▁")
    return _ink(piece.piece.replace("▁", "")) if is_text and not reaches else b"\xff"
