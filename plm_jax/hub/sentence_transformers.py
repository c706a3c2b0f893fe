"""Export of models for sentence-transformers: a Hugging Face directory with modules that pool hidden states."""

import os
from dataclasses import replace
from typing import Any

from flax import traverse_util

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, files, huggingface, tensor_layout, tokenizer_json, vocabulary_files
from plm_jax.hub.pretrained import Pretrained

# Names of the flags of the pooling's config.json, by pooling.
POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "max": "pooling_mode_max_tokens",
}
_MODULES = "sentence_transformers.models"


def write(
    directory: str,
    pretrained: Pretrained,
    pooling: str = "mean",
    normalize: bool = False,
    tokenizer: tokenizer_json.Tokenizer | None = None,
) -> None:
    """Writes a directory for `SentenceTransformer`.

    With the same pooling, `SentenceTransformer` returns the same embeddings as `LanguageModel.embed`.

    Args:
      directory: directory to write.
      pretrained: the model. The heads of an encoder are left out.
      pooling: one of POOLINGS.
      normalize: whether embeddings are divided by their norm.
      tokenizer: tokenizer that `huggingface.write` writes.

    Raises:
      UserError: sentence-transformers does not support the model, or no Hugging Face family can hold it.
    """
    if pretrained.model.architecture not in ("encoder", "decoder", "electra"):
        raise UserError(
            f"sentence-transformers does not embed with a model of kind '{pretrained.model.kind}': use embed"
        )
    pretrained = without_heads(pretrained)
    model = pretrained.model
    assert isinstance(model, models.TransformerConfig)  # Every family's models are.
    huggingface.write(directory, pretrained, tokenizer=tokenizer)
    has_pooler = families.name_in(families.family_of(model, pretrained.family), "pooler/kernel") is not None
    _write_modules(directory, model.embedding.width, pooling, normalize)
    _write_sentences(directory, pretrained.max_length, leaves_out_pooler=has_pooler)


def without_heads(pretrained: Pretrained) -> Pretrained:
    """Removes the heads and the pooler of an encoder, because embeddings do not need them.

    An ELECTRA becomes a discriminator without heads. Other models are returned unchanged.
    """
    published = huggingface.published(pretrained)
    if not isinstance(published.model, models.EncoderConfig):
        return pretrained
    names = ("head", "pooler", "discriminator", "span_boundary")
    model = replace(published.model, heads=(), **{name: models.NoHead() for name in names})
    shapes = tensor_layout.shapes_of(model)
    flat = {path: leaf for path, leaf in published.flat().items() if path in shapes}
    return replace(published, model=model, params=traverse_util.unflatten_dict(flat, sep="/"))


def _write_modules(directory: str, width: int, pooling: str, normalize: bool) -> None:
    """Writes the list of modules, and the pooling settings for hidden states of `width` dimensions."""
    modules = [("", f"{_MODULES}.Transformer"), ("1_Pooling", f"{_MODULES}.Pooling")]
    modules += [("2_Normalize", f"{_MODULES}.Normalize")] if normalize else []
    described: list[dict[str, Any]] = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules)
    ]
    flags = {flag: name == pooling for name, flag in POOLINGS.items()}
    files.write_json(os.path.join(directory, "1_Pooling", "config.json"), {"word_embedding_dimension": width, **flags})
    files.write_json(os.path.join(directory, "modules.json"), described)


def _write_sentences(directory: str, max_length: int | None, leaves_out_pooler: bool) -> None:
    """Writes the settings of the transformer module.

    If `tokenizer_config.json` names no padding token, the end-of-text token becomes the padding token.

    Args:
      max_length: maximum number of tokens of a text; None for no limit.
      leaves_out_pooler: whether to disable the pooler that the class in `transformers` would initialize randomly.
    """
    settings: dict[str, Any] = {} if max_length is None else {"max_seq_length": max_length}
    settings |= {"do_lower_case": False}
    settings |= {"model_args": {"add_pooling_layer": False}} if leaves_out_pooler else {}
    files.write_json(os.path.join(directory, vocabulary_files.SENTENCES), settings)
    tokenizer_path = os.path.join(directory, vocabulary_files.TOKENIZER)
    tokenizer = files.read_json(tokenizer_path)
    if "pad_token" not in tokenizer and "eos_token" in tokenizer:
        # Batches of sentence-transformers are padded; the mask hides the padding.
        files.write_json(tokenizer_path, tokenizer | {"pad_token": tokenizer["eos_token"]})
