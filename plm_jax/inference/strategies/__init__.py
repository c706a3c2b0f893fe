"""How models read and write: one strategy for each architecture, and one for decoders that fill blanks."""

from typing import TYPE_CHECKING

from plm_jax.inference import infilling
from plm_jax.inference.strategies.blank_infilling import BlankInfilling
from plm_jax.inference.strategies.decoder import Decoder
from plm_jax.inference.strategies.elmo import Elmo
from plm_jax.inference.strategies.encoder import Electra, Encoder
from plm_jax.inference.strategies.encoder_decoder import EncoderDecoder
from plm_jax.inference.strategies.strategy import Strategy

if TYPE_CHECKING:
    from plm_jax.inference.language_model import LanguageModel

# By what `Model.architecture` says; any other model is read as the base does, and writes nothing.
STRATEGIES = {
    "decoder": Decoder,
    "electra": Electra,
    "elmo": Elmo,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
}


def of(lm: "LanguageModel") -> Strategy:
    """A model's strategy."""
    if lm.run is None or lm.run.objective.fills_blanks:
        marks = infilling.marks(lm.config, lm.special_ids)
        if marks is not None:
            return BlankInfilling(lm, marks)
    return STRATEGIES.get(lm.config.architecture, Strategy)(lm)
