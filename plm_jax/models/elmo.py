"""ELMo's bidirectional language model (Peters et al. 2018) as in allenai/bilm-tf, and the mix of its layers.

Shapes: B batch, S the two directions (forward, backward), L length, C characters of a word, D width, M units of an
LSTM's memory, N filters, V vocabulary. Parameters are float32 and cast to `dtype` where they are used; the LSTMs'
gates and states stay float32. All LSTMs of a stack, and all highway layers, lie on a leading `layers` axis.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models import recurrent
from plm_jax.models.heads import Head, HeadModule, NoHead, Softmax
from plm_jax.models.initializers import InitializerConfig
from plm_jax.models.layers import ACTIVATIONS, Dense, NormConfig
from plm_jax.models.partitioning import constrain, partitioned
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.stack import loop, recomputed
from plm_jax.models.transformer import DropoutConfig

# A word's bytes, and the beginnings and ends of sentences and words, and what fills a word up.
CHARACTERS = 261
SIDES = ("batch", None, "length", "embed")


@dataclass(frozen=True)
class CharacterCNNConfig:
    """Embeddings of words made from their characters by a CNN (Kim et al. 2016), as in allenai/bilm-tf.

    Attributes:
      vocab_size: number of words that the head tells apart; 0 if there is no head and the number is unknown.
      width: of a word's vector, and of what each LSTM gives.
      dim: of a character's vector.
      filters: (characters wide, how many), each applied wherever it fits; of each the largest value stays.
      max_characters: of a word, its begin and end among them; a longer one is cut.
      activation: after the largest value is taken.
      highway_layers: between the filters and the projection to `width` (Srivastava et al. 2015).
    """

    vocab_size: ranges.LengthOrZero
    width: ranges.Width = 512
    dim: ranges.Width = 16
    filters: tuple[tuple[ranges.Width, ranges.Width], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    max_characters: ranges.Width = 50
    activation: Literal["relu", "tanh"] = "relu"
    highway_layers: ranges.Layers = 2

    @property
    def columns(self) -> int:
        """The width of a word's vector."""
        return self.width

    def __post_init__(self):
        widest = max((width for width, _ in self.filters), default=0)
        if not self.filters or min(min(pair) for pair in self.filters) < 1 or widest > self.max_characters:
            raise UserError(
                f"embedding.filters are {self.filters}: give (characters, filters), both at least 1, at most "
                f"{self.max_characters} characters"
            )


@dataclass(frozen=True)
class LstmConfig:
    """Stacked LSTMs with a projection of their output (Sak et al. 2014), one stack for each direction.

    Attributes:
      cell: units of the memory.
      cell_clip, projection_clip: the largest absolute value of the memory and of what is given.
    """

    layers: ranges.Layers = 2
    cell: ranges.Width = 4096
    cell_clip: ranges.Positive = 3.0
    projection_clip: ranges.Positive = 3.0


