"""How models read and write: one strategy for each architecture, and one for decoders that fill blanks."""

from typing import TYPE_CHECKING

from plm_jax.generation import infilling
from plm_jax.generation.strategies.blank_infilling import BlankInfillingStrategy
from plm_jax.generation.strategies.decoder import DecoderStrategy
from plm_jax.generation.strategies.elmo import ElmoStrategy
from plm_jax.generation.strategies.encoder import ElectraStrategy, EncoderStrategy
from plm_jax.generation.strategies.encoder_decoder import EncoderDecoderStrategy
from plm_jax.generation.strategies.strategy import Strategy

if TYPE_CHECKING:
    from plm_jax.inference.language_model import LanguageModel

# By what `Model.architecture` says; any other model is read as the base does, and writes nothing.
STRATEGIES = {
    "decoder": DecoderStrategy,
    "electra": ElectraStrategy,
    "elmo": ElmoStrategy,
    "encoder": EncoderStrategy,
    "encoder_decoder": EncoderDecoderStrategy,
}


def of(lm: "LanguageModel") -> Strategy:
    """A model's strategy."""
    if lm.run is None or lm.run.objective.fills_blanks:
        marks = infilling.marks(lm.config, lm.special_ids)
        if marks is not None:
            return BlankInfillingStrategy(lm, marks)
    return STRATEGIES.get(lm.config.architecture, Strategy)(lm)
