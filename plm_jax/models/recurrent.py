"""Bidirectional LSTMs.

Shapes: B batch, S = 2 directions (forward, backward), L length, D width, M units of an LSTM's memory. Gates and states
are float32.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from plm_jax.common import ranges
from plm_jax.models.layers import Dropout
from plm_jax.models.partitioning import constrain, partitioned

# Constant that TensorFlow's LSTM adds to the forget gate, in addition to the trained bias.
FORGET_BIAS = 1.0


def uniform(limit: float):
    """Returns an initializer that draws uniformly from -limit to limit."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -limit, limit)


def parameters(key, leaves):
    """Returns boxed parameters for a tree whose leaves are tuples (initializer, logical axes, shape)."""
    leaves, structure = jax.tree.flatten(leaves, is_leaf=lambda leaf: isinstance(leaf, tuple))
    keyed = zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    values = [partitioned(init, axes)(leaf_key, shape) for leaf_key, (init, axes, shape) in keyed]
    return jax.tree.unflatten(structure, values)


def run(block, x_BSLD, state, steps_LBS, lstm, dtype):
    """Runs one layer over all steps; returns a pair: the outputs of all steps [B, S, L, width], and the final state.

    Args:
      block: parameters of the layer, with a projection if `lstm` is not None.
      x_BSLD: [B, S, L, D].
      state: the initial `cell` and `hidden`, [B, S, …].
      steps_LBS: 1 at steps that update the state, 0 at steps that leave the state unchanged, such as padding. None: 1
        everywhere.
      lstm: `elmo.LstmConfig` for LSTMs with clipping and a projection; None: LSTMs without clipping and projection.
      dtype: dtype of activations.
    """
    gates_LBSGM = jnp.einsum(
        "bsld,sdgm->lbsgm", x_BSLD, block["input"]["kernel"].astype(dtype), preferred_element_type=jnp.float32
    )
    gates_LBSGM = constrain(gates_LBSGM + block["input"]["bias"], "length", "batch", None, None, "cell")
    kernels = {name: block[name]["kernel"] for name in ("recurrent", *(["projection"] if lstm else []))}
    result: tuple[jax.Array, Any] = _over_steps(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS)
    outputs_LBSD, state = result
    return jnp.moveaxis(outputs_LBSD, 0, 2), state


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _over_steps(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS):
    """Returns a pair: the output of each step [L, B, S, D], and the final state.

    The backward pass computes the gradient of each kernel by one product over all steps, in the dtype and sharding of
    the kernel. A sum over steps would read and write the gradients in each step.
    """
    return _forward(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS)[0]


def _forward(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS):
    # The parameters are not sharded over `embed` after this line, so they are gathered once and not at every step.
    recurrent = constrain(kernels["recurrent"].astype(dtype), None, None, None, "cell")
    if lstm:
        projection = constrain(kernels["projection"].astype(dtype), None, "cell", None)

    def step(state, inputs):
        gates_BSGM, zeros_BSD, real_BS = inputs
        hidden = state["hidden"].astype(dtype)
        gates_BSGM += jnp.einsum("bsd,sdgm->bsgm", hidden, recurrent, preferred_element_type=jnp.float32)
        input_gate, candidate, forget_gate, output_gate = (gates_BSGM[:, :, gate] for gate in range(4))
        cell = nn.sigmoid(forget_gate + FORGET_BIAS) * state["cell"] + nn.sigmoid(input_gate) * jnp.tanh(candidate)
        cell = jnp.clip(cell, -lstm.cell_clip, lstm.cell_clip) if lstm else cell
        hidden, projected = nn.sigmoid(output_gate) * jnp.tanh(cell), None
        if lstm:
            projected = hidden.astype(dtype)
            hidden = jnp.einsum("bsm,smd->bsd", projected, projection, preferred_element_type=jnp.float32)
            hidden = jnp.clip(hidden + zeros_BSD, -lstm.projection_clip, lstm.projection_clip)
        after = {"cell": constrain(cell, "batch", None, "cell"), "hidden": constrain(hidden, "batch", None, "embed")}
        if real_BS is not None:
            after = jax.tree.map(lambda one, other: jnp.where(real_BS[..., None] > 0, one, other), after, state)
        return after, (after["hidden"].astype(dtype), projected)

    def over_steps(gates_LBSGM, zeros_LBSD, state):
        state, (outputs_LBSD, projected_LBSM) = jax.lax.scan(step, state, (gates_LBSGM, zeros_LBSD, steps_LBS))
        return (outputs_LBSD, state), projected_LBSM

    # Zeros added to the output of the projection, whose gradient they receive.
    zeros_LBSD = jnp.zeros((len(gates_LBSGM), *state["hidden"].shape)) if lstm else None
    (outputs_LBSD, after), backward, projected_LBSM = jax.vjp(over_steps, gates_LBSGM, zeros_LBSD, state, has_aux=True)
    before_LBSD = jnp.concatenate([state["hidden"].astype(dtype)[None], outputs_LBSD[:-1]])
    return (outputs_LBSD, after), (backward, before_LBSD, projected_LBSM, kernels)