@dataclass(frozen=True)
class LstmDropoutConfig:
    """Dropout rates: on the input of each LSTM, on the output of the last."""

    input: ranges.ShareBelowOne = 0.0
    output: ranges.ShareBelowOne = 0.0

    rates = DropoutConfig.rates
    all_at = DropoutConfig.all_at


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """A bidirectional language model (Peters et al. 2018): LSTMs that read forward and others that read backward.

    Attributes:
      heads: as of `Transformer`; they read both directions side by side.
      scan_layers, remat: as in `Transformer`, of whose values `remat` has three.
    """

    kind: ClassVar[str] = "elmo"
    remat_levels = ("none", "dots", "full")
    any_order = False
    inputs = ("characters", "mask")
    embedding: CharacterCNNConfig
    lstm: LstmConfig = LstmConfig()
    # Those of heads of tasks.
    initializer = InitializerConfig()
    norm = NormConfig()
    head: Softmax | NoHead = Softmax()
    dropout: LstmDropoutConfig = LstmDropoutConfig()
    heads: tuple[tuple[str, Head], ...] = ()
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"

    def __post_init__(self):
        if isinstance(self.head, Softmax) and not self.embedding.vocab_size:
            raise UserError("embedding.vocab_size is 0: give the number of words that the head tells apart")

    @property
    def vocab_size(self) -> int:
        """Words that the head tells apart."""
        return self.embedding.vocab_size

    @property
    def max_characters(self) -> int:
        """Of a word, its begin and end among them."""
        return self.embedding.max_characters

    @property
    def named_heads(self) -> dict[str, Head]:
        """The softmax, after the words so far and before those to come, and the others."""
        own = () if isinstance(self.head, NoHead) else ("vocabulary", "backward")
        return dict.fromkeys(own, self.head) | dict(self.heads)

    @property
    def num_states(self) -> int:
        """The words' vectors and each layer."""
        return self.lstm.layers + 1

    @property
    def state_width(self) -> int:
        """Both directions'."""
        return 2 * self.embedding.width

    def module(self, dtype):
        """An `Elmo`."""
        return Elmo(self, dtype)

    def init_inputs(self):
        """One word's characters."""
        return {"characters": jnp.zeros((1, 1, self.max_characters), jnp.int32)}

    def new_carry(self, rows):
        """The state of the LSTMs before the first word."""
        return new_carry(self, rows)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Each direction reads every word and predicts one at each."""
        embedding, lstm = self.embedding, self.lstm
        places = ((width, number, embedding.max_characters - width + 1) for width, number in embedding.filters)
        filters = sum(number for _, number in embedding.filters)
        products = sum(width * embedding.dim * number * fits for width, number, fits in places)
        products += 2 * embedding.highway_layers * filters**2 + filters * embedding.width
        products += lstm.layers * (2 * embedding.width * 4 * lstm.cell + lstm.cell * embedding.width)
        products += embedding.width * (samples + 1 if samples else embedding.vocab_size)
        return 2 * length * products + sum(head.products(self, length, targets) for _, head in self.heads)


class CharacterCNN(nn.Module):
    """A word's vector from its characters."""

    model: ElmoConfig
    dtype: Any

    @nn.compact
    def __call__(self, characters):
        """int32 [..., C] → [..., D]."""
        embedding = self.model.embedding
        activation = ACTIVATIONS[embedding.activation]
        table = partitioned(recurrent.uniform(1.0), (None, None))
        table = self.param("characters", table, (CHARACTERS, embedding.dim))
        x_WCE = table.astype(self.dtype)[characters.reshape(-1, characters.shape[-1])]
        filters = self.param("filters", _init_filters, embedding)
        pooled = [activation(_largest(x_WCE, filters[f"{i}"], self.dtype)) for i in range(len(filters))]
        x_WN = jnp.concatenate(pooled, axis=-1)
        blocks = self.param("blocks", _init_highway, embedding.highway_layers, x_WN.shape[-1])
        blocks = jax.tree.map(lambda leaf: leaf.astype(self.dtype), blocks)

        def highway(x, layer):
            gate = nn.sigmoid(x @ layer["carry"]["kernel"] + layer["carry"]["bias"])
            new = nn.relu(x @ layer["transform"]["kernel"] + layer["transform"]["bias"])
            return gate * new + (1 - gate) * x, None

        x_WN, _ = loop(self.model.scan_layers)(highway, x_WN, blocks)
        init = nn.initializers.normal(x_WN.shape[-1] ** -0.5)
        x_WD = Dense(embedding.width, ("mlp", "embed"), True, init, self.dtype, name="projection")(x_WN)
        return x_WD.reshape(*characters.shape[:-1], embedding.width)


