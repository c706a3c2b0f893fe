"""Error messages for models of unknown families.

The messages name the nearest family, and the fields and tensors of the model that this family lacks.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from plm_jax.common.errors import UserError
from plm_jax.hub import families, files
from plm_jax.hub.family import Family

# Fields that any `config.json` may have, whatever its architecture.
GENERIC = re.compile(
    r"_name_or_path|architectures|auto_map|model_type|transformers_version|(torch_)?dtype|use_cache|return_dict|"
    r"(\w+_)?token_id|id2label|label2id|num_labels|problem_type|output_\w+|gradient_checkpointing|pretraining_tp|"
    r"initializer_\w+|\w*drop(out)?\w*|task_specific_params|is_(en)?decoder\w*|chunk_size_feed_forward|"
    r"tie_\w+|pruned_heads|torchscript|tokenizer_class|summary_\w+|max_window_layers|attn_implementation"
)
# Endings of names of classes → kinds of the models that they contain.
ARCHITECTURES = {
    "ForCausalLM": "decoder",
    "LMHeadModel": "decoder",
    "ForConditionalGeneration": "encoder_decoder",
    "ForMaskedLM": "encoder",
    "ForPreTraining": "encoder",
}
MOST_NAMES = 4


def refusal(directory: str, config: Mapping[str, Any]) -> UserError:
    """Returns the error for a directory whose `model_type` belongs to no family."""
    kind = str(config.get("model_type"))[:100]
    candidates = [family for family in families.registered().values() if family.base.kind == _architecture(config)]
    candidates = candidates or list(families.registered().values())
    fields = {name for name in config if not GENERIC.fullmatch(name)}
    tensors = {_pattern(name) for name in _tensor_names(directory)}

    def score(family: Family) -> float:
        return _overlap(fields, _fields(family)) + _overlap(tensors, _patterns(family))

    family = max(candidates, key=score)
    missing = [
        f"{sort} {', '.join(sorted(names)[:MOST_NAMES])}{', …' if len(names) > MOST_NAMES else ''}"
        for sort, names in (("fields", fields - _fields(family)), ("tensors", tensors - _patterns(family)))
        if names
    ]
    lacks = f", without the {' and '.join(missing)}" if missing else ""
    return UserError(
        f"{directory}/{families.CONFIG}: model_type '{kind}' is not supported. The nearest supported family is "
        f"{family.name} ('{family.kind}'){lacks}. docs/extending.md shows how to add a family in a file for --module"
    )


def _architecture(config: Mapping[str, Any]) -> str | None:
    """Returns the kind of a model, such as `decoder`, from its class name in `config.json`.

    Returns None if the class name is unknown.
    """
    classes = [str(name) for name in config.get("architectures") or ()]
    kinds = (kind for ending, kind in ARCHITECTURES.items() if any(name.endswith(ending) for name in classes))
    return next(kinds, None)


def _overlap(names: set[str], known: set[str]) -> float:
    """Returns the number of common names of two sets, divided by the number of names in their union."""
    return len(names & known) / max(len(names | known), 1)


def _fields(family: Family) -> set[str]:
    """Returns the names of the fields that a family reads or writes, except fields that any `config.json` may have."""
    named = {str(name) for entry in family.fields if (name := getattr(entry, "name", None))}
    with contextlib.suppress(
        UserError, KeyError, TypeError
    ):  # The empty `config.json` of some families is not supported.
        named |= set(family.to_config(family.to_settings({})))
    return {name for name in named if not GENERIC.fullmatch(name)}


def _patterns(family: Family) -> set[str]:
    return {_pattern(tensor.name) for tensor in family.tensors}


def _tensor_names(directory: str) -> Iterable[str]:
    try:
        with files.opened(directory) as tensors:
            return list(tensors)
    except UserError:  # There are no weights, or they are damaged.
        return []


def _pattern(name: str) -> str:
    """Returns the name of a tensor with `N` in place of layer indices.

    The first of more than two parts is left out, unless it is an index. It is usually a prefix for the model.
    """
    parts = ["N" if part.isdigit() or part.startswith("{") else part for part in name.split(".")]
    return ".".join(parts[1:] if len(parts) > 2 and "N" not in parts[:1] else parts)
