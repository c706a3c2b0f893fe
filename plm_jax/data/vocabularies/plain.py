"""Vocabularies of whole words and of bytes."""

import re
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import symbols, words
from plm_jax.data.vocabularies.vocabulary import Integers, Vocabulary
from plm_jax.data.vocabulary_config import VocabularyConfig


class Words(Vocabulary):
    """Whole words from a file with one word per line, as in allenai/bilm-tf; other words become `<UNK>`.

    Text is split at white space only. It must therefore be tokenized like the words of the file, usually with spaces
    around punctuation. The words `<S>`, `</S>` and `<UNK>` in text also become `<UNK>`.
    """

    byte_offsets = False

    def __init__(self, path: str, specials: VocabularyConfig):
        try:
            self.table = {"words": words.read(path)}
        except OSError as error:
            raise symbols.unreadable(path, error) from error
        self._ids = {word: i for i, word in enumerate(self.table["words"])}
        if words.UNK not in self._ids:
            raise UserError(f"{path} has no {words.UNK}: add it")
        super().__init__(specials, np.ones(len(self._ids), np.bool_))
        symbols.check_symbols(path, self._ids, symbols.WORD_SYMBOLS, specials)
        self._unknown = self._ids[words.UNK]
        for symbol in symbols.WORD_SYMBOLS.values():
            self._ids.pop(symbol, None)

    def _encode(self, s: str) -> Sequence[int]:
        return [self._ids.get(word, self._unknown) for word in s.split()]

    def _decode(self, ids: Sequence[int]) -> str:
        words = self.table["words"]
        return " ".join(words[i] for i in ids if 0 <= i < len(words))

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        encoded = []
        for text in texts:
            words = [match.span() for match in re.finditer(r"\S+", text)]
            encoded.append((self._encode(text), [begin for begin, _ in words], [end for _, end in words]))
        return encoded


class Bytes(Vocabulary):
    """UTF-8 bytes, whose ids are their values.

    Special ids are at least 256. Added ids follow the highest special id, and sentinels follow the added ids.
    """

    byte_offsets = True

    def __init__(self, specials: VocabularyConfig):
        special_ids = [i for name in SPECIALS if (i := getattr(specials, name)) is not None]
        if special_ids and min(special_ids) < 256:
            raise UserError(f"config.vocabulary has special id {min(special_ids)}, which is a byte: use 256 or more")
        super().__init__(specials, np.isin(np.arange(max([255, *special_ids]) + 1), list(b" \t\n\r\v\f")))
        self.table = "bytes"

    def _encode(self, s: str) -> Sequence[int]:
        return list(s.encode("utf-8"))

    def _decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) for i in ids if 0 <= i < 256).decode("utf-8", errors="replace")

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        arrays = [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]
        return [(array, np.arange(len(array)), np.arange(1, len(array) + 1)) for array in arrays]
