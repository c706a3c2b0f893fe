"""Reading and writing of Hugging Face directories: `config.json`, safetensors and the files of the vocabulary.

All families share these functions. `hub/families.py` lists the families.
"""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flax import traverse_util

from plm_jax import models
from plm_jax.common import sealing, storage
from plm_jax.common.errors import UserError
from plm_jax.hub import families, files, hub_files, sizes, tensor_layout, tokenizer_json, unsupported, vocabulary_files
from plm_jax.hub.families import CONFIG
from plm_jax.hub.family import Family
from plm_jax.hub.pretrained import Pretrained, float32

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Keys of `Pretrained.special_ids` for ids around texts and between documents. In `transformers`, only tokenizers have
# these ids.
FRAME = ("begins_with_bos", "begins_with", "ends_with", "separator_token_id")
START_ID = "decoder_start_token_id"


@contextlib.contextmanager
def opened(directory: str) -> Iterator[Pretrained]:
    """Context manager that yields a model whose parameters stay in their files, with their stored types.

    The parameters can be read until the context exits. Warnings name the heads and the unused weights that are left
    out.

    Raises:
      UserError: a file is missing or damaged, the family is unknown, a setting is not supported, or tensors are
        missing, unknown or have the wrong shapes.
    """
    path = os.path.join(directory, CONFIG)
    config = files.read_json(path)
    with sizes.report_as_damaged(path):
        if config.get("model_type") is None:
            config = config | {"model_type": families.model_type_of(directory, config)}
        registered = families.registered()
        claims = (kind for kind, family in registered.items() if family.reads(config))
        kind = next(claims, str(config.get("model_type")))
        if kind not in registered:
            raise unsupported.refusal(directory, config)
        family = registered[kind]
        model = families.to_settings(family, config)
    vocabulary, special_ids = _read_vocabulary(directory, family, config)
    sizes.check_ids(directory, special_ids)
    with files.opened(directory) as tensors:
        sizes.check(path, model, tensors)
        stored = families.by_full_name(tensors, family)
        model = families.with_heads(
            family, model, stored, _has_untied_head(family, stored), _has_head_bias(family, stored)
        )
        params = _gather(directory, family, model, stored)
        yield Pretrained(model, params, special_ids, vocabulary, kind, hub_files=hub_files.find(directory, family))


