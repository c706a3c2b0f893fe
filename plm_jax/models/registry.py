"""From settings to modules and parameters, whatever the architecture."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models import elmo, settings
from plm_jax.models.architecture import Architecture
from plm_jax.models.decoder import Decoder
from plm_jax.models.electra import Electra
from plm_jax.models.encoder import Encoder
from plm_jax.models.encoder_decoder import EncoderDecoder

ARCHITECTURES = {
    "decoder": Decoder,
    "encoder": Encoder,
    "electra": Electra,
    "encoder_decoder": EncoderDecoder,
    "elmo": elmo.Elmo,
}


def build(model: settings.Transformer | settings.Elmo, dtype: Any = jnp.float32) -> Architecture:
    """The module of a model's settings; `dtype` is its activations'."""
    return ARCHITECTURES[model.kind](model, dtype)


def init_params(module: Architecture, key: jax.Array):
    """Fresh parameters, boxed with their logical axes."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    if isinstance(module, elmo.Elmo):
        tokens = jnp.zeros((1, 1, module.model.embedding.max_characters), jnp.int32)
    inputs = (tokens, tokens) if isinstance(module, EncoderDecoder) else (tokens,)
    return module.init(key, *inputs)["params"]


def new_carry(module: Architecture, rows: int):
    """What the loss carries from batch to batch before the first: a tree of arrays [rows, ...], boxed; mostly empty."""
    return elmo.new_carry(module.model, rows) if isinstance(module, elmo.Elmo) else {}


def shapes(model: settings.Transformer | settings.Elmo):
    """The parameters' shapes and types, as a tree of `jax.ShapeDtypeStruct`, without making them."""
    return nn.unbox(jax.eval_shape(lambda: init_params(build(model), jax.random.key(0))))
