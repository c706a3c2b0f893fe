"""Vocabularies over a tokenizer of Hugging Face's library: byte-level BPE, tiktoken's, tokenizer.json, WordPiece."""

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tokenizers
from typing_extensions import override

from plm_jax.common import strict_json, wordpiece
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.vocabularies import symbols, tokenizer_files
from plm_jax.data.vocabularies import word_spans as stretches
from plm_jax.data.vocabularies.vocabulary import Encoded, Integers, Vocabulary
from plm_jax.data.vocabulary_config import VocabularyConfig


class _Tokenizer(Vocabulary):
    """A vocabulary over a `tokenizers.Tokenizer`.

    Attributes:
      separable: whether it cuts text as `stretches` has it.
    """

    byte_offsets = False
    separable: ClassVar[bool] = True
    tokenizer: tokenizers.Tokenizer

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

    @override
    def spans(self, texts: list[str]) -> list[tuple[Integers, Integers, Integers]]:
        encoded = [(e.ids, e.offsets) for e in self.tokenizer.encode_batch(texts)]
        return [(ids, [begin for begin, _ in places], [end for _, end in places]) for ids, places in encoded]


class BytePairs(_Tokenizer):
    """GPT-2's byte-level BPE (Radford et al. 2019) over a vocabulary and its merges."""

    def __init__(self, vocab_path: str, merges_path: str, specials: VocabularyConfig):
        vocab, merges = symbols.read(vocab_path), symbols.read(merges_path)
        try:
            ids, pairs = tokenizer_files.byte_pairs(vocab, merges, specials)
            self.tokenizer = tokenizer_files.byte_level(tokenizers.models.BPE(ids, pairs))
        except Exception as error:
            raise UserError(
                f"{vocab_path} and {merges_path} make no BPE vocabulary ({one_line(error)}): give whole files"
            ) from error
        tokens = sorted(ids, key=ids.__getitem__)
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        merged = {*tokenizer_files.byte_characters(), *("".join(pair) for pair in pairs)}
        symbols.check_not_text(vocab_path, specials, {i for token, i in ids.items() if token in merged})
        self._own_bytes = {i: len(token) for i, token in enumerate(tokens)}
        self.table = {"tokens": tokens, "merges": pairs}


class TikToken(_Tokenizer):
    """LLaMA 3's byte-level BPE over a file of tiktoken's; its special tokens are ids above the file (`added`)."""

    def __init__(self, path: str, specials: VocabularyConfig):
        data = symbols.read(path)
        try:
            tokens, self.tokenizer = tokenizer_files.tiktoken(data)
        except ValueError as error:
            raise UserError(f"{path} is no file of tiktoken's ({one_line(error)}): give a whole one") from error
        super().__init__(specials, np.array(tokenizer_files.byte_level_begins_words(tokens)))
        symbols.check_not_text(path, specials, range(len(tokens)))
        self._own_bytes = {i: len(token) for i, token in enumerate(tokens)}
        self.table = {"tokens": tokens}


class HuggingFace(_Tokenizer):
    """A `tokenizer.json`: any model of Hugging Face's tokenizers, with what that does to text before.

    Tokens that the file marks as special never come from text, those that it adds without that mark do.
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
            raise UserError(f"{path} is no tokenizer.json ({one_line(error)}): give a whole one") from error
        names = {i: token for token, i in ids.items()}
        tokens = [names.get(i, "") for i in range(max(names) + 1)]
        own = symbols.own_sentinels(path, tokens, specials)
        super().__init__(specials, np.array(tokenizer_files.begins_words(tree, tokens[: len(tokens) - own])))
        special = tokenizer_files.special_ids(tree, ids)
        symbols.check_not_text(path, specials, names.keys() - special)
        self._own_bytes = tokenizer_files.own_bytes(tree, tokens)
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

    def __init__(self, path: str, specials: VocabularyConfig):
        try:
            tokens = wordpiece.read(symbols.read(path))
        except ValueError as error:
            raise UserError(f"{path} is no WordPiece vocabulary ({one_line(error)}): give a whole one") from error
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) < len(tokens) or "[UNK]" not in ids:
            raise UserError(f"{path} is no WordPiece vocabulary: give one token a line, none twice, one of them [UNK]")
        super().__init__(specials, np.array([not token.startswith("##") for token in tokens]))
        symbols.check_symbols(path, ids, symbols.WORDPIECE_SYMBOLS, specials)
        kind = specials.train_kind
        lowercase = kind == "uncased" if kind else wordpiece.is_uncased(tokens)
        self.tokenizer = tokenizer_files.bert(ids, lowercase)
        self.table = {"tokens": tokens, "lowercase": lowercase}
