"""The settings of models: small nested frozen dataclasses, plain Python, so that a config is read without JAX.

A field that is one of several dataclasses is a tagged choice: in a config file each is written as its fields plus
`kind`, so a field of one choice cannot be given to another. All that a config page writes of a model is found here.
"""

from plm_jax.models.heads import Discriminator, NoHead, Pooler, Softmax, SpanBoundary, VocabularyHead
from plm_jax.models.positions import (
    BlockPositions,
    LearnedPositions,
    NoPositions,
    RelativeBias,
    Rotary,
    Rotary2D,
    RotaryScaling,
    SinusoidalPositions,
)
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.settings.decoder import DecoderConfig
from plm_jax.models.settings.electra import ElectraConfig, GeneratorConfig
from plm_jax.models.settings.elmo import CharacterCNNConfig, ElmoConfig, LstmConfig, LstmDropoutConfig
from plm_jax.models.settings.encoder import EncoderConfig
from plm_jax.models.settings.encoder_decoder import EncoderDecoderConfig, SourceEncoderConfig
from plm_jax.models.settings.from_checkpoint import FromCheckpointConfig
from plm_jax.models.settings.parts import (
    AttentionConfig,
    DropoutConfig,
    EmbeddingConfig,
    FanInConfig,
    FeedForwardConfig,
    InitializerConfig,
    NormConfig,
    StackConfig,
)
from plm_jax.models.settings.transformer import TransformerConfig
from plm_jax.models.task_heads import (
    BiLstmConfig,
    ChoiceHead,
    ClassesHead,
    ConcatenatedLayers,
    LastLayer,
    MixedLayers,
    ScoreHead,
    SpanHead,
    TagsHead,
)

__all__ = [
    "AttentionConfig",
    "BiLstmConfig",
    "BlockPositions",
    "CharacterCNNConfig",
    "ChoiceHead",
    "ClassesHead",
    "ConcatenatedLayers",
    "DecoderConfig",
    "Discriminator",
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
    "InitializerConfig",
    "LastLayer",
    "LearnedPositions",
    "LstmConfig",
    "LstmDropoutConfig",
    "MixedLayers",
    "ModelConfig",
    "NoHead",
    "NoPositions",
    "NormConfig",
    "Pooler",
    "RelativeBias",
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
    "TransformerConfig",
    "VocabularyHead",
]
