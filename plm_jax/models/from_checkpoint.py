"""What a config says of a model that a checkpoint brings."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.encoder_decoder import SourceEncoderConfig
from plm_jax.models.heads import Head
from plm_jax.models.protocol import ModelConfig


@dataclass(frozen=True, kw_only=True)
class FromCheckpointConfig(ModelConfig):
    """Stands in a config for the model that `finetune --checkpoint` names; what is None is as the checkpoint has it.

    Attributes:
      dropout: all rates, those of a task's head too.
      heads: `task`: that of the task; without it the checkpoint's, if that is of the objective's kind and labels, or
        else one as the model's family lays it out. Labels that it does not name are those of the sources.
      source_encoder: of an encoder-decoder, a new one; None: as the checkpoint has it.
      scan_layers, remat, attention_kernel, pipeline_microbatches: as of any transformer.
    """

    kind: ClassVar[str] = "from_checkpoint"
    stands_in: ClassVar[bool] = True
    dropout: ranges.ShareBelowOne | None = None
    heads: tuple[tuple[str, Head], ...] = ()
    source_encoder: SourceEncoderConfig | None = None
    scan_layers: bool | None = None
    remat: Literal["none", "dots", "minimal", "attention", "full", "offload"] | None = None
    attention_kernel: Literal["auto", "xla", "flash", "cudnn"] | None = None
    pipeline_microbatches: Annotated[int, ranges.Range(0, 2**20)] | None = None

    def __post_init__(self):
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise UserError(f"config.model.dropout is {self.dropout}: give 0 to below 1, or None")