def _read_vocabulary(directory: str, family: Family, config: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Returns a pair: the spec of a model's vocabulary, and the special ids.

    The spec is None if the directory has no vocabulary that can be read.

    Raises:
      UserError: a file is damaged.
    """
    special_ids = {name: config[name] for name in (*SPECIAL_IDS, *FRAME, START_ID) if config.get(name) is not None}
    special_ids |= {ours: config[name] for ours, name in family.ids.items() if config.get(name) is not None}
    if family.start in special_ids:
        special_ids.setdefault(START_ID, special_ids[family.start])
    path = os.path.join(directory, vocabulary_files.TOKENIZER)
    tokenizer = files.read_json(path) if storage.exists(path) else {}
    vocabulary = vocabulary_files.find(directory, family, tokenizer)
    if vocabulary is not None:
        with sizes.report_as_damaged(f"{path} or {vocabulary.partition(':')[2]}"):
            special_ids = vocabulary_files.read_special_ids(directory, family, vocabulary, tokenizer) | special_ids
        if (limit := vocabulary_files.read_max_length(directory, tokenizer)) is not None:
            special_ids["max_length"] = limit
        has_types = family.token_types_are_of_texts and config.get("type_vocab_size", 1) > 1
        if has_types and tokenizer and not tokenizer_json.returns_token_types(tokenizer):
            warnings.warn(
                f"{path}: this tokenizer returns no token types, so transformers gives both texts of a pair type 0; "
                "plm_jax gives the second text type 1",
                stacklevel=5,
            )
    elif any(storage.exists(os.path.join(directory, name)) for name in family.unsupported_vocabulary):
        names = ", ".join(family.unsupported_vocabulary)
        warnings.warn(
            f"{directory}: the tokenizer of {family.name} ({names}) is not supported: pass token ids, or add a "
            "tokenizer.json",
            stacklevel=5,
        )
    return vocabulary, special_ids


def read(directory: str) -> Pretrained:
    """Reads a model with its parameters as float32 NumPy arrays. Raises the same errors as `opened`."""
    with opened(directory) as pretrained:
        flat = {path: float32(leaf) for path, leaf in pretrained.flat().items()}
        return replace(pretrained, params=traverse_util.unflatten_dict(flat, sep="/"))


def write(
    directory: str,
    pretrained: Pretrained,
    shard_bytes: int = files.SHARD_BYTES,
    tokenizer: tokenizer_json.Tokenizer | None = None,
) -> None:
    """Writes a directory for `opened` and `transformers`: weights and vocabulary first, `config.json` last.

    The weights are written one tensor at a time, in the types of the parameters. For an ELECTRA, only the discriminator
    is written. For a SpanBERT, only the BERT is written. In both cases, a warning names the parameters that are left
    out.

    If the model comes from a Hugging Face directory with a `tokenizer.json`, the tokenizer's files are copied from
    there, and `tokenizer` is ignored. Otherwise, without a `tokenizer`, the vocabulary is written only if the family
    has files for its scheme. `transformers` makes its own tokenizer from these files.

    Raises:
      UserError: no Hugging Face family can hold the model.
    """
    _warn_of_missing_parts(pretrained.model)
    pretrained = published(pretrained)
    model, flat = pretrained.model, pretrained.flat()
    family = families.family_of(model, pretrained.family)
    assert isinstance(model, models.TransformerConfig)  # Every family's models are.
    config, special_ids = _config_of(family, model, pretrained.special_ids)
    config["dtype"] = str(files.common_type(flat.values()))
    original = hub_files.config_of(pretrained.hub_files)
    if original is None:
        config |= special_ids | _further_ids(family, pretrained.special_ids)
    else:
        config = {name: value for name, value in original.items() if name != "torch_dtype"} | config
    for name in (sealing.MANIFEST, CONFIG):
        storage.remove(os.path.join(directory, name))
    tensors = families.layout_of(family, model)
    files.write(directory, {name: layout.content(flat) for name, layout in tensors.items()}, shard_bytes)
    hub_files.copy({name: path for name, path in pretrained.hub_files.items() if name != CONFIG}, directory)
    if not hub_files.has_tokenizer(pretrained.hub_files):
        vocabulary_files.write(directory, family, pretrained, tokenizer)
    files.write_json(os.path.join(directory, CONFIG), config)


def check(pretrained: Pretrained) -> None:
    """Raises a `UserError` if a model cannot be written in the format of a Hugging Face family.

    The parameters of the model are not needed.
    """
    model, _ = families.published(pretrained.model)
    family = families.family_of(model, pretrained.family)
    assert isinstance(model, models.TransformerConfig)
    _config_of(family, model, pretrained.special_ids)


def _config_of(
    family: Family, model: models.TransformerConfig, special_ids: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a pair: the contents of a model's `config.json`, and the special ids in SPECIAL_IDS.

    Special ids that the model lacks are None. The contents do not include special ids, except those that the family
    derives from settings.

    Raises:
      UserError: a special id of the model differs from the id that the settings require.
    """
    config = families.to_config(family, model)
    special_ids = {name: special_ids.get(name) for name in SPECIAL_IDS}
    for name in config.keys() & special_ids.keys():  # Ids that the settings require.
        if config[name] != special_ids[name]:
            raise UserError(
                f"Hugging Face's {family.name} requires {name} = {config[name]}, but this model has "
                f"{special_ids[name]}: save it in format plm_jax"
            )
    return config, special_ids


def _further_ids(family: Family, special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the special ids that are written to a `config.json` in addition to SPECIAL_IDS."""
    ids = {name: special_ids[name] for name in FRAME if name in special_ids}
    ids |= {name: special_ids[ours] for ours, name in family.ids.items() if ours in special_ids}
    if family.start:
        ids[START_ID] = special_ids.get(START_ID, special_ids.get(family.start))
    return ids


def published(pretrained: Pretrained) -> Pretrained:
    """Returns the part of a model that Hugging Face's class holds.

    For an ELECTRA, this is the discriminator. Most models are returned unchanged.
    """
    model, left_out = families.published(pretrained.model)
    params = {name: leaf for name, leaf in pretrained.params.items() if name != left_out}
    if isinstance(pretrained.model, models.ElectraConfig):
        params = pretrained.model.with_discriminator_tables(params)
    return replace(pretrained, model=model, params=params)


def _warn_of_missing_parts(model: models.ModelConfig) -> None:
    """Warns of the parts of a model that Hugging Face's class does not hold."""
    written, left_out = families.published(model)
    if isinstance(getattr(written, "head", None), models.MaskDecoderHead):
        warnings.warn(
            "transformers has no enhanced mask decoder: there, the exported model predicts masked tokens without it",
            stacklevel=3,
        )
    if left_out is not None:
        warnings.warn(f"Hugging Face's model has no place for '{left_out}': it is left out", stacklevel=3)


def _gather(
    folder, family: Family, model: models.TransformerConfig, stored: Mapping[str, files.StoredTensor]
) -> dict[str, Any]:
    """Returns the parameters as arrays that stay in the open files.

    All names and shapes are checked before any tensor becomes a parameter.
    """
    shapes = tensor_layout.shapes_of(model)
    expected = families.layout_of(family, model)
    _check(folder, family, expected, stored)
    flat = {path: tensor_layout.Parameter(shape) for path, shape in shapes.items()}
    for name, layout in expected.items():
        for number, piece in enumerate(layout.pieces):
            flat[piece.path].add(stored[name], layout, number)
    return traverse_util.unflatten_dict(flat, sep="/")


def _check(
    folder,
    family: Family,
    expected: Mapping[str, tensor_layout.TensorLayout],
    stored: Mapping[str, files.StoredTensor],
) -> None:
    def matches(pattern, name):
        return re.fullmatch(pattern, name.removeprefix(family.prefix))

    # A tied head may be stored as a copy of the token table; `_has_untied_head` has compared the two.
    extra = stored.keys() - expected.keys() - {families.name_in(family, "head")}
    copies = extra & family.copies.keys()
    unused = sorted(stored[name].name for name in extra if matches(family.unused, name))
    extra = [name for name in extra - copies if not matches(f"{family.buffers}|{family.unused}", name)]
    misshapen = [
        f"{name} is {stored[name].code} {list(stored[name].shape)} and not {list(layout.shape)}"
        for name, layout in expected.items()
        if name in stored and (stored[name].shape != layout.shape or stored[name].code not in files.FLOATS)
    ]
    files.refuse_misfits(
        f"the weights in {folder} do not fit its {CONFIG}",
        {
            "missing": expected.keys() - stored.keys(),
            "unknown": [stored[name].name for name in extra if not matches(family.other_heads, name)],
            "misshapen": misshapen,
            "copies that differ": [name for name in copies if not stored[name].equals(stored[family.copies[name]])],
        },
    )
    if unused:
        warnings.warn(f"{folder}: weights that the model does not use are left out: {', '.join(unused)}", stacklevel=6)
    if extra:
        heads = ", ".join(sorted(stored[name].name for name in extra))
        warnings.warn(f"{folder}: the heads of a fine-tuned model are left out: {heads}", stacklevel=6)


def _has_untied_head(family: Family, stored: Mapping[str, files.StoredTensor]) -> bool:
    """Whether the files contain a head matrix that differs from the token embedding table. The config is not read."""
    head, table = (_tensor_of(family, parameter, stored) for parameter in ("head", "token_embedding"))
    return head is not None and table is not None and not head.equals(table)


def _has_head_bias(family: Family, stored: Mapping[str, files.StoredTensor]) -> bool:
    """Whether the files contain a bias of the vocabulary head with values other than 0."""
    bias = _tensor_of(family, "head_bias", stored)
    return bias is not None and bool(np.any(bias[...]))


def _tensor_of(family: Family, parameter: str, stored: Mapping[str, files.StoredTensor]) -> files.StoredTensor | None:
    """Returns the tensor that holds a parameter, or None if the family or the files have no such tensor."""
    name = families.name_in(family, parameter)
    return None if name is None else stored.get(name)
