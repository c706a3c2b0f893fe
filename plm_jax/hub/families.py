"""The families that Hugging Face's libraries know, and which of them a model is of."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.hub import files, tasks, tensor_layout
from plm_jax.hub.albert import AlbertFamily
from plm_jax.hub.bart import BartFamily
from plm_jax.hub.bert import BertFamily
from plm_jax.hub.chatglm2 import ChatGlmFamily, GlmFamily
from plm_jax.hub.distilbert import DistilBertFamily
from plm_jax.hub.electra import ElectraFamily
from plm_jax.hub.family import Family
from plm_jax.hub.glm import ChatGlm6BFamily, GlmOriginalFamily
from plm_jax.hub.gpt1 import Gpt1Family
from plm_jax.hub.gpt2 import Gpt2Family
from plm_jax.hub.llama import LlamaFamily
from plm_jax.hub.mt5 import Mt5Family
from plm_jax.hub.roberta import RobertaFamily
from plm_jax.hub.t5 import T5Family
from plm_jax.models.protocol import ModelConfig

CONFIG = "config.json"
Transformer = models.DecoderConfig | models.EncoderConfig | models.EncoderDecoderConfig
# In the order in which they are tried. Families from users' files follow.
PUBLISHED = (
    *(Gpt2Family, BertFamily, T5Family, Mt5Family, BartFamily, RobertaFamily, ElectraFamily, AlbertFamily),
    *(DistilBertFamily, Gpt1Family, LlamaFamily, GlmFamily, ChatGlmFamily),
    *(GlmOriginalFamily, ChatGlm6BFamily),
)
# Settings of how a model is trained or computed, which a Hugging Face directory does not keep or not in full.
NOT_KEPT = ("dropout.", "initializer.", "attention.position.init_std", "scan_layers", "remat", "attention_kernel")


def registered() -> dict[str, Family]:
    """Returns a family of each kind: those of this package, then those of imported files."""
    ours = {family.kind: family for family in PUBLISHED}
    return {kind: Family.choices[kind]() for kind in dict.fromkeys([*ours, *Family.choices])}


def family_of(model: ModelConfig, preferred: str | None = None) -> Family:
    """The family whose `config.json` says all of a model's settings; of several, the preferred one or else the first.

    Raises:
      UserError: there is none; the line names the nearest and what that one cannot say.
    """
    families = [family for family in registered().values() if family.base.kind == model.kind]
    if not families or not isinstance(model, models.TransformerConfig):
        raise UserError(f"Hugging Face has no family for a model of kind '{model.kind}': save it in format plm_jax")
    families.sort(key=lambda family: family.kind != preferred)
    family, needed = min(((family, beyond(family, model)) for family in families), key=lambda pair: len(pair[1]))
    if needed:
        raise UserError(
            f"Hugging Face's {family.name} cannot hold this model: it needs {', '.join(needed)}; change the model, or "
            "save it in format plm_jax"
        )
    return family


def to_settings(family: Family, config: Mapping[str, Any]) -> Transformer:
    """The settings that a family's `config.json` describes, with all heads; UserError for what those cannot say."""
    return trees.checked(tasks.to_settings(family, config, family.to_settings(config)), CONFIG)


def to_config(family: Family, model: models.TransformerConfig) -> dict[str, Any]:
    """The inverse, without the special ids; what it cannot say it leaves out."""
    return family.to_config(model) | tasks.to_config(family, model)


def beyond(family: Family, model: models.TransformerConfig) -> list[str]:
    """What of the settings would be otherwise once they were written and read."""
    shapes = tensor_layout.shapes_of(model)
    try:
        held = to_settings(family, to_config(family, model))
    except UserError as error:  # As of heads that do not divide the width.
        return [f"another {error}"]
    names = layout_of(family, model)
    held = with_heads(family, held, names, "head" in shapes, name_in(family, "head_bias") in names)
    # Of the rates of a head one at most is kept.
    held, model = (model.with_dropout(0.0) for model in (held, model))
    given = _fields(_shortest(model))
    return [
        f"{name} = {value}"
        for name, value in _fields(held).items()
        if not name.startswith(NOT_KEPT) and given.get(name, trees.ABSENT) != value
    ]


def _shortest(model: models.TransformerConfig) -> models.TransformerConfig:
    """The same model with None where that means as much as what is given."""
    attention = model.attention
    if isinstance(model, models.EncoderDecoderConfig):
        own = {"heads": attention.heads, "head_dim": attention.head_dim, "feed_forward": model.feed_forward.width}
        same = [f"decoder_{name}" for name, value in own.items() if getattr(model, f"decoder_{name}") == value]
        model = replace(model, **dict.fromkeys(same))
    if attention.score_scale == attention.head_dim**-0.5 and getattr(model, "decoder_head_dim", None) is None:
        model = replace(model, attention=replace(attention, score_scale=None))
    return model