def _largest(x_WCE, of_width, dtype):
    """The largest value of each filter of a width over the places where it fits, [words, filters]."""
    kernel, bias = of_width["kernel"].astype(dtype), of_width["bias"].astype(dtype)
    found = jax.lax.conv_general_dilated(x_WCE, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return found.max(1) + bias


def _init_filters(key, embedding):
    def of(width, number):
        return {
            "kernel": (recurrent.uniform(0.05), (None, None, "mlp"), (width, embedding.dim, number)),
            "bias": (nn.initializers.zeros, ("mlp",), (number,)),
        }

    return recurrent.parameters(key, {f"{i}": of(*pair) for i, pair in enumerate(embedding.filters)})


def _init_highway(key, layers, width):
    def gate(bias):
        return {
            "kernel": (nn.initializers.normal(width**-0.5), ("layers", "embed", "mlp"), (layers, width, width)),
            "bias": (nn.initializers.constant(bias), ("layers", "mlp"), (layers, width)),
        }

    # At first most of what comes is carried on.
    return recurrent.parameters(key, {"carry": gate(-2.0), "transform": gate(0.0)})


class Lstm(nn.Module):
    """The LSTMs of both directions. Each reads from left to right: who wants the backward one to read a text from its
    end turns the text round.
    """

    model: ElmoConfig
    dtype: Any

    @nn.compact
    def __call__(self, x, carry, mask=None, *, deterministic):
        """Reads on from a state.

        Args:
          x: [B, S, L, D], a sequence for each direction.
          carry: the state before them, as `new_carry` and this function give it.
          mask: [B, S, L], 1 for real words; others leave the state as it is.
          deterministic: no dropout.

        Returns:
          [layers, B, S, L, D], what each layer gives, and the state after it.
        """
        lstm, dropout = self.model.lstm, self.model.dropout
        blocks = self.param("blocks", _init_lstm, self.model)
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), lstm.layers)
        steps_LBS = None if mask is None else jnp.moveaxis(mask, -1, 0)

        def layer(x, numbered):
            depth, block, state, key = numbered
            if key is not None:
                x = nn.Dropout(dropout.input).apply({}, x, deterministic=False, rngs={"dropout": key})
            given, state = recurrent.run(block, x, state, steps_LBS, lstm, self.dtype)
            # Around all but the first; what is added is no part of the state.
            x = constrain(given + x * (depth > 0), *SIDES)
            return x, (x, state)

        states = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), carry)
        _, (hidden, states) = loop(self.model.scan_layers)(
            recomputed(layer, self.model.remat, self.model.scan_layers),
            x,
            (jnp.arange(lstm.layers), blocks, states, keys),
        )
        return hidden, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), states)


def _init_lstm(key, model):
    layers, cell, width = model.lstm.layers, model.lstm.cell, model.embedding.width
    # Glorot's, of the matrix [2 D, 4 M] that both kernels make, and of the projection.
    of_gates, of_projection = (recurrent.uniform((6 / sides) ** 0.5) for sides in (2 * width + 4 * cell, cell + width))
    gates, axes = (layers, 2, width, 4, cell), ("layers", None, "embed", None, "cell")
    return recurrent.parameters(
        key,
        {
            "input": {
                "kernel": (of_gates, axes, gates),
                "bias": (nn.initializers.zeros, ("layers", None, None, "cell"), (layers, 2, 4, cell)),
            },
            "recurrent": {"kernel": (of_gates, axes, gates)},
            "projection": {"kernel": (of_projection, ("layers", None, "cell", "embed"), (layers, 2, cell, width))},
        },
    )


