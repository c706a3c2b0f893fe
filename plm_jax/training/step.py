"""The train step: one pure jitted function over a mesh."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from plm_jax.common.keys import named_key
from plm_jax.losses import Loss, LossSums, means
from plm_jax.models.partitioning import constrain
from plm_jax.training import compiler, norms, optimizers, spikes, trainable
from plm_jax.training import mesh as meshes
from plm_jax.training import step_parameters as weights
from plm_jax.training.state import TrainState


def rngs(root: jax.Array, step, microbatch, names: Sequence[str]) -> dict[str, jax.Array]:
    """The keys of a microbatch: fold_in(root, step), then microbatch, then name."""
    of_microbatch = jax.random.fold_in(jax.random.fold_in(root, step), microbatch)
    return {name: named_key(of_microbatch, name) for name in names}


def split_microbatches(batch, count: int):
    """[B, ...] → [count, B / count, ...]: row r goes to microbatch r mod count, so that no row leaves its device."""

    def split(x):
        parts = jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)
        return constrain(parts, None, "batch", *[None] * (x.ndim - 1))

    return jax.tree.map(split, batch)


def join_microbatches(parts):
    """[count, B / count, ...] → [B, ...]: the inverse of `split_microbatches`."""

    def join(x):
        return constrain(jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), "batch", *[None] * (x.ndim - 2))

    return jax.tree.map(join, parts)


def gradients(
    loss: Loss,
    model,
    held: weights.StepParameters,
    batch,
    counts,
    root,
    step,
    carry,
    microbatches: int,
    names: Sequence[str],
):
    """Sums over the microbatches: (gradients times `means.unit(counts)`, terms, metrics, carry).

    `counts` are the loss's weights of the whole batch, `names` those of keys.
    """

    def value(trained, part, microbatch, carry):
        keys = rngs(root, step, microbatch, names) if names else None
        terms, metrics, carry = loss(model, held.params(trained), part, keys, carry)
        return means.in_units(loss, terms, counts), (terms, metrics, carry)

    differentiate = jax.grad(value, has_aux=True)

    def one(part, microbatch, carry):
        grads, (terms, metrics, carry) = differentiate(held.trained, part, microbatch, carry)
        return (grads, terms, metrics), carry

    if microbatches == 1:
        (grads, *sums), carry = one(batch, 0, carry)
        return held.reduced(grads), *sums, carry

    parts, carries = split_microbatches((batch, carry), microbatches)

    def add(sums, numbered):
        microbatch, part, carry = numbered
        new, carry = one(part, microbatch, carry)
        return jax.tree.map(jnp.add, sums, new), carry

    shapes = jax.eval_shape(one, *jax.tree.map(lambda x: x[0], (parts, jnp.arange(microbatches), carries)))[0]
    zeros = held.zeros, *jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[1:])
    (grads, *sums), carries = jax.lax.scan(add, zeros, (jnp.arange(microbatches), parts, carries))
    return held.reduced(grads), *sums, join_microbatches(carries)


def train_step(
    loss: Loss,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    microbatches: int = 1,
    dropout: bool = False,
    part: trainable.Trainable = trainable.ALL,
    watch: spikes.Watch | None = None,
    log_norms: bool = False,
    **holding: Any,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the pure step `(state, batch, root, learning_rate) → (state, metrics)`.

    `root` is the run's key, `learning_rate` the rate of this update, float32. If the loss or the gradients are not
    finite, the update is skipped: only the step of the state changes.

    Args:
      loss: what is minimised.
      model: the module.
      optimizer: transformation of the gradients into updates of `part`; it receives `learning_rate` and `grad_norm`.
      microbatches: parts of the batch whose gradients are added up.
      dropout: whether the loss is given a key `dropout`.
      part: of the parameters, what is trained.
      watch: for spikes, in the state's `recent`; None: for none.
      log_norms: whether norms are of parameters and updates, too.
      holding: how microbatches take the parameters, see `weights.held`.

    Returns:
      Metrics: the means of the loss, see `losses.means`, `grad_norm`, `learning_rate`; `digest`, the batch's uint32
      digest halves [B, 2] added up; `norms` of the gradients [1, tensors], with those of the parameters before the
      update and of the updates [3, tensors], in the order of `trainable.Trainable.names`; `incident` int32, what the
      step was, see `spikes`, and `limits` [2] above which loss and gradient norm are spikes.
    """
    # Not every optax transformation accepts extra arguments.
    optimizer = optax.with_extra_args_support(optimizer)
    names = [name for name, needed in (("dropout", dropout), ("sample", loss.samples)) if needed]

    def step(state: TrainState, batch, root, learning_rate):
        batch = dict(batch)
        digest = batch.pop("digest").sum(0)
        counts = loss.weights(model, batch)
        held = weights.held(model, state.params, part=part, **holding)
        grads, terms, metrics, carry = gradients(
            loss, model, held, batch, counts, root, state.step, state.carry, microbatches, names
        )
        unit = means.unit(counts)
        # Of the sums, and a product: XLA melts it into the optimizer's passes, a division it would write to memory.
        of_gradients = norms.squares(grads)
        grad_norm = jnp.sqrt(of_gradients.sum()) / unit
        scale = 1.0 / unit
        grads = jax.tree.map(lambda g: g * scale, grads)
        updates, optimizer_state = optimizer.update(
            grads, state.optimizer, state.params, grad_norm=grad_norm, learning_rate=learning_rate
        )
        metrics = means.means(loss, LossSums(terms, metrics, counts))
        seen = _seen(watch, state, jnp.stack([metrics["loss"], grad_norm]))
        own = part.of(state.params)
        others = [jnp.sqrt(norms.squares(tree)) for tree in (own, updates)] if log_norms else []
        metrics |= {"grad_norm": grad_norm, "learning_rate": learning_rate, "digest": digest}
        metrics |= {"norms": jnp.stack([jnp.sqrt(of_gradients) / unit, *others])}
        metrics |= {"incident": seen.incident, "limits": seen.limits}

        def unless_skipped(new, old):
            return jax.tree.map(functools.partial(jnp.where, seen.taken), new, old)

        params = part.put(state.params, unless_skipped(optax.apply_updates(own, updates), own))
        optimizer_state = optimizers.unless_skipped(seen.taken, optimizer_state, state.optimizer)
        carry = unless_skipped(carry, state.carry)
        return TrainState(state.step + 1, params, optimizer_state, carry, seen.recent), metrics

    return step


