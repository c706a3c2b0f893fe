"""ELMo's bidirectional language model (Peters et al. 2018), as in allenai/bilm-tf.

Shapes: B batch, S = 2 directions (forward, backward), L length, C characters per word, D width, M units of an LSTM's
memory, N filters, V vocabulary. Parameters are float32 and cast to `dtype` where they are used; the LSTMs' gates and
states stay float32. The parameters of all LSTMs, and of all highway layers, are stacked on a leading `layers` axis.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Shaped
from typing_extensions import override

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

# Number of character ids: bytes, beginnings and ends of sentences and words, and padding.
CHARACTERS = 261
SIDES = ("batch", None, "length", "embed")


@dataclass(frozen=True)
class CharacterCNNConfig:
    """A CNN that computes word embeddings from characters (Kim et al. 2016), as in allenai/bilm-tf.

    Attributes:
      vocab_size: number of words that the head can predict; may be 0 if there is no head.
      width: width of word vectors, and of the output of each LSTM in each direction.
      dim: width of character vectors.
      filters: pairs (width in characters, number of filters); the output of each filter is max-pooled over the word.
      max_characters: maximum number of characters (UTF-8 bytes) of a word, including the markers of its beginning and
        end. Longer words are truncated.
      activation: activation after max-pooling.
      highway_layers: number of highway layers between the filters and the projection to `width` (Srivastava et al.
        2015).
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
        """Width of a word's vector."""
        return self.width

    def __post_init__(self):
        widest = max((width for width, _ in self.filters), default=0)
        if not self.filters or min(min(pair) for pair in self.filters) < 1 or widest > self.max_characters:
            raise UserError(
                f"embedding.filters is {self.filters}: must be pairs (characters, filters), both at least 1, of at "
                f"most {self.max_characters} characters"
            )


@dataclass(frozen=True)
class LstmConfig:
    """Stacked LSTMs with projected outputs (Sak et al. 2014). Each direction has its own stack.

    Attributes:
      layers: number of layers per direction.
      cell: number of memory cells of each LSTM.
      cell_clip: maximum absolute value of memory cells.
      projection_clip: maximum absolute value of projected outputs.
    """

    layers: ranges.Layers = 2
    cell: ranges.Width = 4096
    cell_clip: ranges.Positive = 3.0
    projection_clip: ranges.Positive = 3.0


@dataclass(frozen=True)
class LstmDropoutConfig:
    """Dropout rates of the LSTMs.

    Attributes:
      input: rate on the input of each LSTM.
      output: rate on the output of the last LSTM.
    """

    input: ranges.ShareBelowOne = 0.0
    output: ranges.ShareBelowOne = 0.0

    rates = DropoutConfig.rates
    all_at = DropoutConfig.all_at


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """A bidirectional language model (Peters et al. 2018) of forward and backward LSTMs.

    Attributes:
      embedding: word embeddings.
      lstm: sizes of the LSTMs.
      head: head that predicts words; `none`: the model returns features only.
      dropout: dropout rates.
      heads: additional heads, as in `TransformerConfig`. These heads read the concatenated states of both directions.
      scan_layers: whether one layer is compiled and run in a loop, as in `TransformerConfig`.
      remat: rematerialization, as in `TransformerConfig`.
    """

    kind: ClassVar[str] = "elmo"
    remat_levels = ("none", "dots", "full")
    any_order = False
    inputs = ("characters", "mask")
    embedding: CharacterCNNConfig
    lstm: LstmConfig = LstmConfig()
    # Initialization and norm of heads of tasks.
    initializer = InitializerConfig()
    norm = NormConfig()
    head: Softmax | NoHead = Softmax()
    dropout: LstmDropoutConfig = LstmDropoutConfig()
    heads: tuple[tuple[str, Head], ...] = ()
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"

    def __post_init__(self):
        if isinstance(self.head, Softmax) and not self.embedding.vocab_size:
            raise UserError("embedding.vocab_size is 0: set it to the number of words that the head predicts")

    @property
    def vocab_size(self) -> int:
        """Number of words that the head can predict."""
        return self.embedding.vocab_size

    @property
    @override
    def max_characters(self) -> int:
        """Maximum number of characters of a word, including the markers of its beginning and end."""
        return self.embedding.max_characters

    @property
    @override
    def named_heads(self) -> dict[str, Head]:
        """Heads by name: the softmax, if any, as "vocabulary" (forward) and "backward", and the heads in `heads`."""
        names = () if isinstance(self.head, NoHead) else ("vocabulary", "backward")
        return dict.fromkeys(names, self.head) | dict(self.heads)

    @property
    def num_states(self) -> int:
        """Number of hidden states: the word vectors and the output of each layer."""
        return self.lstm.layers + 1

    @property
    def state_width(self) -> int:
        """Width of a hidden state, which concatenates both directions."""
        return 2 * self.embedding.width

    @override
    def module(self, dtype):
        """Returns an `Elmo`."""
        return Elmo(self, dtype)

    @override
    def init_inputs(self):
        """Returns the characters of one word."""
        return {"characters": jnp.zeros((1, 1, self.max_characters), jnp.int32)}

    @override
    def new_carry(self, rows):
        """Returns the state of the LSTMs before the first word."""
        return new_carry(self, rows)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        """Counts the operations of both directions.

        With a softmax, each direction computes its own word vectors (`Elmo.streams`), and a prediction at every
        position. Without a softmax, both directions read the same word vectors (`Elmo.features`).
        """
        embedding, lstm = self.embedding, self.lstm
        filters_fit = ((width, number, embedding.max_characters - width + 1) for width, number in embedding.filters)
        filters = sum(number for _, number in embedding.filters)
        word = sum(width * embedding.dim * number * fits for width, number, fits in filters_fit)
        word += 2 * embedding.highway_layers * filters**2 + filters * embedding.width
        direction = lstm.layers * (2 * embedding.width * 4 * lstm.cell + lstm.cell * embedding.width)
        if isinstance(self.head, NoHead):
            products = word + 2 * direction
        else:
            prediction = embedding.width * (samples + 1 if samples else embedding.vocab_size)
            products = 2 * (word + direction + prediction)
        return length * products + sum(head.macs(self, length, targets) for _, head in self.heads)


