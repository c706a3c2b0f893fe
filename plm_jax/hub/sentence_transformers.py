"""Files that turn a Hugging Face directory into a model of sentence-transformers."""

import os
from typing import Any

from plm_jax.hub import files, vocabulary_files

# Names of the flags of the pooling's config.json, by pooling.
POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "max": "pooling_mode_max_tokens",
}
_MODULES = "sentence_transformers.models"


def write(directory: str, width: int, pooling: str, normalize: bool, max_length: int | None) -> None:
    """Writes the modules of a model of sentence-transformers into the directory of its transformer.

    Args:
      width: number of dimensions of the embeddings.
      pooling: one of POOLINGS.
      normalize: whether embeddings are divided by their norm.
      max_length: maximum number of tokens of a text; None for no limit.
    """
    modules = [("", f"{_MODULES}.Transformer"), ("1_Pooling", f"{_MODULES}.Pooling")]
    modules += [("2_Normalize", f"{_MODULES}.Normalize")] if normalize else []
    described: list[dict[str, Any]] = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules)
    ]
    flags = {flag: name == pooling for name, flag in POOLINGS.items()}
    files.write_json(os.path.join(directory, "1_Pooling", "config.json"), {"word_embedding_dimension": width, **flags})
    limit = {} if max_length is None else {"max_seq_length": max_length}
    files.write_json(os.path.join(directory, vocabulary_files.SENTENCES), {**limit, "do_lower_case": False})
    tokenizer_path = os.path.join(directory, vocabulary_files.TOKENIZER)
    tokenizer = files.read_json(tokenizer_path)
    if "pad_token" not in tokenizer and "eos_token" in tokenizer:
        # Batches of sentence-transformers are padded; the mask hides the padding.
        files.write_json(tokenizer_path, tokenizer | {"pad_token": tokenizer["eos_token"]})
    files.write_json(os.path.join(directory, "modules.json"), described)
