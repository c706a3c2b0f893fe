"""Vocabularies with the interface of `seqio.Vocabulary`.

The kinds are SentencePiece, WordPiece, BPE, tiktoken, tokenizer.json, words and bytes. The section `vocabulary` of the
config sets the special ids. Encoding does not look for special tokens: `<|endoftext|>` in a document is encoded as
ordinary pieces. `load` imports seqio and TensorFlow; `load_plain` imports neither.
"""

from plm_jax.data.vocabularies.loading import KINDS, check_lowercase, copy, files, load, load_plain, within
from plm_jax.data.vocabularies.plain import Bytes, Words
from plm_jax.data.vocabularies.sentence_piece import SentencePiece
from plm_jax.data.vocabularies.subwords import BytePairs, HuggingFace, TikToken, WordPiece
from plm_jax.data.vocabularies.vocabulary import Encoded, Vocabulary, identity

__all__ = [
    "KINDS",
    "BytePairs",
    "Bytes",
    "Encoded",
    "HuggingFace",
    "SentencePiece",
    "TikToken",
    "Vocabulary",
    "WordPiece",
    "Words",
    "check_lowercase",
    "copy",
    "files",
    "identity",
    "load",
    "load_plain",
    "within",
]
