"""Registry of Hugging Face model families, choice of a model's family, and conversion of its settings."""

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
from plm_jax.hub.cohere import CohereFamily
from plm_jax.hub.deberta import DebertaFamily, DebertaV2Family
from plm_jax.hub.distilbert import DistilBertFamily
from plm_jax.hub.electra import ElectraFamily
from plm_jax.hub.ernie import ErnieFamily
from plm_jax.hub.eurobert import EuroBertFamily
from plm_jax.hub.family import Family
from plm_jax.hub.fields import shortest_period
from plm_jax.hub.glm import ChatGlm6BFamily, GlmOriginalFamily
from plm_jax.hub.gpt1 import Gpt1Family
from plm_jax.hub.gpt2 import Gpt2Family
from plm_jax.hub.llama import LlamaFamily
from plm_jax.hub.modernbert import ModernBertFamily
from plm_jax.hub.mpnet import MpnetFamily
from plm_jax.hub.mt5 import Mt5Family
from plm_jax.hub.roberta import RobertaFamily
from plm_jax.hub.t5 import T5Family
from plm_jax.hub.xlm import XlmFamily
from plm_jax.hub.xlm_roberta import CamembertFamily, XlmRobertaFamily, XlmRobertaXlFamily
from plm_jax.hub.xlnet import XlnetFamily
from plm_jax.models.protocol import ModelConfig

CONFIG = "config.json"
Transformer = models.DecoderConfig | models.EncoderConfig | models.EncoderDecoderConfig
# Order of preference. Families from users' files come after them.
PUBLISHED = (
    *(Gpt2Family, BertFamily, T5Family, Mt5Family, BartFamily, RobertaFamily, ElectraFamily, AlbertFamily),
    *(DistilBertFamily, Gpt1Family, LlamaFamily, GlmFamily, ChatGlmFamily),
    *(GlmOriginalFamily, ChatGlm6BFamily, XlmRobertaFamily, CamembertFamily, XlmFamily, XlmRobertaXlFamily),
    *(
        ModernBertFamily,
        EuroBertFamily,
        CohereFamily,
        ErnieFamily,
        DebertaFamily,
        DebertaV2Family,
        XlnetFamily,
        MpnetFamily,
    ),
)
# Settings of training and computation. A Hugging Face directory lacks them or contains only some of them.
NOT_STORED = ("dropout.", "initializer.", "attention.position.init_std", "scan_layers", "remat", "attention_kernel")


def registered() -> dict[str, Family]:
    """Returns a dict from kinds to families: the families of this package, then the families of imported files."""
    published = {family.kind: family for family in PUBLISHED}
    return {kind: Family.choices[kind]() for kind in dict.fromkeys([*published, *Family.choices])}


def family_of(model: ModelConfig, preferred: str | None = None) -> Family:
    """Returns a family whose `config.json` can describe a model.

    This is the family of the kind `preferred` if it can describe the model, otherwise the first registered family that
    can.

    Raises:
      UserError: no family can describe the model. If there are families of this architecture, the message names the
        nearest one and the values that it requires.
    """
    families = [family for family in registered().values() if family.base.kind == model.kind]
    if not families or not isinstance(model, models.TransformerConfig):
        raise UserError(f"Hugging Face has no family for a model of kind '{model.kind}': save it in format plm_jax")
    families.sort(key=lambda family: family.kind != preferred)
    candidates = ((family, unsupported_settings(family, model)) for family in families)
    family, unsupported = min(candidates, key=lambda pair: len(pair[1]))
    if unsupported:
        raise UserError(
            f"Hugging Face's {family.name} cannot store this model ({', '.join(unsupported)}): change the model, or "
            "save it in format plm_jax"
        )
    return family


def to_settings(family: Family, config: Mapping[str, Any]) -> Transformer:
    """Returns the settings that a `config.json` of a family describes.

    The settings contain all heads of the family, and the task head that the file names.

    Raises:
      UserError: a value is invalid or not supported.
    """
    return trees.checked(tasks.to_settings(family, config, family.to_settings(config)), CONFIG)


