"""Rotary positions in a `config.json`: `rope_parameters` of transformers 5, before it `rope_theta`, `rope_scaling`."""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.hub.family import check, check_size, known, values

# How `config.json` calls the frequencies → whether they are scaled.
TYPES = {"default": False, "llama3": True}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def to_settings(config: Mapping[str, Any], *, fraction: float, interleaved: bool, length: int) -> models.Rotary:
    """The positions that a `config.json` describes.

    Args:
      fraction: the share of a head that is rotated where the file says nothing.
      interleaved: as in `models.Rotary`; the file does not say it, the architecture does.
      length: tokens that the model is meant for, where the file says nothing.

    Raises:
      UserError: a kind of scaling, or a value, that is beyond ours.
    """
    rope: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        given = config.get(name) or {}
        check(name, given, isinstance(given, Mapping), "a mapping of names")
        rope |= given
    scaled = known("rope_type", rope.get("rope_type", rope.get("type", "default")), TYPES)
    value = values({**config, **rope}, {"rope_theta": 10_000.0, "partial_rotary_factor": fraction})
    scaling = values(rope, SCALING)
    meant_for = config.get("max_position_embeddings", length)
    check_size("max_position_embeddings", meant_for)
    return models.Rotary(
        theta=value["rope_theta"],
        fraction=value["partial_rotary_factor"],
        interleaved=interleaved,
        scaling=models.RotaryScaling(*scaling.values()) if scaled else None,
        length=meant_for,
    )


def to_config(position: Any) -> dict[str, Any]:
    """What of a `config.json` tells these positions, to transformers 4 and 5; nothing of those that are not rotary."""
    if not isinstance(position, models.Rotary):
        return {}
    scaling, kept = None, position.scaling
    if kept is not None:
        numbers = kept.factor, kept.low_frequency_factor, kept.high_frequency_factor, kept.original_length
        scaling = {"rope_type": "llama3", **dict(zip(SCALING, numbers, strict=True))}
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": position.theta}
    if position.fraction != 1.0:
        parameters["partial_rotary_factor"] = position.fraction
    return {
        "max_position_embeddings": position.length,
        "rope_theta": position.theta,
        "rope_scaling": scaling,
        "rope_parameters": parameters,
    }
