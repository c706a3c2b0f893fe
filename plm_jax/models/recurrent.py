"""LSTMs that run in both directions.

Shapes: B batch, S the two directions (forward, backward), L length, D width, M units of an LSTM's memory. The gates and
states are float32.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.models.layers import Dropout
from plm_jax.models.partitioning import constrain, partitioned

# What TensorFlow's LSTM adds to the forget gate, beside the trained bias.
FORGET_BIAS = 1.0


def uniform(largest: float):
    """An initialiser that draws from -largest to largest."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -largest, largest)


def parameters(key, leaves):
    """Boxed parameters by their names, from (initialiser, logical axes, shape) of each."""
    leaves, structure = jax.tree.flatten(leaves, is_leaf=lambda leaf: isinstance(leaf, tuple))
    keyed = zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    made = [partitioned(init, axes)(own_key, shape) for own_key, (init, axes, shape) in keyed]
    return jax.tree.unflatten(structure, made)


def run(block, x_BSLD, state, steps_LBS, lstm, dtype):
    """One layer over all steps: [B, S, L, D] and the state after it.

    Args:
      block: its parameters; those of a projection only where `lstm` is given.
      x_BSLD: [B, S, L, D].
      state: `cell` and `hidden` before them, [B, S, …].
      steps_LBS: 1 at the steps that count; others leave the state as it is. None: all count.
      lstm: the `elmo.LstmConfig` whose limits hold; None: there are none, and no projection.
      dtype: of activations.
    """
    gates_LBSGM = jnp.einsum(
        "bsld,sdgm->lbsgm", x_BSLD, block["input"]["kernel"].astype(dtype), preferred_element_type=jnp.float32
    )
    gates_LBSGM = constrain(gates_LBSGM + block["input"]["bias"], "length", "batch", None, None, "cell")
    kernels = {name: block[name]["kernel"] for name in ("recurrent", *(["projection"] if lstm else []))}
    result: tuple[jax.Array, Any] = _over_steps(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS)
    given_LBSD, state = result
    return jnp.moveaxis(given_LBSD, 0, 2), state


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _over_steps(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS):
    """What each step gives, [L, B, S, D], and the state after them.

    The kernels' gradients are products over all steps at once, in the kernels' type and layout: summed step by step
    they would be read and written whole at each.
    """
    return _forward(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS)[0]


def _forward(lstm, dtype, kernels, gates_LBSGM, state, steps_LBS):
    # Whole over `embed` from here on, so that they are gathered once and not at every step.
    recurrent = constrain(kernels["recurrent"].astype(dtype), None, None, None, "cell")
    if lstm:
        projection = constrain(kernels["projection"].astype(dtype), None, "cell", None)

    def step(state, inputs):
        gates_BSGM, nothing_BSD, real_BS = inputs
        hidden = state["hidden"].astype(dtype)
        gates_BSGM += jnp.einsum("bsd,sdgm->bsgm", hidden, recurrent, preferred_element_type=jnp.float32)
        take, new, forget, give = (gates_BSGM[:, :, gate] for gate in range(4))
        cell = nn.sigmoid(forget + FORGET_BIAS) * state["cell"] + nn.sigmoid(take) * jnp.tanh(new)
        cell = jnp.clip(cell, -lstm.cell_clip, lstm.cell_clip) if lstm else cell
        hidden, projected = nn.sigmoid(give) * jnp.tanh(cell), None
        if lstm:
            projected = hidden.astype(dtype)
            hidden = jnp.einsum("bsm,smd->bsd", projected, projection, preferred_element_type=jnp.float32)
            hidden = jnp.clip(hidden + nothing_BSD, -lstm.projection_clip, lstm.projection_clip)
        after = {"cell": constrain(cell, "batch", None, "cell"), "hidden": constrain(hidden, "batch", None, "embed")}
        if real_BS is not None:
            after = jax.tree.map(lambda one, other: jnp.where(real_BS[..., None] > 0, one, other), after, state)
        return after, (after["hidden"].astype(dtype), projected)

    def over_steps(gates_LBSGM, nothing_LBSD, state):
        state, (given_LBSD, projected_LBSM) = jax.lax.scan(step, state, (gates_LBSGM, nothing_LBSD, steps_LBS))
        return (given_LBSD, state), projected_LBSM

    # Its gradient is that of what the projection gives.
    nothing_LBSD = jnp.zeros((len(gates_LBSGM), *state["hidden"].shape)) if lstm else None
    (given_LBSD, after), backward, projected_LBSM = jax.vjp(over_steps, gates_LBSGM, nothing_LBSD, state, has_aux=True)
    before_LBSD = jnp.concatenate([state["hidden"].astype(dtype)[None], given_LBSD[:-1]])
    return (given_LBSD, after), (backward, before_LBSD, projected_LBSM, kernels)


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
        # Scattered over `embed` in front of `cell`: XLA for TPUs reduces whole what is cut within a tile's columns.
        turned = product("lbsm,lbsd->sdm", projected_LBSM, d_hidden_LBSD, "projection", "embed", "cell")
        d_kernels["projection"] = jnp.swapaxes(turned, 1, 2)
    return d_kernels, d_gates_LBSGM, d_state, None


_over_steps.defvjp(_forward, _backward)


@dataclass(frozen=True)
class BiLstmConfig:
    """LSTMs in both directions over what a task's head reads, each layer's two outputs side by side.

    Attributes:
      cell: units of each direction.
      dropout: on what each layer reads.
    """

    kind: ClassVar[str] = "bilstm"
    cell: ranges.Width = 256
    layers: ranges.Layers = 1
    dropout: ranges.ShareBelowOne = 0.0

    def products(self, width: int) -> int:
        """Multiplications a place, of inputs of a width."""
        inputs = [width] + [2 * self.cell] * (self.layers - 1)
        return sum(2 * 4 * self.cell * (own + self.cell) for own in inputs)


class BiLstm(nn.Module):
    """The LSTMs of `BiLstmConfig`, whose states are what they give.

    Attributes:
      lstm: the settings.
      dtype: of activations.
    """

    lstm: BiLstmConfig
    dtype: Any

    @nn.compact
    def __call__(self, x, mask=None, *, deterministic):
        """[B, L, D] → [B, L, 2 M]; the mask [B, L] is 1 at real places, and what stands at others is not read."""
        cell = self.lstm.cell
        steps_LBS = None if mask is None else jnp.moveaxis(jnp.stack([mask, mask[:, ::-1]], axis=1), -1, 0)
        zeros = jnp.zeros((len(x), 2, cell))
        for number in range(self.lstm.layers):
            x = Dropout(self.lstm.dropout)(x, deterministic=deterministic)
            block = self.param(f"layer_{number}", _init_lstm, x.shape[-1], cell)
            both = jnp.stack([x, x[:, ::-1]], axis=1)
            given, _ = run(block, both, {"cell": zeros, "hidden": zeros}, steps_LBS, None, self.dtype)
            x = jnp.concatenate([given[:, 0], given[:, 1, ::-1]], axis=-1)
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
