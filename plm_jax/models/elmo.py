"""ELMo's bidirectional language model (Peters et al. 2018) as in allenai/bilm-tf, and the mix of its layers.

Shapes: B batch, S the two directions (forward, backward), L length, C characters of a word, D width, M units of an
LSTM's memory, N filters, V vocabulary. Parameters are float32 and cast to `dtype` where they are used; the LSTMs'
gates and states stay float32. All LSTMs of a stack, and all highway layers, lie on a leading `layers` axis.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models import loops, settings
from plm_jax.models.activations import ACTIVATIONS
from plm_jax.models.layers import Dense
from plm_jax.models.partitioning import constrain

# A word's bytes, and the beginnings and ends of sentences and words, and what fills a word up.
CHARACTERS = 261
# What TensorFlow's LSTM adds to the forget gate, beside the trained bias.
FORGET_BIAS = 1.0
SIDES = ("batch", None, "length", "embed")


def _uniform(largest: float):
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -largest, largest)


def _tree(key, leaves):
    """Boxed parameters by their names, from (initialiser, logical axes, shape) of each."""
    leaves, structure = jax.tree.flatten(leaves, is_leaf=lambda leaf: isinstance(leaf, tuple))
    keyed = zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    made = [nn.with_logical_partitioning(init, axes)(own_key, shape) for own_key, (init, axes, shape) in keyed]
    return jax.tree.unflatten(structure, made)


class CharacterCNN(nn.Module):
    """A word's vector from its characters."""

    model: settings.Elmo
    dtype: Any

    @nn.compact
    def __call__(self, characters):
        """int32 [..., C] → [..., D]."""
        embedding = self.model.embedding
        activation = ACTIVATIONS[embedding.activation]
        table = nn.with_logical_partitioning(_uniform(1.0), (None, None))
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

        x_WN, _ = loops.loop(self.model)(highway, x_WN, blocks)
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
            "kernel": (_uniform(0.05), (None, None, "mlp"), (width, embedding.dim, number)),
            "bias": (nn.initializers.zeros, ("mlp",), (number,)),
        }

    return _tree(key, {f"{i}": of(*pair) for i, pair in enumerate(embedding.filters)})


def _init_highway(key, layers, width):
    def gate(bias):
        return {
            "kernel": (nn.initializers.normal(width**-0.5), ("layers", "embed", "mlp"), (layers, width, width)),
            "bias": (nn.initializers.constant(bias), ("layers", "mlp"), (layers, width)),
        }

    # At first most of what comes is carried on.
    return _tree(key, {"carry": gate(-2.0), "transform": gate(0.0)})


class Lstm(nn.Module):
    """The LSTMs of both directions. Each reads from left to right: who wants the backward one to read a text from its
    end turns the text round.
    """

    model: settings.Elmo
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
            given, state = _run(block, x, state, steps_LBS, lstm, self.dtype)
            # Around all but the first; what is added is no part of the state.
            x = constrain(given + x * (depth > 0), *SIDES)
            return x, (x, state)

        states = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), carry)
        _, (hidden, states) = loops.loop(self.model)(
            loops.recomputed(self.model, layer), x, (jnp.arange(lstm.layers), blocks, states, keys)
        )
        return hidden, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), states)


