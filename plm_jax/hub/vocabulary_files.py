"""The files of a vocabulary in a Hugging Face directory: found, read for special ids, and written."""

import os
import re
from collections.abc import Mapping
from typing import Any

from plm_jax.common import storage
from plm_jax.hub import files, tokenizer_json
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained

TOKENIZER = "tokenizer_config.json"
_RANK = re.compile(rb"[0-9A-Za-z+/]+=* \d+\r?\n")  # The first line of a file of tiktoken's.


def find(folder: str, family: Family, tokenizer: Mapping[str, Any]) -> str | None:
    """The spec of the files that we wrote, else of the family's own, else of `tokenizer.json`."""
    scheme, _, names = str(tokenizer.get(tokenizer_json.OURS, "")).partition(":")
    told = (
        {scheme: tuple(map(os.path.basename, filter(None, names.split(","))))} if scheme in tokenizer_json.FILES else {}
    )
    for scheme, names in (told | {s: n for s, n in files_of(family).items() if s not in told}).items():
        paths = [os.path.join(folder, name) for name in names]
        if all(map(storage.exists, paths)) and (scheme in told or _is_of(scheme, paths[0])):
            return f"{scheme}:{','.join(paths)}".rstrip(":")
    return None


def told(folder: str, family: Family, vocabulary: str, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The special ids that the vocabulary's files tell, those of a family's own or else `tokenizer.json`."""
    path = os.path.join(folder, tokenizer_json.NAME)
    if vocabulary.partition(":")[0] in family.vocabulary_files:
        found = family.special_ids(list(files.contents(vocabulary).values()), tokenizer)
        # What we wrote says it of whatever family.
        is_lower = tokenizer_json.OURS in tokenizer and tokenizer.get("do_lower_case")
        found |= {"lowercase": True} if is_lower else {}
        if tokenizer.get("tokenizer_class") in tokenizer_json.CLASSES and storage.exists(path):
            found |= tokenizer_json.frame(tokenizer_json.parse(_contents(path)))
        return found
    return tokenizer_json.special_ids(_contents(path), tokenizer)


def _contents(tokenizer_path: str) -> list[bytes]:
    return list(files.contents(f"{tokenizer_json.SCHEME}:{tokenizer_path}").values())


def write(directory: str, family: Family, pretrained: Pretrained, tokenizer: tokenizer_json.Tokenizer | None) -> None:
    """The vocabulary's own files, by which we know it again, and the tokenizer's, which `transformers` takes first."""
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
    """The family's own files by their scheme; each may have a `tokenizer.json`."""
    return {**family.vocabulary_files, tokenizer_json.SCHEME: tokenizer_json.FILES[tokenizer_json.SCHEME]}


def _is_of(scheme: str, path: str) -> bool:
    """Whether a file may be of a scheme: SentencePiece's and tiktoken's have the same name, and tiktoken's is text."""
    is_tiktoken = scheme == "tiktoken"
    if not is_tiktoken and scheme != "sentencepiece":
        return True
    (data,) = files.contents(f"{scheme}:{path}").values()
    return is_tiktoken == bool(_RANK.match(data))