def _fields(part: Any, prefix: str = "") -> dict[str, Any]:
    """The settings by their dotted names, each choice's kind among them."""
    found = {f"{prefix}kind": part.kind} if hasattr(part, "kind") else {}
    for field_ in dataclasses.fields(part):
        value = getattr(part, field_.name)
        name = prefix + field_.name
        if name == "heads":
            found[name] = tuple(key for key, _ in value)
            for key, head in value:
                found |= _fields(head, f"{name}.{key}.")
            continue
        found |= _fields(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return found


def with_heads(
    family: Family, model: Transformer, names: Collection[str], own_head: bool, has_bias: bool
) -> Transformer:
    """The settings with those heads alone whose tensors are among the names: these decide, not the config."""
    model = tasks.kept(family, model, names)
    head = model.head
    assert isinstance(head, models.VocabularyHead)  # Every `config.json` describes one.
    tied = head.tied and not own_head
    vocabulary = replace(head, tied=tied, bias=head.bias or has_bias)
    if not isinstance(model, models.EncoderConfig):
        is_left_out = not tied and model.heads and name_in(family, "head") not in names
        return replace(model, head=models.NoHead() if is_left_out else vocabulary)
    has_head, pooler, classifier, discriminator = (
        name_in(family, f"{part}/kernel") in names
        for part in ("head_transform", "pooler", "classifier", "discriminator")
    )
    return replace(
        model,
        head=vocabulary if has_head else models.NoHead(),
        pooler=models.Pooler(2 if classifier else 0) if pooler else models.NoHead(),
        discriminator=model.discriminator if discriminator else models.NoHead(),
    )


def layout_of(family: Family, model: models.TransformerConfig) -> dict[str, list[tensor_layout.TensorPiece]]:
    """The pieces that make up each tensor of a model."""
    head = tasks.head_of(model)
    of_task = () if head is None else tasks.tensors(family, head.kind)
    return tensor_layout.layout(
        (*family.tensors, *of_task), tensor_layout.shapes_of(model), model.stack.inner, model.attention.heads
    )


def name_in(family: Family, parameter: str) -> str | None:
    """The tensor that holds a parameter alone; None where the family has none."""
    return next((tensor.name for tensor in family.tensors if tensor.parameters == (parameter,)), None)


def published(model: ModelConfig) -> tuple[ModelConfig, str | None]:
    """What of a model Hugging Face has a place for, and the name of the parameters that are left out."""
    if isinstance(model, models.ElectraConfig):
        return model.discriminator_model, "generator"
    if isinstance(model, models.EncoderConfig) and isinstance(model.span_boundary, models.SpanBoundary):
        return replace(model, span_boundary=models.NoHead()), "span_boundary"
    if isinstance(model, models.EncoderDecoderConfig) and isinstance(model.head, models.NoHead):
        # Theirs have embeddings that are tied, the two sides' to each other as well, or none that are.
        return replace(model, head=models.VocabularyHead()), None
    return model, None


def model_type_of(directory: str, config: Mapping[str, Any]) -> str:
    """The family of a directory whose `config.json` does not name it: by its `architectures`, else by its tensors.

    Raises:
      UserError: neither tells one.
    """
    classes = [str(name) for name in config.get("architectures") or ()]
    stems = {re.sub(r"(For[A-Z]\w*|(LMHead|DoubleHeads|PreTrained)?Model)$", "", name).lower() for name in classes}
    known = registered()
    found = [name for name in known if name.replace("-", "") in stems]
    if not found:
        with files.opened(directory) as tensors:
            found = [name for name, family in known.items() if _knows(family, tensors)]
    if len(found) != 1:
        told = f"could be of {' or '.join(found)}" if found else f"are of none of {', '.join(known)}"
        raise UserError(
            f"{directory}/{CONFIG} has no model_type, and by their names the tensors {told}: set model_type"
        )
    return found[0]


def _knows(family: Family, tensors: Mapping[str, files.StoredTensor]) -> bool:
    """Whether all tensors have names that a family's may have."""
    patterns = (re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(tensor.name)) for tensor in family.tensors)
    known = re.compile("|".join([*patterns, *map(re.escape, family.copies)]))
    others = re.compile(f"{family.buffers}|{family.other_heads}")
    names = by_full_name(tensors, family)
    return all(known.fullmatch(name) or others.fullmatch(name.removeprefix(family.prefix)) for name in names)


def by_full_name(tensors: Mapping[str, files.StoredTensor], family: Family) -> dict[str, files.StoredTensor]:
    """The tensors by today's names with the prefix, whatever the files leave out or call otherwise."""
    heads = {tensor.name for tensor in family.tensors if not tensor.name.startswith(family.prefix)}
    heads |= tasks.names(family)
    stored = {}
    for name, tensor in tensors.items():
        for old, new in family.old_endings.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        stored[name if name in heads else family.prefix + name.removeprefix(family.prefix)] = tensor
    for copy, name in family.copies.items():
        if copy in stored:
            stored.setdefault(name, stored[copy])
    return stored
