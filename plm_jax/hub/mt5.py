"""mT5 (Xue et al. 2021) as Hugging Face keeps it: a T5 1.1 whose SentencePiece model may hold the sentinels itself."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.hub import t5

# What `MT5Config` takes where `config.json` says nothing, and T5's does not; the head is never scaled.
DEFAULTS = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}


def to_settings(config: Mapping[str, Any]) -> models.EncoderDecoderConfig:
    """The settings that an mT5 `config.json` describes.

    Raises:
      UserError: as for T5.
    """
    return t5.to_settings({**DEFAULTS, **config, "scale_decoder_outputs": False})


def to_config(model: models.EncoderDecoderConfig) -> dict[str, Any]:
    """The `config.json` of an mT5 with these settings; see T5's."""
    config = t5.to_config(model) | {"architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5"}
    del config["scale_decoder_outputs"]
    return config


def _own_sentinels(files: list[bytes]) -> int:
    """How many sentinels are pieces of the SentencePiece model."""
    return files[0].count(b"<extra_id_")


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """How many sentinels there are above the pieces."""
    added = special_ids.get("sentinels", 0) - _own_sentinels(files)
    return t5.tokenizer_config(files, {"sentinels": added})


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """How many sentinels there are, among the pieces (as in the published models) and above them."""
    return {"sentinels": _own_sentinels(files) + tokenizer_config.get("extra_ids", 0)}


FAMILY = replace(
    t5.FAMILY,
    name="mT5",
    model_type="mt5",
    to_settings=to_settings,
    to_config=to_config,
    tokenizer_config=tokenizer_config,
    special_ids=special_ids,
)