def _backward(lstm, dtype, residuals, gradients):
    backward, before_LBSD, projected_LBSM, kernels = residuals
    d_gates_LBSGM, d_hidden_LBSD, d_state = backward(gradients)

    def product(equation, x, d_y, name, *axes):
        kernel = kernels[name]
        d_kernel = jnp.einsum(equation, x, d_y.astype(dtype), preferred_element_type=kernel.dtype)
        return constrain(d_kernel, None, *axes)

    d_kernels = {
        "recurrent": product("lbsd,lbsgm->sdgm", before_LBSD, d_gates_LBSGM, "recurrent", "embed", None, "cell")
    }
    if lstm:
        # With `embed` before `cell`: XLA on TPUs cannot reduce-scatter along the columns of a tile.
        turned = product("lbsm,lbsd->sdm", projected_LBSM, d_hidden_LBSD, "projection", "embed", "cell")
        d_kernels["projection"] = jnp.swapaxes(turned, 1, 2)
    return d_kernels, d_gates_LBSGM, d_state, None


_over_steps.defvjp(_forward, _backward)


@dataclass(frozen=True)
class BiLstmConfig:
    """Bidirectional LSTMs between a model and a task's head; each layer concatenates the outputs of both directions.

    Attributes:
      cell: number of units per direction.
      layers: number of layers.
      dropout: dropout rate on the input of each layer.
    """

    kind: ClassVar[str] = "bilstm"
    cell: ranges.Width = 256
    layers: ranges.Layers = 1
    dropout: ranges.ShareBelowOne = 0.0

    def macs(self, width: int) -> int:
        """Returns the number of multiply-accumulate operations per position for inputs of this width."""
        inputs = [width] + [2 * self.cell] * (self.layers - 1)
        return sum(2 * 4 * self.cell * (size + self.cell) for size in inputs)


class BiLstm(nn.Module):
    """The LSTMs of `BiLstmConfig`, without a projection.

    Attributes:
      lstm: settings.
      dtype: dtype of activations.
    """

    lstm: BiLstmConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length dim"],
        mask: Shaped[Array, "batch length"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "batch length units"]:
        """Returns [B, L, 2 M] for x [B, L, D]. Positions where the mask [B, L] is 0 do not change the state."""
        cell = self.lstm.cell
        steps_LBS = None if mask is None else jnp.moveaxis(jnp.stack([mask, mask[:, ::-1]], axis=1), -1, 0)
        zeros = jnp.zeros((len(x), 2, cell))
        for number in range(self.lstm.layers):
            x = Dropout(self.lstm.dropout)(x, deterministic=deterministic)
            block = self.param(f"layer_{number}", _init_lstm, x.shape[-1], cell)
            both = jnp.stack([x, x[:, ::-1]], axis=1)
            outputs, _ = run(block, both, {"cell": zeros, "hidden": zeros}, steps_LBS, None, self.dtype)
            x = jnp.concatenate([outputs[:, 0], outputs[:, 1, ::-1]], axis=-1)
        return x


def _init_lstm(key, width, cell):
    init, axes = uniform(cell**-0.5), (None, "embed", None, "cell")
    return parameters(
        key,
        {
            "input": {
                "kernel": (init, axes, (2, width, 4, cell)),
                "bias": (nn.initializers.zeros, (None, None, "cell"), (2, 4, cell)),
            },
            "recurrent": {"kernel": (init, axes, (2, cell, 4, cell))},
        },
    )