def to_config(family: Family, model: models.TransformerConfig) -> dict[str, Any]:
    """Returns the contents of a model's `config.json`, without the special ids.

    Settings that have no field in `config.json` are left out.
    """
    return family.to_config(model) | tasks.to_config(family, model)


def unsupported_settings(family: Family, model: models.TransformerConfig) -> list[str]:
    """Returns the settings of a model that a family cannot store, each as a message `NAME must be VALUE`.

    The settings are converted to a `config.json` and back. VALUE is the value of a changed setting after this
    conversion. Settings in NOT_STORED are ignored. If the settings cannot be converted, for example because the number
    of heads does not divide the width, the only message is the reason.
    """
    shapes = tensor_layout.shapes_of(model)
    try:
        restored = to_settings(family, to_config(family, model))
    except UserError as error:
        return [str(error)]
    names = layout_of(family, model)
    restored = with_heads(family, restored, names, "head" in shapes, name_in(family, "head_bias") in names)
    # `config.json` contains at most one of the dropout rates of a head.
    restored, model = (model.with_dropout(0.0) for model in (restored, model))
    settings = _flatten(_canonical(model))
    return [
        f"{name} must be {value}"
        for name, value in _flatten(_canonical(restored)).items()
        if not name.startswith(NOT_STORED) and settings.get(name, trees.ABSENT) != value
    ]


def _canonical(model: models.TransformerConfig) -> models.TransformerConfig:
    """Returns equivalent settings in a standard form, for comparisons.

    Some optional values that equal their defaults become None. Layer patterns become as short as possible. Some unused
    fields get their defaults.
    """
    attention = _with_short_patterns(model.attention, max(stack.blocks for stack in model.stacks))
    model = replace(model, attention=attention)
    if isinstance(position := attention.position, models.Disentangled):
        unused = {"key_bias": True} if position.shared else {}
        unused |= {} if position.norm else {"epsilon": models.Disentangled.epsilon}
        unused |= {"num_tokens": 0} if model.num_positions or position.num_tokens == position.length else {}
        position = replace(position, terms=tuple(sorted(position.terms)), **unused)
        model = replace(model, attention=replace(model.attention, position=position))
    if model.norm.kind == "rms":
        model = replace(model, norm=replace(model.norm, bias=models.NormConfig.bias))
    if isinstance(model, models.EncoderDecoderConfig):
        encoder_sizes = {
            "heads": attention.heads,
            "head_dim": attention.head_dim,
            "feed_forward": model.feed_forward.width,
        }
        names = [f"decoder_{name}" for name, size in encoder_sizes.items() if getattr(model, f"decoder_{name}") == size]
        model = replace(model, **dict.fromkeys(names))
    default_scale = (attention.head_dim * attention.position.score_terms) ** -0.5
    if attention.score_scale == default_scale and getattr(model, "decoder_head_dim", None) is None:
        model = replace(model, attention=replace(attention, score_scale=None))
    return model


def _with_short_patterns(attention: models.AttentionConfig, layers: int) -> models.AttentionConfig:
    """Returns the attention settings, with the shortest equivalent patterns of windows and of rotary bases."""

    def shortened(pattern):
        return shortest_period([pattern[layer % len(pattern)] for layer in range(layers)]) if pattern else ()

    windows = shortened(attention.windows)
    attention = replace(attention, windows=windows if any(windows) else ())
    if not isinstance(attention.position, models.Rotary):
        return attention
    thetas = shortened(attention.position.thetas)
    single = {"theta": thetas[0], "thetas": ()} if len(thetas) == 1 and thetas[0] else {"thetas": thetas}
    return replace(attention, position=replace(attention.position, **single))


