"""Training objectives: pure NumPy functions `(example, rng) → row` that add noise and targets."""

import dataclasses
from typing import Any

from plm_jax.common import trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.objectives.bidirectional_lm import BidirectionalLM
from plm_jax.objectives.blank_infilling import BlankInfilling
from plm_jax.objectives.causal import Causal
from plm_jax.objectives.classification import Classification, MultiLabelClassification, Regression
from plm_jax.objectives.decoder_text_to_text import DecoderTextToText
from plm_jax.objectives.denoising import Denoising
from plm_jax.objectives.examples import ExampleRows
from plm_jax.objectives.labeled import LabeledObjective, truncate_longest
from plm_jax.objectives.masked_lm import MaskedLM
from plm_jax.objectives.multiple_choice import MultipleChoice
from plm_jax.objectives.objective import BoundObjective, Objective
from plm_jax.objectives.packing import PackedFormat
from plm_jax.objectives.permutation_lm import PermutationLM
from plm_jax.objectives.prefix_lm import DecoderPrefixLM, FullLM, PrefixLM
from plm_jax.objectives.replaced_token import ReplacedToken
from plm_jax.objectives.row_format import RowFormat
from plm_jax.objectives.span_corruption import SpanCorruption
from plm_jax.objectives.span_extraction import ContextWindow, SpanExtraction
from plm_jax.objectives.span_masked_lm import SpanMaskedLM
from plm_jax.objectives.special import Special
from plm_jax.objectives.tagging import Tagging
from plm_jax.objectives.token_corruption import Deshuffling, DropTokens, MaskTokens, ReplaceSpans
from plm_jax.objectives.translation_lm import TranslationLM
from plm_jax.objectives.ul2 import UL2, Denoiser

__all__ = [
    "UL2",
    "BidirectionalLM",
    "BlankInfilling",
    "BoundObjective",
    "Causal",
    "Classification",
    "ContextWindow",
    "DecoderPrefixLM",
    "DecoderTextToText",
    "Denoiser",
    "Denoising",
    "Deshuffling",
    "DropTokens",
    "ExampleRows",
    "FullLM",
    "LabeledObjective",
    "MaskTokens",
    "MaskedLM",
    "MultiLabelClassification",
    "MultipleChoice",
    "Objective",
    "PackedFormat",
    "PermutationLM",
    "PrefixLM",
    "Regression",
    "ReplaceSpans",
    "ReplacedToken",
    "RowFormat",
    "SpanCorruption",
    "SpanExtraction",
    "SpanMaskedLM",
    "Special",
    "Tagging",
    "TranslationLM",
    "get",
    "truncate_longest",
]


def get(name: str, special: Special | None = None, **settings: Any) -> BoundObjective:
    """Returns the objective of a kind, for example `get("causal")`.

    Args:
      special: special ids of the vocabulary; None: the vocabulary has none.

    Raises:
      UserError: the kind or a setting is unknown, or a value is invalid.
    """
    if name not in Objective.choices:
        raise UserError(f"there is no objective '{name}': {nearest(name, Objective.choices)}")
    choice: Any = Objective.choices[name]
    known = [f.name for f in dataclasses.fields(choice)]
    for setting in settings:
        if setting not in known:
            raise UserError(f"objective '{name}' has no setting '{setting}': {nearest(setting, known)}")
    return BoundObjective(trees.checked(choice(**settings), "config.objective"), special or Special())