class Elmo(nn.Module):
    """A bidirectional language model of `ElmoConfig`.

    Attributes:
      model: its settings.
      dtype: of activations.
    """

    model: ElmoConfig
    dtype: Any = jnp.float32

    def setup(self):
        """Modules `embedding`, `lstm`, `heads_NAME`; parameters of a softmax `head` [V, D], `head_bias` [V]."""
        self.embedding = CharacterCNN(self.model, self.dtype)
        self.lstm = Lstm(self.model, self.dtype)
        self.heads = {name: HeadModule(head, self.model, self.dtype) for name, head in self.model.heads}
        self.output_dropout = nn.Dropout(self.model.dropout.output)
        if isinstance(self.model.head, Softmax):
            vocab_size, width = self.model.embedding.vocab_size, self.model.embedding.width
            init = partitioned(nn.initializers.normal(width**-0.5), ("vocab", "embed"))
            self.head = self.param("head", init, (vocab_size, width))
            bias = partitioned(nn.initializers.zeros, ("vocab",))
            self.head_bias = self.param("head_bias", bias, (vocab_size,))

    def streams(self, characters, carry, *, deterministic=True):
        """What the head is applied to, for streams of both directions that go on from batch to batch.

        Args:
          characters: int32 [B, S, L, C], the words as each direction reads them.
          carry: the state after the batch before.
          deterministic: no dropout.

        Returns:
          [B, S, L, D] and the state after this batch.
        """
        x = constrain(self.embedding(characters), *SIDES)
        hidden, carry = self.lstm(x, carry, deterministic=deterministic)
        return self.output_dropout(hidden[-1], deterministic=deterministic), carry

    def states(self, characters, mask=None, *, deterministic=True):
        """Both directions side by side, the words' vectors twice: [layers + 1, B, L, 2 D] of texts, as `layers`.

        There is no dropout, as in a model that has been trained and is read from.
        """
        return jax.vmap(_side_by_side)(self.layers(characters, mask)[0])

    def layers(self, characters, mask=None, carry=None):
        """All layers of texts that both directions read, the backward one from the end.

        Args:
          characters: int32 [B, L, C].
          mask: [B, L], 1 for real words.
          carry: the state to begin with; None: zeros. bilm-tf keeps that of the batch before.

        Returns:
          [layers + 1, B, S, L, D], the words' vectors, the same for both directions, first; and the state after them.
        """
        x = self.embedding(characters)
        both = self._turned(jnp.stack([x, x], axis=1))
        if mask is not None:
            mask = self._turned(jnp.stack([mask, mask], axis=1)[..., None])[..., 0]
        carry = nn.unbox(new_carry(self.model, len(characters))) if carry is None else carry
        hidden, carry = self.lstm(both, carry, mask, deterministic=True)
        return self._turned(jnp.concatenate([both[None], hidden])), carry

    def _turned(self, x):
        """[..., S, L, D] with the second direction's sequence turned round."""
        return jnp.stack([x[..., 0, :, :], x[..., 1, ::-1, :]], axis=-3)

    def features(self, characters, mask=None, *, deterministic=True):
        """What the head is applied to: [B, S, L, D] of texts, as in `layers`; there is no dropout."""
        return self.layers(characters, mask)[0][-1]

    def head_features(self, features):
        """What the unembedding is applied to: the features."""
        return features

    def unembedding(self):
        """The head's matrix [V, D] and bias [V]."""
        return self.head, self.head_bias

    def _logits(self, features):
        matrix, bias = self.unembedding()
        logits = jnp.einsum("bld,vd->blv", features, matrix.astype(self.dtype), preferred_element_type=jnp.float32)
        return constrain(logits + bias, "batch", "length", "vocab")

    def logits(self, features):
        """The word after each place, from those up to it: [B, S, L, D] → float32 [B, L, V]."""
        return self._logits(features[:, 0])

    def backward_logits(self, features):
        """The word before each place, from those from it on: [B, S, L, D] → float32 [B, L, V]."""
        return self._logits(features[:, 1])

    def head_output(self, features, name, **inputs):
        """The logits of either direction, "vocabulary" or "backward", or what another head gives of both and `inputs`.

        That takes features [B, S, L, D], or what `states` gives of a layer, [B, L, 2 D].
        """
        own = {"vocabulary": self.logits, "backward": self.backward_logits}
        if name in own:
            return own[name](features)
        return self.heads[name](_side_by_side(features) if features.ndim == 4 else features, **inputs)

    def __call__(self, characters, mask=None):
        """Logits of the forward direction, float32 [B, L, V], or the features of a model without a head."""
        features = self.features(characters, mask)
        if self.is_initializing():
            for name, head in self.model.heads:
                self.head_output(features, name, **head.init_inputs(features))
        return features if isinstance(self.model.head, NoHead) else self.logits(features)


def _side_by_side(x):
    """[B, S, L, D] → [B, L, S · D]."""
    return jnp.concatenate([x[:, 0], x[:, 1]], axis=-1)


def new_carry(model: ElmoConfig, rows: int):
    """The state of the LSTMs before the first word, zeros [rows, layers, S, …], boxed with its logical axes."""

    def zeros(size, axis):
        return nn.LogicallyPartitioned(jnp.zeros((rows, model.lstm.layers, 2, size)), ("batch", "layers", None, axis))

    return {"cell": zeros(model.lstm.cell, "cell"), "hidden": zeros(model.embedding.width, "embed")}