def _flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Returns a dict from dotted names to the values of settings.

    If a group of settings has a kind, the dict also contains `GROUP.kind`.
    """
    flat = {f"{prefix}kind": settings.kind} if hasattr(settings, "kind") else {}
    for field_ in dataclasses.fields(settings):
        value = getattr(settings, field_.name)
        name = prefix + field_.name
        if name == "heads":
            flat[name] = tuple(key for key, _ in value)
            for key, head in value:
                flat |= _flatten(head, f"{name}.{key}.")
            continue
        flat |= _flatten(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return flat


def with_heads(
    family: Family, model: Transformer, names: Collection[str], is_untied: bool, has_bias: bool
) -> Transformer:
    """Returns the settings that fit the stored tensors.

    An incomplete task head is removed. A head of an encoder is removed if its tensors are missing. In other models, an
    untied vocabulary head is removed if its matrix is missing and the model has other heads. A mask decoder without its
    position table becomes an ordinary vocabulary head.

    Args:
      names: full names of the stored tensors.
      is_untied: whether the files contain a head matrix that differs from the token embedding table. A tied vocabulary
        head then becomes untied.
      has_bias: whether the files contain a bias of the vocabulary head that is not 0. The vocabulary head then gets a
        bias.
    """
    model = tasks.drop_incomplete_head(family, model, names)
    if (task := tasks.head_of(model)) is not None:  # A vocabulary head may have tensors of the same names.
        names = set(names) - {tensor.name for tensor in tasks.tensors(family, task.kind)}
    head = model.head
    assert isinstance(head, models.VocabularyHead)  # Every `config.json` describes a vocabulary head.
    tied = head.tied and not is_untied
    vocabulary = replace(head, tied=tied, bias=head.bias or has_bias)
    if isinstance(head, models.MaskDecoderHead) and not _decodes_masks(family, model, names):
        fields = {f.name: getattr(vocabulary, f.name) for f in dataclasses.fields(models.VocabularyHead)}
        vocabulary = models.VocabularyHead(**fields)
    if not isinstance(model, models.EncoderConfig):
        is_left_out = not tied and model.heads and name_in(family, "head") not in names
        return replace(model, head=models.NoHead() if is_left_out else vocabulary)
    pooler, classifier, discriminator = (
        name_in(family, f"{part}/kernel") in names for part in ("pooler", "classifier", "discriminator")
    )
    of_head = {name_in(family, part) for part in ("head_transform/kernel", "head_bias", "head")}
    known = {tensor.name for tensor in family.tensors}
    if any(re.fullmatch(family.other_heads, name.removeprefix(family.prefix)) for name in set(names) - known):
        # A head of another task, which may have a transform of the same name.
        of_head = {name for name in of_head if name and not re.fullmatch(family.other_heads, name)}
    # A tied head without a transform and a bias has no tensors.
    is_bare = tasks.head_of(model) is None and vocabulary == models.VocabularyHead()
    has_head = is_bare or not set(names).isdisjoint(of_head)
    return replace(
        model,
        head=vocabulary if has_head else models.NoHead(),
        pooler=models.Pooler(2 if classifier else 0) if pooler else models.NoHead(),
        discriminator=model.discriminator if discriminator else models.NoHead(),
    )


def _decodes_masks(family: Family, model: Transformer, names: Collection[str]) -> bool:
    """Whether a model has DeBERTa's mask decoder, which is recognized by its position table.

    Two kinds of models have a tensor with the name of this table, but no mask decoder. One kind adds absolute positions
    to the input. The other kind is the discriminator of DeBERTa-v3, which contains the table of its generator.
    """
    has_discriminator = name_in(family, "discriminator/kernel") in names
    return name_in(family, "stack/position_embedding") in names and not has_discriminator and not model.position_tables


def layout_of(family: Family, model: models.TransformerConfig) -> dict[str, tensor_layout.TensorLayout]:
    """Returns a dict from the names of a model's tensors to their layouts."""
    head = tasks.head_of(model)
    task_tensors = () if head is None else tasks.tensors(family, head.kind)
    return tensor_layout.layout((*family.tensors, *task_tensors), model)


