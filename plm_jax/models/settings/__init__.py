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
from plm_jax.models.protocol import Model
from plm_jax.models.settings.decoder import Decoder
from plm_jax.models.settings.electra import Electra, Generator
from plm_jax.models.settings.elmo import CharacterCNN, Elmo, Lstm, LstmDropout
from plm_jax.models.settings.encoder import Encoder
from plm_jax.models.settings.encoder_decoder import EncoderDecoder, SourceEncoder
from plm_jax.models.settings.from_checkpoint import FromCheckpoint
from plm_jax.models.settings.parts import (
    Attention,
    Dropout,
    Embedding,
    FanIn,
    FeedForward,
    Initializer,
    Norm,
    Stack,
)
from plm_jax.models.settings.transformer import Transformer
from plm_jax.models.task_heads import (
    BiLstm,
    Choice,
    Classes,
    ConcatenatedLayers,
    LastLayer,
    MixedLayers,
    Score,
    Span,
    Tags,
)

__all__ = [
    "Attention",
    "BiLstm",
    "BlockPositions",
    "CharacterCNN",
    "Choice",
    "Classes",
    "ConcatenatedLayers",
    "Decoder",
    "Discriminator",
    "Dropout",
    "Electra",
    "Elmo",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "FanIn",
    "FeedForward",
    "FromCheckpoint",
    "Generator",
    "Initializer",
    "LastLayer",
    "LearnedPositions",
    "Lstm",
    "LstmDropout",
    "MixedLayers",
    "Model",
    "NoHead",
    "NoPositions",
    "Norm",
    "Pooler",
    "RelativeBias",
    "Rotary",
    "Rotary2D",
    "RotaryScaling",
    "Score",
    "SinusoidalPositions",
    "Softmax",
    "SourceEncoder",
    "Span",
    "SpanBoundary",
    "Stack",
    "Tags",
    "Transformer",
    "VocabularyHead",
]