def _init_lstm(key, model):
    layers, cell, width = model.lstm.layers, model.lstm.cell, model.embedding.width
    # Glorot's, of the matrix [2 D, 4 M] that both kernels make, and of the projection.
    of_gates, of_projection = (_uniform((6 / sides) ** 0.5) for sides in (2 * width + 4 * cell, cell + width))
    gates, axes = (layers, 2, width, 4, cell), ("layers", None, "embed", None, "cell")
    return _tree(
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


def _run(block, x_BSLD, state, steps_LBS, lstm, dtype):
    """One layer over all steps: [B, S, L, D] and the state after it."""
    # Whole over `embed` from here on, so that they are gathered once and not at every step.
    recurrent = constrain(block["recurrent"]["kernel"].astype(dtype), None, None, None, "cell")
    projection = constrain(block["projection"]["kernel"].astype(dtype), None, "cell", None)
    gates_LBSGM = jnp.einsum(
        "bsld,sdgm->lbsgm", x_BSLD, block["input"]["kernel"].astype(dtype), preferred_element_type=jnp.float32
    )
    gates_LBSGM = constrain(gates_LBSGM + block["input"]["bias"], "length", "batch", None, None, "cell")

    def step(state, inputs):
        gates_BSGM, real_BS = inputs
        hidden = state["hidden"].astype(dtype)
        gates_BSGM += jnp.einsum("bsd,sdgm->bsgm", hidden, recurrent, preferred_element_type=jnp.float32)
        take, new, forget, give = (gates_BSGM[:, :, gate] for gate in range(4))
        cell = nn.sigmoid(forget + FORGET_BIAS) * state["cell"] + nn.sigmoid(take) * jnp.tanh(new)
        cell = jnp.clip(cell, -lstm.cell_clip, lstm.cell_clip)
        given = (nn.sigmoid(give) * jnp.tanh(cell)).astype(dtype)
        hidden = jnp.einsum("bsm,smd->bsd", given, projection, preferred_element_type=jnp.float32)
        hidden = jnp.clip(hidden, -lstm.projection_clip, lstm.projection_clip)
        after = {"cell": constrain(cell, "batch", None, "cell"), "hidden": constrain(hidden, "batch", None, "embed")}
        if real_BS is not None:
            after = jax.tree.map(lambda one, other: jnp.where(real_BS[..., None] > 0, one, other), after, state)
        return after, after["hidden"].astype(dtype)

    state, given_LBSD = jax.lax.scan(step, state, (gates_LBSGM, steps_LBS))
    return jnp.moveaxis(given_LBSD, 0, 2), state


class Elmo(nn.Module):
    """A bidirectional language model of `settings.Elmo`.

    Attributes:
      model: its settings.
      dtype: of activations.
    """

    model: settings.Elmo
    dtype: Any = jnp.float32

    def setup(self):
        """Modules `embedding`, `lstm`; parameters `head` [V, D], `head_bias` [V] where there is a head."""
        self.embedding = CharacterCNN(self.model, self.dtype)
        self.lstm = Lstm(self.model, self.dtype)
        self.output_dropout = nn.Dropout(self.model.dropout.output)
        if isinstance(self.model.head, settings.Softmax):
            vocab_size, width = self.model.embedding.vocab_size, self.model.embedding.width
            init = nn.with_logical_partitioning(nn.initializers.normal(width**-0.5), ("vocab", "embed"))
            self.head = self.param("head", init, (vocab_size, width))
            bias = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
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

    def features(self, characters, mask=None):
        """What the head is applied to: [B, S, L, D] of texts, as in `layers`."""
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

    def head_output(self, features, name):
        """The logits of either direction: "vocabulary" or "backward"."""
        return {"vocabulary": self.logits, "backward": self.backward_logits}[name](features)

    def __call__(self, characters, mask=None):
        """Logits of the forward direction, float32 [B, L, V], or the features of a model without a head."""
        features = self.features(characters, mask)
        return features if isinstance(self.model.head, settings.NoHead) else self.logits(features)


def new_carry(model: settings.Elmo, rows: int):
    """The state of the LSTMs before the first word, zeros [rows, layers, S, …], boxed with its logical axes."""

    def zeros(size, axis):
        return nn.LogicallyPartitioned(jnp.zeros((rows, model.lstm.layers, 2, size)), ("batch", "layers", None, axis))

    return {"cell": zeros(model.lstm.cell, "cell"), "hidden": zeros(model.embedding.width, "embed")}


class ScalarMix(nn.Module):
    """γ · Σ softmax(w)_j · layer_j (Peters et al. 2018, equation 1): what a task trains beside a frozen model."""

    @nn.compact
    def __call__(self, layers):
        """[layers + 1, ...] → [...]."""
        weights = nn.softmax(self.param("weights", nn.initializers.zeros, (len(layers),)))
        scale = self.param("scale", nn.initializers.ones, ())
        return scale * jnp.tensordot(weights, layers, axes=1)
