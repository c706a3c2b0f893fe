"""Base class of the transformer architectures: creates the embedding tables and the heads around the stacks."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from plm_jax.models.heads import HeadModule, NoHead
from plm_jax.models.layers import ACTIVATIONS, Dense, Dropout, Stream, look_up, norm
from plm_jax.models.partitioning import constrain, partitioned
from plm_jax.models.protocol import VocabularyModule
from plm_jax.models.tables import GatheredTable
from plm_jax.models.transformer import TransformerConfig


class Architecture(VocabularyModule):
    """Base class of `Decoder`, `Encoder` and `EncoderDecoder`.

    Attributes:
      model: settings.
      dtype: dtype of activations.
      last_stack: name of the stack whose output is the features.
      prefixes: prefixes of parameter names. Each prefix has its own position tables and embedding norm.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("",)
    last_stack: ClassVar[str] = "stack"
    model: TransformerConfig

    def setup(self):
        """Creates the parameters and modules that the settings ask for.

        Parameters: `token_embedding` [V, E], the position scheme's tables [P, E], `token_type_embedding` [T, E],
        `task_type_embedding` [K, E], `head` [V, E], `head_bias` [V]. Modules: `embedding_norm`, `embedding_projection`
        [E, D], `head_transform` [D, E], `head_norm`, `heads_NAME`. E is the width of the tables, by default D. P, T and
        K are the numbers of rows of the tables of positions, token types and tasks. Position tables and
        `embedding_norm` exist once per prefix in `prefixes`.
        """
        embedding, head = self.model.embedding, self.model.vocabulary_head

        def table(name, rows, axis, init):
            value = self.get_variable("params", name)
            if isinstance(value, GatheredTable):  # `param` would reject the shape of the padded matrix.
                return value
            return self.param(name, partitioned(init, (axis, "embed")), (rows, embedding.columns))

        initializer = self.model.initializer
        table_init = initializer.table()
        self.token_embedding = table("token_embedding", embedding.vocab_size, "vocab", table_init)
        of_positions = self.model.position_tables
        self.position_tables = {
            prefix: {name: table.declare(self, f"{prefix}{name}") for name, table in of_positions.items()}
            for prefix in self.prefixes
        }
        if embedding.norm:
            for prefix in self.prefixes:
                setattr(self, f"{prefix}embedding_norm", norm(self.model.norm, self.dtype))
        if embedding.token_types:
            self.token_type_embedding = table("token_type_embedding", embedding.token_types, None, table_init)
        if embedding.task_types:
            self.task_type_embedding = table("task_type_embedding", embedding.task_types, None, table_init)
        self.embedding_dropout = Dropout(self.model.dropout.embedding, self.model.dropout.broadcast)
        if embedding.embedding_size is not None:
            axes, init = (None, "embed"), initializer.matrix()
            self.embedding_projection = Dense(embedding.width, axes, True, init, self.dtype)
        self.heads = {name: HeadModule(head, self.model, self.dtype) for name, head in self.model.heads}
        if isinstance(head, NoHead):
            return
        if head.transform:
            axes, init = ("embed", None), initializer.matrix()
            self.head_transform = Dense(embedding.columns, axes, head.transform_bias, init, self.dtype)
            self.head_norm = norm(self.model.norm, self.dtype)
        if not head.tied:
            self.head = table("head", embedding.vocab_size, "vocab", initializer.unembedding())
        if head.bias:
            bias = partitioned(nn.initializers.zeros, ("vocab",))
            self.head_bias = self.param("head_bias", bias, (embedding.vocab_size,))

    @property
    def tables(self) -> dict[str, str | None]:
        """Logical axis of the rows of each parameter that may be a `GatheredTable`; None: an axis without a name.

        The keys are names of parameters. Parameters that the settings do not ask for are included.
        """
        of_positions = self.model.position_tables
        positions = {
            f"{prefix}{name}": table.axes[0] for prefix in self.prefixes for name, table in of_positions.items()
        }
        types = {"token_type_embedding": None, "task_type_embedding": None}
        return {"token_embedding": "vocab", "head": "vocab"} | types | positions

    def embed(
        self, tokens, positions, token_types=None, block_positions=None, prefix="", *, deterministic, source=None
    ):
        """Returns the embeddings [B, L, D] of tokens.

        Args:
          tokens: [B, L].
          positions: [B or 1, L].
          token_types: [B, L]; None: 0 everywhere. Ignored by a model without token types.
          block_positions: positions within blanks [B, L]; None: 0 everywhere.
          prefix: one of `prefixes`.
          deterministic: whether dropout is disabled.
          source: outputs of a source encoder [B, L, E], which replace the token embeddings; None: no source encoder.
        """
        embedding, position = self.model.embedding, self.model.attention.position
        x = look_up(self.token_embedding, tokens, self.dtype) if source is None else source
        if embedding.scale_by_width and source is None:
            x = x * embedding.width**0.5
        x = position.embed(x, self.position_tables[prefix], positions, block_positions)
        if embedding.token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x = x + look_up(self.token_type_embedding, types, self.dtype)
        if embedding.task_types:
            x = x + look_up(self.task_type_embedding, jnp.zeros_like(tokens), self.dtype)
        if embedding.norm:
            x = getattr(self, f"{prefix}embedding_norm")(x)
        x = self.embedding_dropout(x, deterministic=deterministic)
        if embedding.embedding_size is not None:
            x = self.embedding_projection(x)
        return constrain(x, "batch", "length", "embed")

    def states(self, *args, **kwargs):
        """Returns the embeddings and the output of each layer of the last stack, [layers + 1, B, L, D].

        The last entry is the result of `features`. The collection `intermediates` must be mutable. The arguments are
        the same as for `features`.
        """
        features = self.features(*args, **kwargs)
        (embedded,) = self.get_variable("intermediates", "embedded")
        *_, hidden = getattr(self, self.last_stack).get_variable("intermediates", "hidden")
        return jnp.concatenate([embedded[None], hidden[:-1], features[None]])

    @override
    def head_features(self, features: Float[Array, "*rows dim"]) -> Float[Array, "*rows columns"]:
        """Returns the input of the unembedding, [..., D] → [..., E]."""
        head = self.model.vocabulary_head
        if head.transform:
            features = self.head_norm(ACTIVATIONS[head.transform](self.head_transform(features)))
        return features * self.model.embedding.width**-0.5 if head.scale_by_width else features

    def unembedding(self) -> tuple[Float[Array, "vocab columns"] | GatheredTable, Float[Array, " vocab"] | None]:
        """Returns a pair: the matrix [V, E] of the vocabulary head, and the bias [V] of the head or None."""
        head = self.model.vocabulary_head
        return self.token_embedding if head.tied else self.head, self.head_bias if head.bias else None

    def head_module(self, name):
        """Returns the `HeadModule` of a head in the settings' `named_heads`, except the vocabulary head."""
        return self.heads[name]

    @override
    def head_output(self, features: Stream, name: str, **inputs: Any) -> Any:
        """Returns the output of a head in the settings' `named_heads`; for "vocabulary", the logits.

        Args:
          features: [B, L, D].
          name: name of the head.
          inputs: further inputs of the head.
        """
        return self.logits(features) if name == "vocabulary" else self.head_module(name)(features, **inputs)

    def __call__(self, *args, **kwargs):
        """Returns logits, float32 [B, L, V], or the features if there is no vocabulary head.

        The arguments are the same as for `features`.
        """
        features = self.features(*args, **kwargs)
        if self.is_initializing():
            for name, head in self.model.named_heads.items():
                if name != "vocabulary":
                    self.head_output(features, name, **head.init_inputs(features))
        return features if isinstance(self.model.vocabulary_head, NoHead) else self.logits(features)