class _Seen(NamedTuple):
    """What a step's loss and gradient norm say: what it is, whether its update is taken, and the window after it."""

    incident: jax.Array
    taken: jax.Array
    limits: jax.Array
    recent: Any


def _seen(watch: spikes.Watch | None, state: TrainState, values: jax.Array) -> _Seen:
    is_lost = ~jnp.isfinite(values).all()
    if watch is None:
        return _Seen(jnp.where(is_lost, spikes.LOST, spikes.NONE), ~is_lost, jnp.full(2, jnp.inf), state.recent)
    limits = watch.limits(state.recent, state.step)
    is_spike = (values > limits).any() & ~is_lost
    incident = jnp.where(is_lost, spikes.LOST, jnp.where(is_spike, spikes.SPIKE, spikes.NONE))
    recent = watch.after(state.recent, state.step, values, limits)
    return _Seen(incident, ~(is_lost | (is_spike & watch.skips)), limits, recent)


def over_mesh(function: Callable, mesh: Mesh, rules, options: Mapping[str, str] | None = None, **jit: Any) -> Callable:
    """`function` jitted with the logical-axis rules in force and called under the mesh.

    Args:
      options: XLA's; by default those of the devices' preset, see `compiler`.
      jit: further arguments of `jax.jit`.
    """

    def traced(*args):
        with nn.logical_axis_rules(rules):
            return function(*args)

    options = compiler.options(mesh) if options is None else options
    jitted = jax.jit(traced, compiler_options=dict(options) or None, **jit)

    def under_mesh(call: Callable) -> Callable:
        @functools.wraps(call)
        def called(*args):
            with jax.set_mesh(mesh), compiler.told():
                return call(*args)

        return called

    call = under_mesh(jitted)
    call.lower, call.trace = under_mesh(jitted.lower), under_mesh(jitted.trace)
    return call


def jit_step(step: Callable, mesh: Mesh, rules, state_shardings, options: Mapping[str, str] | None = None) -> Callable:
    """Returns the train step over the mesh, for batches with any sharding; the old state's buffers are donated.

    The other arguments, a key and a learning rate, are replicated on every device.
    """
    whole = meshes.replicated(mesh)
    return over_mesh(
        step,
        mesh,
        rules,
        options,
        in_shardings=(state_shardings, None, whole, whole),
        out_shardings=(state_shardings, whole),
        donate_argnums=0,
    )
