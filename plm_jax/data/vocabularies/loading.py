"""Loading of vocabularies from a spec: `SCHEME:FILE` or `SCHEME:FILE,FILE`, or `bytes`."""

import os
from collections.abc import Callable, Mapping

from plm_jax.common import storage
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.vocabularies.plain import Bytes, Words
from plm_jax.data.vocabularies.sentence_piece import SentencePiece
from plm_jax.data.vocabularies.subwords import BytePairs, HuggingFace, TikToken, WordPiece
from plm_jax.data.vocabularies.vocabulary import Vocabulary
from plm_jax.data.vocabulary_config import VocabularyConfig

KINDS = {
    "sentencepiece": SentencePiece,
    "wordpiece": WordPiece,
    "bpe": BytePairs,
    "tiktoken": TikToken,
    "json": HuggingFace,
    "words": Words,
    "bytes": Bytes,
}
# Names of the files of each scheme.
_FILES = {
    "sentencepiece": ("FILE",),
    "wordpiece": ("FILE",),
    "bpe": ("VOCAB", "MERGES"),
    "tiktoken": ("FILE",),
    "json": ("tokenizer.json",),
    "words": ("FILE",),
    "bytes": (),
}


def load(vocabulary: VocabularyConfig | str) -> Vocabulary:
    """Loads the same vocabulary as `load_plain`, but as a `seqio.Vocabulary`."""
    from plm_jax.data.vocabularies import for_seqio  # Takes seconds, which tokenization alone does not need.

    return _load(vocabulary, {scheme: for_seqio.seqio_class(kind) for scheme, kind in KINDS.items()})


def load_plain(vocabulary: VocabularyConfig | str) -> Vocabulary:
    """Loads the vocabulary of a config section, or of a plain spec without special ids.

    Args:
      vocabulary: section or spec. A spec is `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`,
        `tiktoken:FILE`, `json:tokenizer.json`, `words:FILE` or `bytes`.

    Raises:
      UserError: the spec is invalid, a file is missing or damaged, `lowercase` is set for a scheme that does not read
        it, or special ids do not fit the files.
    """
    return _load(vocabulary, KINDS)


def _load(vocabulary: VocabularyConfig | str, kinds: Mapping[str, Callable[..., Vocabulary]]) -> Vocabulary:
    if isinstance(vocabulary, str):
        vocabulary = VocabularyConfig(spec=vocabulary)
    scheme, paths = _parse(vocabulary.spec)
    check_lowercase(vocabulary)
    return kinds[scheme](*paths, vocabulary)


def check_lowercase(vocabulary: VocabularyConfig) -> None:
    """Raises a `UserError` if `lowercase` is set for a scheme other than SentencePiece, or if the spec is invalid."""
    scheme, _ = _parse(vocabulary.spec)
    if vocabulary.lowercase and scheme != "sentencepiece":
        instead = " and set train_kind to 'uncased'" if scheme == "wordpiece" else ""
        raise UserError(
            f"config.vocabulary.lowercase is for SentencePiece only, but the spec is {scheme}: remove it{instead}"
        )


def _parse(spec: str) -> tuple[str, list[str]]:
    scheme, _, rest = spec.partition(":")
    paths = [path for path in rest.split(",") if path]
    if scheme not in _FILES:
        raise UserError(f"config.vocabulary.spec is '{spec}': {nearest(scheme, _FILES)}")
    if len(paths) != len(_FILES[scheme]):
        raise UserError(
            f"config.vocabulary.spec is '{spec}': use {':'.join([scheme, ','.join(_FILES[scheme])]).rstrip(':')}"
        )
    return scheme, paths


def files(spec: str) -> list[str]:
    """Returns the paths of the files that a spec names; empty for `bytes`.

    Raises:
      UserError: the spec is invalid.
    """
    return _parse(spec)[1]


def within(spec: str, folder: str) -> str:
    """Returns a spec of the copies that `copy` makes in `folder`."""
    scheme, paths = _parse(spec)
    return ":".join([scheme, *([",".join(os.path.join(folder, os.path.basename(p)) for p in paths)] if paths else [])])


def copy(spec: str, folder: str) -> None:
    """Copies the files of a spec into `folder`, each atomically."""
    for path in files(spec):
        storage.copy(path, os.path.join(folder, os.path.basename(path)))
