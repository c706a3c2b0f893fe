"""Vocabularies based on Hugging Face's tokenizers: byte-level BPE, tiktoken, tokenizer.json and WordPiece."""

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tokenizers
from typing_extensions import override

from plm_jax.common import strict_json, wordpiece
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.vocabularies import symbols, tokenizer_files, word_spans
from plm_jax.data.vocabularies.vocabulary import Encoded, Integers, Vocabulary
from plm_jax.data.vocabulary_config import VocabularyConfig


class _Tokenizer(Vocabulary):
    """A vocabulary based on a `tokenizers.Tokenizer`.

    Attributes:
      separable: whether the spans between spaces can be tokenized separately (`word_spans`).
    """

    byte_offsets = False
    separable: ClassVar[bool] = True
    tokenizer: tokenizers.Tokenizer

    @functools.cached_property
    def _span_tokenizer(self) -> word_spans.SpanTokenizer:
        return word_spans.SpanTokenizer(self.encode_offsets)

    def encode_flat(self, texts: list[str]) -> Encoded:
        """Encodes texts."""
        if not self.separable:
            return super().encode_flat(texts)
        return Encoded(*self._span_tokenizer(texts), [len] * len(texts))

    def _encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.encode(s).ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([int(i) for i in ids if 0 <= i < self._size], skip_special_tokens=False)

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        encoded = [(e.ids, e.offsets) for e in self.tokenizer.encode_batch(texts)]
        return [(ids, [begin for begin, _ in spans], [end for _, end in spans]) for ids, spans in encoded]


class BytePairs(_Tokenizer):
    """GPT-2's byte-level BPE (Radford et al. 2019), from a vocabulary and its merges."""

    def __init__(self, vocab_path: str, merges_path: str, specials: VocabularyConfig):
        vocab, merges = symbols.read(vocab_path), symbols.read(merges_path)
        try:
            ids, pairs = tokenizer_files.byte_pairs(vocab, merges, specials)
            self.tokenizer = tokenizer_files.byte_level(tokenizers.models.BPE(ids, pairs))
        except Exception as error:
            raise UserError(
                f"{vocab_path} and {merges_path} are not a BPE vocabulary ({one_line(error)}): use intact files"
            ) from error
        tokens = sorted(ids, key=ids.__getitem__)
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        merged = {*tokenizer_files.byte_characters(), *("".join(pair) for pair in pairs)}
        symbols.check_not_text(vocab_path, specials, {i for token, i in ids.items() if token in merged})
        self._byte_counts = {i: len(token) for i, token in enumerate(tokens)}
        self.table = {"tokens": tokens, "merges": pairs}


class TikToken(_Tokenizer):
    """LLaMA 3's byte-level BPE, from a tiktoken file.

    Special ids are above the ids of the file, among the ids that the setting `added` adds.
    """

    def __init__(self, path: str, specials: VocabularyConfig):
        data = symbols.read(path)
        try:
            tokens, self.tokenizer = tokenizer_files.tiktoken(data)
        except ValueError as error:
            raise UserError(
                f"{path} is not a tiktoken file ({one_line(error)}): replace it with an intact file"
            ) from error
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        symbols.check_not_text(path, specials, range(len(tokens)))
        self._byte_counts = {i: len(token) for i, token in enumerate(tokens)}
        self.table = {"tokens": tokens}


class HuggingFace(_Tokenizer):
    """A `tokenizer.json`: any model of Hugging Face's tokenizers, with its normalizer and pre-tokenizer.

    Text never becomes a token that the file marks as special, except the unknown token. It can become other added
    tokens.
    """

    separable = False

    def __init__(self, path: str, specials: VocabularyConfig):
        data = symbols.read(path)
        try:
            tree = strict_json.loads(data)
            self.tokenizer, self._decoder = tokenizer_files.hugging_face(tree)
            ids = self._decoder.get_vocab()
            tokenizer_files.check_ids(tree, ids)
        except Exception as error:
            raise UserError(
                f"{path} is not a tokenizer.json ({one_line(error)}): replace it with an intact file"
            ) from error
        names = {i: token for token, i in ids.items()}
        tokens = [names.get(i, "") for i in range(max(names) + 1)]
        num_text = len(tokens) - symbols.num_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.begins_words(tree, tokens[:num_text])))
        special = tokenizer_files.special_ids(tree, ids)
        symbols.check_not_text(path, specials, names.keys() - special)
        self._byte_counts = tokenizer_files.byte_counts(tree, tokens)
        self.table = {key: tree.get(key) for key in ("model", "added_tokens", "normalizer", "pre_tokenizer")}

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode([int(i) for i in ids if 0 <= i < self._size], skip_special_tokens=False)


class WordPiece(_Tokenizer):
    """BERT's vocab.txt, one token per line, with `##` before word continuations (Devlin et al. 2019, arXiv:1810.04805).

    Text is cleaned and split at white space, at punctuation and around each Chinese character. A word is split greedily
    from left to right into the longest pieces; if this is impossible, or if the word has more than 100 characters, it
    is unknown. An uncased vocabulary lowercases text and strips accents. `train_kind` decides whether a vocabulary is
    uncased. If `train_kind` is not set, a vocabulary is uncased if no token has an uppercase letter, except tokens in
    brackets.
    """

    def __init__(self, path: str, specials: VocabularyConfig):
        try:
            tokens = wordpiece.read(symbols.read(path))
        except ValueError as error:
            raise UserError(
                f"{path} is not a WordPiece vocabulary ({one_line(error)}): replace it with an intact file"
            ) from error
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) < len(tokens) or "[UNK]" not in ids:
            raise UserError(
                f"{path} is not a WordPiece vocabulary: write one token per line without duplicates, and [UNK]"
            )
        super().__init__(specials, np.array([not token.startswith("##") for token in tokens]))
        names = symbols.MPNET_SYMBOLS if "<mask>" in ids else symbols.WORDPIECE_SYMBOLS
        symbols.check_symbols(path, ids, names, specials)
        kind = specials.train_kind
        lowercase = kind == "uncased" if kind else wordpiece.is_uncased(tokens)
        self.tokenizer = tokenizer_files.bert(ids, lowercase)
        self.table = {"tokens": tokens, "lowercase": lowercase}
