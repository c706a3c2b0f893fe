"""Vocabulary files of a Hugging Face directory: functions that find them, read their special ids, and write them."""

import os
import re
from collections.abc import Mapping
from typing import Any

from plm_jax.common import storage
from plm_jax.hub import files, tokenizer_json
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained

TOKENIZER = "tokenizer_config.json"
# Settings of sentence-transformers, such as the maximum length of a text.
SENTENCES = "sentence_bert_config.json"
# Folder of a run directory or a converted directory that holds the files of its vocabulary.
FOLDER = "vocabulary"
_RANK = re.compile(rb"[0-9A-Za-z+/]+=* \d+\r?\n")  # First line of a tiktoken file.


def find(folder: str, family: Family, tokenizer: Mapping[str, Any]) -> str | None:
    """Returns the spec of a directory's vocabulary, or None if there are no vocabulary files.

    The files that plm_jax names in `tokenizer_config.json` have priority over the files of the family. The files of the
    family have priority over `tokenizer.json`.

    Args:
      folder: Hugging Face directory.
      family: family of the model.
      tokenizer: contents of `tokenizer_config.json`.
    """
    scheme, _, names = str(tokenizer.get(tokenizer_json.OURS, "")).partition(":")
    recorded = (
        {scheme: tuple(map(os.path.basename, filter(None, names.split(","))))} if scheme in tokenizer_json.FILES else {}
    )
    for scheme, names in (recorded | {s: n for s, n in files_of(family).items() if s not in recorded}).items():
        paths = [os.path.join(folder, name) for name in names]
        if all(map(storage.exists, paths)) and (scheme in recorded or _is_of(scheme, paths[0])):
            return f"{scheme}:{','.join(paths)}".rstrip(":")
    return None


def read_special_ids(folder: str, family: Family, vocabulary: str, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the special ids of a vocabulary.

    The ids come from the vocabulary files if the family has files for the vocabulary's scheme, otherwise from
    `tokenizer.json`. If `transformers` uses the pipeline of `tokenizer.json`, the ids around texts come from there in
    both cases.

    Args:
      folder: Hugging Face directory.
      family: family of the model.
      vocabulary: spec of the vocabulary.
      tokenizer: contents of `tokenizer_config.json`.
    """
    path = os.path.join(folder, tokenizer_json.NAME)
    if vocabulary.partition(":")[0] in family.vocabulary_files:
        special_ids = family.special_ids(list(files.contents(vocabulary).values()), tokenizer)
        # plm_jax writes the field for every family.
        is_lower = tokenizer_json.OURS in tokenizer and tokenizer.get("do_lower_case")
        special_ids |= {"lowercase": True} if is_lower else {}
        if tokenizer.get("tokenizer_class") in tokenizer_json.CLASSES and storage.exists(path):
            special_ids |= tokenizer_json.frame(tokenizer_json.parse(_contents(path)))
        return special_ids
    return tokenizer_json.special_ids(_contents(path), tokenizer)


def read_max_length(folder: str, tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the number of tokens to which texts are truncated, or None if there is no limit.

    A limit of sentence-transformers has priority over a limit of the tokenizer.
    """
    path = os.path.join(folder, SENTENCES)
    limit = files.read_json(path).get("max_seq_length") if storage.exists(path) else None
    limit = tokenizer.get("model_max_length") if limit is None else limit
    # Tokenizers without a limit have a `model_max_length` of 10^30.
    return int(limit) if isinstance(limit, int | float) and 0 < limit < 2**31 else None


def _contents(tokenizer_path: str) -> list[bytes]:
    return list(files.contents(f"{tokenizer_json.SCHEME}:{tokenizer_path}").values())


def write(directory: str, family: Family, pretrained: Pretrained, tokenizer: tokenizer_json.Tokenizer | None) -> None:
    """Writes the vocabulary files, which plm_jax reads, and the tokenizer files, which `transformers` prefers.

    Nothing is written for a model without a vocabulary. Nothing is written either if `tokenizer` is None and the family
    has no files for the vocabulary's scheme.
    """
    scheme, described = (pretrained.vocabulary or "").partition(":")[0], {}
    names = files_of(family).get(scheme) or (tokenizer_json.FILES.get(scheme) if tokenizer else None)
    if names is None or pretrained.vocabulary is None:
        return
    contents = list(files.contents(pretrained.vocabulary).values())
    for name, content in zip(names, contents, strict=True):
        storage.write(os.path.join(directory, name), content)
    if scheme in family.vocabulary_files:
        described |= family.tokenizer_config(contents, pretrained.special_ids)
    elif scheme == tokenizer_json.SCHEME:
        described |= tokenizer_json.tokenizer_config(contents, pretrained.special_ids)
    if tokenizer is not None:
        files.write_json(os.path.join(directory, tokenizer_json.NAME), tokenizer.tree)
        described |= {**tokenizer.config, "tokenizer_class": tokenizer_json.CLASS}
        described[tokenizer_json.OURS] = f"{scheme}:{','.join(names)}"
    if described:
        files.write_json(os.path.join(directory, TOKENIZER), described)


def files_of(family: Family) -> dict[str, tuple[str, ...]]:
    """Returns a dict from schemes to the names of a family's vocabulary files.

    It always includes `tokenizer.json`, which every family may have.
    """
    return {**family.vocabulary_files, tokenizer_json.SCHEME: tokenizer_json.FILES[tokenizer_json.SCHEME]}


def _is_of(scheme: str, path: str) -> bool:
    """Whether the content of a file fits a scheme. Only SentencePiece and tiktoken are checked.

    These two schemes use the same file names, but only the files of tiktoken are text.
    """
    is_tiktoken = scheme == "tiktoken"
    if not is_tiktoken and scheme != "sentencepiece":
        return True
    (data,) = files.contents(f"{scheme}:{path}").values()
    return is_tiktoken == bool(_RANK.match(data))