class CharacterCNN(nn.Module):
    """A CNN that computes word vectors from characters."""

    model: ElmoConfig
    dtype: Any

    @nn.compact
    def __call__(self, characters: Integer[Array, "*words characters"]) -> Float[Array, "*words dim"]:
        """Returns the word vectors [..., D] for the characters int32 [..., C] of words."""
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
    """Returns the maximum of each filter over the positions where the filter fits, plus its bias, [words, filters]."""
    kernel, bias = of_width["kernel"].astype(dtype), of_width["bias"].astype(dtype)
    convolved = jax.lax.conv_general_dilated(x_WCE, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return convolved.max(1) + bias


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

    # Initially most of the input is carried through.
    return recurrent.parameters(key, {"carry": gate(-2.0), "transform": gate(0.0)})


class Lstm(nn.Module):
    """The LSTMs of both directions.

    All LSTMs read from left to right. Callers reverse the text for the backward LSTMs.
    """

    model: ElmoConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch sides length dim"],
        carry: Any,
        mask: Shaped[Array, "batch sides length"] | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Float[Array, "layers batch sides length dim"], Any]:
        """Runs the LSTMs from a given state.

        Args:
          x: [B, S, L, D], a sequence for each direction.
          carry: the state before the first word, as returned by `new_carry` or by this function.
          mask: [B, S, L], 1 for words, 0 for padding; None: no padding. Padding does not change the state.
          deterministic: whether dropout is disabled.

        Returns:
          A pair: the output of each layer, [layers, B, S, L, D], and the final state.
        """
        lstm, dropout = self.model.lstm, self.model.dropout
        blocks = self.param("blocks", _init_lstm, self.model)
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), lstm.layers)
        steps_LBS = None if mask is None else jnp.moveaxis(mask, -1, 0)

        def layer(x, numbered):
            depth, block, state, key = numbered
            if key is not None:
                x = nn.Dropout(dropout.input).apply({}, x, deterministic=False, rngs={"dropout": key})
            outputs, state = recurrent.run(block, x, state, steps_LBS, lstm, self.dtype)
            # A residual connection around all layers except the first; the state does not include it.
            x = constrain(outputs + x * (depth > 0), *SIDES)
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
      model: settings.
      dtype: dtype of activations.
    """

    model: ElmoConfig
    dtype: Any = jnp.float32

    def setup(self):
        """Creates the modules `embedding`, `lstm` and `heads_NAME`.

        A model with a softmax also has the parameters `head` [V, D] and `head_bias` [V].
        """
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

    def streams(
        self, characters: Integer[Array, "batch sides length characters"], carry: Any, *, deterministic: bool = True
    ) -> tuple[Float[Array, "batch sides length dim"], Any]:
        """Returns the input of the head, in both directions, for text that continues the text of the previous batch.

        Args:
          characters: int32 [B, S, L, C], the words in the order in which each direction reads them.
          carry: the LSTM state after the previous batch.
          deterministic: whether dropout is disabled.

        Returns:
          A pair: the input of the head [B, S, L, D], and the LSTM state after this batch.
        """
        x = constrain(self.embedding(characters), *SIDES)
        hidden, carry = self.lstm(x, carry, deterministic=deterministic)
        return self.output_dropout(hidden[-1], deterministic=deterministic), carry

    def states(
        self,
        characters: Integer[Array, "batch length characters"],
        mask: Shaped[Array, "batch length"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "states batch length width"]:
        """Returns the states of `layers` with both directions concatenated, [layers + 1, B, L, 2 D].

        The first state contains the word vectors twice. This method ignores `deterministic` and applies no dropout.
        """
        return jax.vmap(_side_by_side)(self.layers(characters, mask)[0])

    def layers(
        self,
        characters: Integer[Array, "batch length characters"],
        mask: Shaped[Array, "batch length"] | None = None,
        carry: Any = None,
    ) -> tuple[Float[Array, "states batch sides length dim"], Any]:
        """Returns the states of all layers for both directions; the backward direction reads the texts from the end.

        Args:
          characters: int32 [B, L, C].
          mask: [B, L], 1 for words, 0 for padding; None: no padding.
          carry: initial LSTM state; None: zeros. In bilm-tf, the initial state is the final state of the previous
            batch.

        Returns:
          A pair: the states [layers + 1, B, S, L, D], and the LSTM state after the last word that each direction reads.
          The first state contains the word vectors, which are the same in both directions.
        """
        x = self.embedding(characters)
        both = self._turned(jnp.stack([x, x], axis=1))
        if mask is not None:
            mask = self._turned(jnp.stack([mask, mask], axis=1)[..., None])[..., 0]
        carry = nn.unbox(new_carry(self.model, len(characters))) if carry is None else carry
        hidden, carry = self.lstm(both, carry, mask, deterministic=True)
        return self._turned(jnp.concatenate([both[None], hidden])), carry

    def _turned(self, x):
        """Reverses the backward direction of `x` [..., S, L, D] along L."""
        return jnp.stack([x[..., 0, :, :], x[..., 1, ::-1, :]], axis=-3)

    def features(
        self,
        characters: Integer[Array, "batch length characters"],
        mask: Shaped[Array, "batch length"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "batch sides length dim"]:
        """Returns the last state of `layers`, [B, S, L, D], which is the input of the head. Applies no dropout."""
        return self.layers(characters, mask)[0][-1]

    def head_features(self, features: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Returns the features unchanged: ELMo's vocabulary head has no layer before the unembedding."""
        return features

    def unembedding(self) -> tuple[Float[Array, "vocab dim"], Float[Array, " vocab"]]:
        """Returns a pair: the matrix [V, D] of the softmax, and the bias [V] of the softmax."""
        return self.head, self.head_bias

    def _logits(self, features):
        matrix, bias = self.unembedding()
        logits = jnp.einsum("bld,vd->blv", features, matrix.astype(self.dtype), preferred_element_type=jnp.float32)
        return constrain(logits + bias, "batch", "length", "vocab")

    def logits(self, features: Float[Array, "batch sides length dim"]) -> Float[Array, "batch length vocab"]:
        """Returns logits of the word after each position: [B, S, L, D] → float32 [B, L, V]."""
        return self._logits(features[:, 0])

    def backward_logits(self, features: Float[Array, "batch sides length dim"]) -> Float[Array, "batch length vocab"]:
        """Returns logits of the word before each position: [B, S, L, D] → float32 [B, L, V].

        The prediction depends on the word at the position and on all later words.
        """
        return self._logits(features[:, 1])

    def head_output(
        self,
        features: Float[Array, "batch sides length dim"] | Float[Array, "batch length width"],
        name: str,
        **inputs: Any,
    ) -> Any:
        """Returns the output of a head: for "vocabulary", the forward logits; for "backward", the backward logits.

        All other heads read both directions, and `inputs`. For these heads, `features` may also be one layer of
        `states`, [B, L, 2 D].
        """
        directions = {"vocabulary": self.logits, "backward": self.backward_logits}
        if name in directions:
            return directions[name](features)
        return self.heads[name](_side_by_side(features) if features.ndim == 4 else features, **inputs)

    def __call__(
        self, characters: Integer[Array, "batch length characters"], mask: Shaped[Array, "batch length"] | None = None
    ) -> Float[Array, "batch length vocab"] | Float[Array, "batch sides length dim"]:
        """Returns logits of the forward direction, float32 [B, L, V], or the features if the model has no softmax."""
        features = self.features(characters, mask)
        if self.is_initializing():
            for name, head in self.model.heads:
                self.head_output(features, name, **head.init_inputs(features))
        return features if isinstance(self.model.head, NoHead) else self.logits(features)


def _side_by_side(x):
    """Concatenates the two directions, [B, S, L, D] → [B, L, S · D]."""
    return jnp.concatenate([x[:, 0], x[:, 1]], axis=-1)


def new_carry(model: ElmoConfig, rows: int):
    """Returns the LSTM state before the first word: zeros [rows, layers, S, …], boxed with logical axes."""

    def zeros(size, axis):
        return nn.LogicallyPartitioned(jnp.zeros((rows, model.lstm.layers, 2, size)), ("batch", "layers", None, axis))

    return {"cell": zeros(model.lstm.cell, "cell"), "hidden": zeros(model.embedding.width, "embed")}
