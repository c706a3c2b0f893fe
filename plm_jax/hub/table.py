"""What a family is to the hub: a table of names and a pair of functions between `config.json` and our settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plm_jax.models import settings


@dataclass(frozen=True)
class Tensor:
    """A Hugging Face tensor and what it holds.

    Attributes:
      name: its full name; `{layer}` stands for the block's number, and the parameters are then stacked [layers, ...].
      parameters: our paths, joined by `/`; several lie side by side along the tensor's last axis.
    """

    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """How Hugging Face keeps a family's models.

    Attributes:
      model_type: what `config.json` calls it.
      prefix: the part of the names that a file of the bare model, without its head, leaves out.
      tensors: the table; a row whose parameters a model lacks does not apply to it.
      buffers: regular expression of names, without the prefix, that hold no weights.
      to_settings: `config.json` → the model's settings; UserError for what those cannot say.
      to_config: the inverse, without the special ids; UserError for what the family cannot say.
    """

    model_type: str
    prefix: str
    tensors: tuple[Tensor, ...]
    buffers: str
    to_settings: Callable[[Mapping[str, Any]], settings.Decoder]
    to_config: Callable[[settings.Decoder], dict[str, Any]]
