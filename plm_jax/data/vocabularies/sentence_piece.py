"""SentencePiece models."""

import itertools
import re
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

_PROTOCOL: Any = sentencepiece_pb2  # Defines its classes on import, which type checkers do not see.


class SentencePiece(Vocabulary):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226).

    If the setting `lowercase` is set, the model reads text after `folding.fold`.
    """

    byte_offsets = True

    def __init__(self, path: str, specials: VocabularyConfig):
        data = symbols.read(path)
        try:
            model, self.processor = sentence_models.parse(data), sentence_models.processor(data)
        except ValueError as error:
            raise UserError(
                f"{path} is not a SentencePiece model ({one_line(error)}): replace it with an intact file"
            ) from error
        tokens = [piece.piece for piece in model.pieces]
        num_text = len(tokens) - symbols.num_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.sentencepiece_begins_words(tokens[:num_text])))
        pieces = {piece.piece: i for i, piece in enumerate(model.pieces)}
        for name in SPECIALS:
            actual = (
                pieces.get(symbols.SYMBOLS[name], -1)
                if name in symbols.SYMBOLS
                else getattr(self.processor, f"{name}_id")()
            )
            expected = getattr(specials, name)
            if expected is not None and actual >= 0 and actual != expected:
                raise UserError(f"config.vocabulary.{name} is {expected} but {path} has {actual}: set it to {actual}")
        symbols.check_not_text(path, specials, {i for i, piece in enumerate(model.pieces) if _is_text(piece)})
        self._byte_counts = {i: 1 for i, piece in enumerate(model.pieces) if piece.type == piece.BYTE}
        self._ink = [_piece_ink(piece) for piece in model.pieces]
        self._ink_sizes = np.array(list(map(len, self._ink)))
        self.table = {
            "pieces": [(piece.piece, float(piece.score).hex(), piece.type) for piece in model.pieces],
            "normalizer": model.normalizer_spec.SerializeToString(deterministic=True).hex(),
            "kind": [model.trainer_spec.model_type, model.trainer_spec.byte_fallback],
        }
        if specials.lowercase:  # Only if set, so that older vocabularies keep their identity.
            self.table["lowercase"] = True

    def _folded(self, text: str) -> str:
        return folding.fold(text) if self.specials.lowercase else text

    def _encode(self, s: str) -> Sequence[int]:
        return self.processor.encode(self._folded(s))

    def _decode(self, ids: Sequence[int]) -> str:
        return self.processor.decode([int(i) for i in ids if 0 <= i < self.processor.get_piece_size()])

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        encoded = []
        for text in texts:
            pieces = self._pieces(self._folded(text))
            begins, ends = (np.array([getattr(piece, at) for piece in pieces], np.int64) for at in ("begin", "end"))
            for i in reversed(range(len(pieces) - 1)):
                # Only the last of the byte pieces of a character has its span.
                if begins[i] == ends[i] and self.processor.is_byte(pieces[i].id):
                    begins[i], ends[i] = begins[i + 1], ends[i + 1]
            if self.specials.lowercase:
                last = np.maximum(folding.original_offsets(text, np.maximum(ends - 1, 0)) + 1, 0)
                ends, begins = np.where(ends > begins, last, -1), folding.original_offsets(text, begins)
                ends = np.maximum(ends, begins)
            encoded.append(([piece.id for piece in pieces], begins, ends))
        return encoded

    def _character(self, text: str, offset: int, unit: Callable[[str], int]) -> int:
        is_folded = unit in _FOLDED.values()
        return folding.character(text, offset, unit) if is_folded else super()._character(text, offset, unit)

    def _begins(self, text: str) -> list[int]:
        return [piece.begin for piece in self._pieces(text)]

    def _pieces(self, text: str) -> Sequence[Any]:
        """Returns the pieces, with their offsets, into which the library splits folded text."""
        data = self.processor.encode(text, out_type="serialized_proto")
        return _PROTOCOL.SentencePieceText.FromString(data).pieces

    def encode_flat(self, texts: list[str]) -> Encoded:
        """Encodes texts.

        Offsets are computed from the ids if possible, because the library is slower if it also returns offsets. The
        "ink" of a text is its UTF-8 without ASCII white space. If the ink of the pieces equals the ink of the text, the
        offset of a piece is the size of the ink before it. Otherwise, for example if a piece is unknown or the
        normalizer has changed the text, the library computes the offsets in bytes. With `lowercase`, offsets refer to
        the folded text, and the functions in `units` fold a part of the text before they measure it.
        """
        changed = [self.specials.lowercase and not text.isascii() for text in texts]
        texts = list(map(self._folded, texts))
        encoded = self.processor.encode(texts, num_threads=1)  # `prepare` has one process per core.
        sizes = np.array(list(map(len, encoded)), np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64, sizes.sum())
        ink = self._ink_sizes[ids]
        offsets, ends = np.cumsum(ink) - ink, np.cumsum(sizes)
        units = []
        for text, text_ids, end in zip(texts, encoded, ends.tolist(), strict=True):
            begin = end - len(text_ids)
            # White space at the beginning of a text may come before its first piece or be that piece.
            begins = bool(text_ids) and (self._ink[text_ids[0]] or not text[0].isspace())
            if begins and b"".join(map(self._ink.__getitem__, text_ids)) == _ink(text):
                units.append(_num_ink)
                offsets[begin:end] -= offsets[begin]
            else:
                units.append(num_bytes)
                offsets[begin:end] = self._begins(text)
        units = [_FOLDED[unit] if is_changed else unit for unit, is_changed in zip(units, changed, strict=True)]
        return Encoded(ids, offsets, sizes, units)


# Name of a special token, such as `<sop>` or `[gMASK]`.
_BRACKETED = re.compile(r"▁?(<.+>|\[.+\])")


def _is_text(piece: Any) -> bool:
    """Whether a piece is a byte, or a piece of type `NORMAL` that does not look like a special token.

    Pieces in brackets, such as `<sop>` or `[gMASK]`, look like special tokens. Tools that append special tokens to a
    model often leave their type at the default, `NORMAL`.
    """
    return piece.type == piece.BYTE or (piece.type == piece.NORMAL and not _BRACKETED.fullmatch(piece.piece))


# ASCII white space according to `str.isspace`.
_SPACES = bytes(i for i in range(128) if chr(i).isspace())


def _ink(text: str) -> bytes:
    """Returns the UTF-8 of a text without ASCII white space."""
    return text.encode("utf-8").translate(None, _SPACES)


def _num_ink(text: str) -> int:
    return len(_ink(text))


def _num_folded_bytes(text: str) -> int:
    return num_bytes(folding.fold(text))


def _num_folded_ink(text: str) -> int:
    return _num_ink(folding.fold(text))


# Units of a text → the same units of the folded text.
_FOLDED = {num_bytes: _num_folded_bytes, _num_ink: _num_folded_ink}


def _piece_ink(piece: Any) -> bytes:
    """Returns the ink of a piece of text or of a byte.

    For other pieces, and for text that ends in white space, returns a byte that no text contains.
    """
    if piece.type == piece.BYTE:
        return bytes([int(piece.piece[1:-1], 16)]).translate(None, _SPACES)
    is_text = piece.type in (piece.NORMAL, piece.USER_DEFINED)
    # White space at the end of a piece extends it beyond its ink.
    ends_in_space = piece.piece.strip("▁") and piece.piece.endswith("▁")
    return _ink(piece.piece.replace("▁", "")) if is_text and not ends_in_space else b"\xff"
