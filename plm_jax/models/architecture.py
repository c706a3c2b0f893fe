"""What every architecture has: tables of embeddings before its stacks, a head to the vocabulary after them."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.models import tables
from plm_jax.models.heads import HeadModule, NoHead
from plm_jax.models.layers import ACTIVATIONS, Dense, Dropout, look_up, norm
from plm_jax.models.partitioning import constrain, partitioned
from plm_jax.models.protocol import VocabularyModule
from plm_jax.models.transformer import TransformerConfig


class Architecture(VocabularyModule):
    """The base of `Decoder`, `Encoder` and `EncoderDecoder`.

    Attributes:
      model: its settings.
      dtype: of activations.
      last_stack: which of its stacks gives the features.
      prefixes: of the names of what the architecture has once for each of its texts.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("",)
    last_stack: ClassVar[str] = "stack"
    model: TransformerConfig

    def setup(self):
        """Parameters: `token_embedding` [V, E], the position scheme's tables [P, E], `token_type_embedding` [T, E],
        `head` [V, E], `head_bias` [V]; modules `embedding_norm`, `embedding_projection` [E, D], `head_transform`
        [D, E], `head_norm`, `heads_NAME`: what the settings ask for. E is the tables' width, by default D.

        Positions and the norm of embeddings are there once for each of `prefixes`.
        """
        embedding, head = self.model.embedding, self.model.vocabulary_head

        def table(name, rows, axis, init):
            given = self.get_variable("params", name)
            if isinstance(
                given, tables.GatheredTable
            ):  # Linen knows one by its shape, which is that of the padded matrix.
                return given
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
        self.embedding_dropout = Dropout(self.model.dropout.embedding, self.model.dropout.broadcast)
        if embedding.embedding_size is not None:
            axes, init = (None, "embed"), initializer.matrix()
            self.embedding_projection = Dense(embedding.width, axes, True, init, self.dtype)
        self.heads = {name: HeadModule(head, self.model, self.dtype) for name, head in self.model.heads}
        if isinstance(head, NoHead):
            return
        if head.transform:
            axes, init = ("embed", None), initializer.matrix()
            self.head_transform = Dense(embedding.columns, axes, True, init, self.dtype)
            self.head_norm = norm(self.model.norm, self.dtype)
        if not head.tied:
            self.head = table("head", embedding.vocab_size, "vocab", initializer.unembedding())
        if head.bias:
            bias = partitioned(nn.initializers.zeros, ("vocab",))
            self.head_bias = self.param("head_bias", bias, (embedding.vocab_size,))

    @property
    def tables(self) -> dict[str, str | None]:
        """Returns the logical axis of the rows of each parameter that may be a `tables.GatheredTable`."""
        of_positions = self.model.position_tables
        positions = {
            f"{prefix}{name}": table.axes[0] for prefix in self.prefixes for name, table in of_positions.items()
        }
        return {"token_embedding": "vocab", "token_type_embedding": None, "head": "vocab"} | positions

    def embed(self, tokens, positions, token_types=None, block_positions=None, prefix="", *, deterministic, read=None):
        """[B, L, D] of tokens [B, L], positions [B or 1, L] and, where the model has them, token types [B, L] and
        places within blanks [B, L]; of the last two, None is 0 everywhere. `prefix` is which of `prefixes` they are of,
        `read` [B, L, E] what stands in the place of the tokens' embeddings.
        """
        embedding, position = self.model.embedding, self.model.attention.position
        x = look_up(self.token_embedding, tokens, self.dtype) if read is None else read
        if embedding.scale_by_width and read is None:
            x = x * embedding.width**0.5
        x = position.embed(x, self.position_tables[prefix], positions, block_positions)
        if embedding.token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x = x + look_up(self.token_type_embedding, types, self.dtype)
        if embedding.norm:
            x = getattr(self, f"{prefix}embedding_norm")(x)
        x = self.embedding_dropout(x, deterministic=deterministic)
        if embedding.embedding_size is not None:
            x = self.embedding_projection(x)
        return constrain(x, "batch", "length", "embed")

    def states(self, *args, **kwargs):
        """The embeddings, then what each layer of the last stack gives, [layers + 1, B, L, D], the last after the final
        norm; arguments as `features`. The collection `intermediates` is to be mutable.
        """
        features = self.features(*args, **kwargs)
        (embedded,) = self.get_variable("intermediates", "embedded")
        *_, hidden = getattr(self, self.last_stack).get_variable("intermediates", "hidden")
        return jnp.concatenate([embedded[None], hidden[:-1], features[None]])

    @override
    def head_features(self, features):
        """What the unembedding is applied to, [..., D] → [..., E]."""
        head = self.model.vocabulary_head
        if head.transform:
            features = self.head_norm(ACTIVATIONS[head.transform](self.head_transform(features)))
        return features * self.model.embedding.width**-0.5 if head.scale_by_width else features

    def unembedding(self):
        """The head's matrix [V, E] and bias [V] (None: it has none)."""
        head = self.model.vocabulary_head
        return self.token_embedding if head.tied else self.head, self.head_bias if head.bias else None

    def head_module(self, name):
        """The `HeadModule` of one of the settings' `named_heads`, not the vocabulary's."""
        return self.heads[name]

    @override
    def head_output(self, features, name, **inputs):
        """What one of the settings' `named_heads` gives of features [B, L, D] and what else it reads; of the
        vocabulary's the logits.
        """
        return self.logits(features) if name == "vocabulary" else self.head_module(name)(features, **inputs)

    def __call__(self, *args, **kwargs):
        """Logits, float32 [B, L, V], or the features of a model without that head; arguments as `features`."""
        features = self.features(*args, **kwargs)
        if self.is_initializing():
            for name, head in self.model.named_heads.items():
                if name != "vocabulary":
                    self.head_output(features, name, **head.init_inputs(features))
        return features if isinstance(self.model.vocabulary_head, NoHead) else self.logits(features)
