"""Files of a Hugging Face directory that conversions copy unchanged, for use in `transformers`.

In addition to the settings and the vocabulary, these files contain added tokens, special tokens around texts, the chat
template, generation settings, and fields of `config.json` that have no counterpart in this package.
"""

import os
from collections.abc import Mapping
from typing import Any

from plm_jax.common import storage
from plm_jax.hub import files, tokenizer_json, vocabulary_files
from plm_jax.hub.families import CONFIG
from plm_jax.hub.family import Family

GENERATION = "generation_config.json"
# Folder of a converted directory that holds copies of the files.
FOLDER = "huggingface"
# Files of a tokenizer, except its vocabulary files.
TOKENIZER = (
    tokenizer_json.NAME,
    vocabulary_files.TOKENIZER,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def find(directory: str | os.PathLike[str], family: Family) -> dict[str, str]:
    """Finds the files to copy. Returns a dict from their names to their paths.

    The tokenizer's files are included only if there is a `tokenizer.json`.

    Args:
      directory: Hugging Face directory, or a folder into which these files were copied.
      family: family of the model.
    """
    present, names = set(storage.names(os.fspath(directory))), {CONFIG, GENERATION}
    if tokenizer_json.NAME in present:
        vocabularies = {**tokenizer_json.FILES, **vocabulary_files.files_of(family)}.values()
        names |= {*TOKENIZER, *(name for names in vocabularies for name in names)}
    return {name: os.path.join(directory, name) for name in sorted(present & names)}


def copy(hub_files: Mapping[str, str], folder: str) -> None:
    """Copies files into a folder.

    Args:
      hub_files: dict from the names of the copies to the paths of the files.
      folder: folder that receives the copies.
    """
    for name, path in hub_files.items():
        storage.copy(path, os.path.join(folder, name))


def config_of(hub_files: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the original `config.json`, or None if the model is not from Hugging Face."""
    return files.read_json(hub_files[CONFIG]) if CONFIG in hub_files else None


def has_tokenizer(hub_files: Mapping[str, str]) -> bool:
    """Whether the files include a `tokenizer.json`."""
    return tokenizer_json.NAME in hub_files
