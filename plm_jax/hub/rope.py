"""Fields of `config.json` for rotary positions.

transformers 5 has the field `rope_parameters`. transformers 4 has the fields `rope_theta` and `rope_scaling`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.fields import Entry, Field, check, known, read, write

# `rope_type` → whether the frequencies are scaled.
TYPES = {"default": False, "llama3": True}
# Fields of LLaMA 3.1's scaling and the settings of a `RotaryScaling`.
SCALING = (
    Field("factor", "factor", 8.0),
    Field("low_freq_factor", "low_frequency_factor", 1.0),
    Field("high_freq_factor", "high_frequency_factor", 4.0),
    Field("original_max_position_embeddings", "original_length", 8192),
)


@dataclass(frozen=True)
class RotaryFields(Entry):
    """The fields with the frequencies of rotary positions, in the formats of transformers 4 and 5.

    The fields are not written for models with other positions.

    Attributes:
      fraction: rotated fraction of the dimensions of a head, if the file does not contain it. If this default is not 1,
        `partial_rotary_factor` is also written outside `rope_parameters`.
      theta: base of the frequencies, if the file does not contain it.
    """

    fraction: float = 1.0
    theta: float = 10_000.0

    @override
    def settings(self, values):
        rope: dict[str, Any] = {}
        for name in ("rope_parameters", "rope_scaling"):
            parameters = values.get(name) or {}
            check(name, parameters, isinstance(parameters, Mapping), "a mapping of names")
            rope |= parameters
        kind = rope.get("rope_type", rope.get("type", "default"))
        known("rope_type", kind, TYPES)
        scaling = models.RotaryScaling(**read(SCALING, rope)) if TYPES[kind] else None
        frequencies = (
            Field("rope_theta", "attention.position.theta", self.theta),
            Field("partial_rotary_factor", "attention.position.fraction", self.fraction),
        )
        return read(frequencies, {**values, **rope}) | {"attention.position.scaling": scaling}

    @override
    def fields(self, model, fields):
        position = model.attention.position
        if not isinstance(position, models.Rotary):
            return {}
        scaling = position.scaling and {"rope_type": "llama3", **write(SCALING, position.scaling)}
        parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": position.theta}
        fraction = {"partial_rotary_factor": position.fraction}
        return {
            **(fraction if self.fraction != 1.0 else {}),
            "rope_theta": position.theta,
            "rope_scaling": scaling,
            "rope_parameters": parameters | (fraction if position.fraction != 1.0 else {}),
        }
