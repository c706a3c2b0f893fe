"""Strategies of inference. `build` chooses the strategy by the architecture of the model."""

from typing import Any

from plm_jax.generation import infilling
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.strategies.blank_infilling import BlankInfillingStrategy
from plm_jax.generation.strategies.decoder import DecoderStrategy
from plm_jax.generation.strategies.elmo import ElmoStrategy
from plm_jax.generation.strategies.encoder import ElectraStrategy, EncoderStrategy
from plm_jax.generation.strategies.encoder_decoder import EncoderDecoderStrategy
from plm_jax.generation.strategies.strategy import Strategy
from plm_jax.generation.text_format import TextFormat
from plm_jax.models.protocol import Module

# Strategies by `ModelConfig.architecture`; models of other architectures use the base class, which writes nothing.
STRATEGIES: dict[str, type[Strategy]] = {
    "decoder": DecoderStrategy,
    "electra": ElectraStrategy,
    "elmo": ElmoStrategy,
    "encoder": EncoderStrategy,
    "encoder_decoder": EncoderDecoderStrategy,
}


def build(model: Module, params: Any, text: TextFormat, default_decoding: DecodingConfig) -> Strategy:
    """Returns the strategy of a model.

    A decoder fills blanks if `text.fills_blanks` is true and `text.special_ids` contains the ids for blanks. Models of
    an architecture that STRATEGIES lacks get the base class, which generates no text.
    """
    if text.fills_blanks:
        marks = infilling.marks(model.model, text.special_ids)
        if marks is not None:
            return BlankInfillingStrategy(model, params, text, default_decoding, marks)
    kind = STRATEGIES.get(model.model.architecture, Strategy)
    return kind(model, params, text, default_decoding)
