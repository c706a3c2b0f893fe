"""Settings of a model that is loaded from a checkpoint."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.encoder_decoder import SourceEncoderConfig
from plm_jax.models.heads import Head
from plm_jax.models.protocol import ModelConfig


@dataclass(frozen=True, kw_only=True)
class FromCheckpointConfig(ModelConfig):
    """A placeholder for the model of `finetune --checkpoint`; fields that are None keep the checkpoint's values.

    Attributes:
      dropout: rate of every dropout layer, including the dropout layers of the task's head.
      heads: heads by name; the task's head has the name `task`. Without `task`, the checkpoint's task head is kept if
        its kind and its labels fit the objective and the sources. Otherwise, the default head of the model's family is
        created. A task head without labels gets the labels of the sources.
      source_encoder: new source encoder for an encoder-decoder.
      scan_layers: whether one block is compiled and run in a loop, as in `TransformerConfig`.
      remat: rematerialization, as in `TransformerConfig`.
      attention_kernel: implementation of attention, as in `TransformerConfig`.
      pipeline_microbatches: maximum number of microbatches with pipeline stages, as in `TransformerConfig`.
    """

    kind: ClassVar[str] = "from_checkpoint"
    is_placeholder: ClassVar[bool] = True
    dropout: ranges.ShareBelowOne | None = None
    heads: tuple[tuple[str, Head], ...] = ()
    source_encoder: SourceEncoderConfig | None = None
    scan_layers: bool | None = None
    remat: Literal["none", "dots", "minimal", "attention", "full", "offload"] | None = None
    attention_kernel: Literal["auto", "xla", "flash", "cudnn"] | None = None
    pipeline_microbatches: Annotated[int, ranges.Range(0, 2**20)] | None = None

    def __post_init__(self):
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise UserError(f"config.model.dropout is {self.dropout}: set it to at least 0 and below 1, or to None")
