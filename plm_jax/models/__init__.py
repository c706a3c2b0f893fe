"""Models: settings, and the Linen modules that they build.

Settings are small nested frozen dataclasses. A field that accepts one of several dataclasses is a tagged choice: a
config file sets the `kind` and the fields of the chosen class, and fields of the other classes are rejected.
"""

from plm_jax.models.deberta import ConvolutionConfig
from plm_jax.models.decoder import DecoderConfig
from plm_jax.models.electra import ElectraConfig, GeneratorConfig
from plm_jax.models.elmo import CharacterCNNConfig, ElmoConfig, LstmConfig, LstmDropoutConfig
from plm_jax.models.encoder import EncoderConfig
from plm_jax.models.encoder_decoder import EncoderDecoderConfig, SourceEncoderConfig
from plm_jax.models.from_checkpoint import FromCheckpointConfig
from plm_jax.models.heads import (
    Discriminator,
    Head,
    MaskDecoderHead,
    NoHead,
    Pooler,
    Softmax,
    SpanBoundary,
    VocabularyHead,
)
from plm_jax.models.initializers import FanInConfig, InitializerConfig, TorchLinearConfig
from plm_jax.models.layers import NormConfig
from plm_jax.models.positions import (
    BlockPositions,
    Disentangled,
    LearnedPositions,
    LearnedRelativeBias,
    NoPositions,
    Position,
    RelativeBias,
    RelativeSinusoids,
    Rotary,
    Rotary2D,
    RotaryScaling,
    SinusoidalPositions,
)
from plm_jax.models.protocol import ModelConfig, Module, VocabularyModule
from plm_jax.models.recurrent import BiLstmConfig
from plm_jax.models.task_heads import (
    ChoiceHead,
    ClassesHead,
    ConcatenatedLayers,
    LastLayer,
    MixedLayers,
    ScoreHead,
    SpanHead,
    TagsHead,
)
from plm_jax.models.transformer import (
    AttentionConfig,
    DropoutConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    StackConfig,
    TransformerConfig,
)
from plm_jax.models.xlnet import XlnetConfig

__all__ = [
    "AttentionConfig",
    "BiLstmConfig",
    "BlockPositions",
    "CharacterCNNConfig",
    "ChoiceHead",
    "ClassesHead",
    "ConcatenatedLayers",
    "ConvolutionConfig",
    "DecoderConfig",
    "Discriminator",
    "Disentangled",
    "DropoutConfig",
    "ElectraConfig",
    "ElmoConfig",
    "EmbeddingConfig",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "FanInConfig",
    "FeedForwardConfig",
    "FromCheckpointConfig",
    "GeneratorConfig",
    "Head",
    "InitializerConfig",
    "LastLayer",
    "LearnedPositions",
    "LearnedRelativeBias",
    "LstmConfig",
    "LstmDropoutConfig",
    "MaskDecoderHead",
    "MixedLayers",
    "ModelConfig",
    "Module",
    "NoHead",
    "NoPositions",
    "NormConfig",
    "Pooler",
    "Position",
    "RelativeBias",
    "RelativeSinusoids",
    "Rotary",
    "Rotary2D",
    "RotaryScaling",
    "ScoreHead",
    "SinusoidalPositions",
    "Softmax",
    "SourceEncoderConfig",
    "SpanBoundary",
    "SpanHead",
    "StackConfig",
    "TagsHead",
    "TorchLinearConfig",
    "TransformerConfig",
    "VocabularyHead",
    "VocabularyModule",
    "XlnetConfig",
]