def name_in(family: Family, parameter: str) -> str | None:
    """Returns the name of the tensor that holds only this parameter, or None if the family has no such tensor."""
    return next((tensor.name for tensor in family.tensors if tensor.parameters == (parameter,)), None)


def published(model: ModelConfig) -> tuple[ModelConfig, str | None]:
    """Returns a pair: the model as it is exported to Hugging Face, and the name of the parameters to leave out.

    The name is a key at the top level of the parameters. It is None if no parameters are left out.
    """
    if isinstance(model, models.ElectraConfig):
        return model.discriminator_model, "generator"
    if isinstance(model, models.EncoderConfig) and isinstance(model.span_boundary, models.SpanBoundary):
        return replace(model, span_boundary=models.NoHead()), "span_boundary"
    if isinstance(model, models.EncoderDecoderConfig) and isinstance(model.head, models.NoHead):
        # In `transformers`, encoder, decoder and head share one table, or none of them do.
        return replace(model, head=models.VocabularyHead()), None
    return model, None


def model_type_of(directory: str, config: Mapping[str, Any]) -> str:
    """Returns the `model_type` of a directory whose `config.json` lacks this field.

    The classes in `architectures` determine the type. If they match no family, the names of the tensors determine it.

    Raises:
      UserError: the classes or the tensor names do not match exactly one family, or the weights cannot be read.
    """
    classes = [str(name) for name in config.get("architectures") or ()]
    stems = {re.sub(r"(For[A-Z]\w*|(LMHead|DoubleHeads|PreTrained)?Model)$", "", name).lower() for name in classes}
    known = registered()
    candidates = [name for name in known if name.replace("-", "") in stems]
    if not candidates:
        with files.opened(directory) as tensors:
            accepting = {name: family for name, family in known.items() if _accepts(family, tensors)}
        # If families differ only in their vocabulary, such as RoBERTa and XLM-R, the first one is used.
        names_by_fields: dict[int, str] = {}
        for name, family in accepting.items():
            names_by_fields.setdefault(id(family.fields), name)
        candidates = list(names_by_fields.values())
        # EuroBERT has the tensors of LLaMA, and an id of its own.
        candidates = [name for name in candidates if set(known[name].ids.values()) <= config.keys()] or candidates
    if len(candidates) != 1:
        matching = " or ".join(candidates) or f"no known family ({', '.join(known)})"
        raise UserError(
            f"{directory}/{CONFIG} has no model_type, and the tensor names match {matching}: set model_type in this "
            "file"
        )
    return candidates[0]


def _accepts(family: Family, tensors: Mapping[str, files.StoredTensor]) -> bool:
    """Whether a model of this family can have tensors of all these names."""
    patterns = (re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(tensor.name)) for tensor in family.tensors)
    known = re.compile("|".join([*patterns, *map(re.escape, family.copies)]))
    ignored = re.compile(f"{family.buffers}|{family.unused}|{family.other_heads}")
    names = by_full_name(tensors, family)
    return all(known.fullmatch(name) or ignored.fullmatch(name.removeprefix(family.prefix)) for name in names)


def by_full_name(tensors: Mapping[str, files.StoredTensor], family: Family) -> dict[str, files.StoredTensor]:
    """Returns a dict from current full names to the tensors.

    The tensors may be stored under old names or under names without the family's prefix. If only the copy of a tensor
    is stored, the dict also contains it under the name of the copied tensor (`Family.copies`).
    """
    names = {tensor.name for tensor in family.tensors} | family.copies.keys()
    heads = {name for name in names if not name.startswith(family.prefix)} | tasks.names(family)
    stored = {}
    for name, tensor in tensors.items():
        for old, new in family.old_endings.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        stored[name if name in heads else family.prefix + name.removeprefix(family.prefix)] = tensor
    for copy, name in family.copies.items():
        if copy in stored:
            stored.setdefault(name, stored[copy])
    return stored
