"""The train step: one pure function from a state and a batch to the next state and metrics."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from plm_jax.common.keys import named_key
from plm_jax.losses import Loss, LossSums, means
from plm_jax.losses.loss import Batch, Terms
from plm_jax.models.partitioning import constrain
from plm_jax.models.protocol import Module
from plm_jax.training import optimizers, spikes, step_parameters
from plm_jax.training.spikes import Verdict
from plm_jax.training.state import AverageConfig, TrainState
from plm_jax.training.step_parameters import StepParameters
from plm_jax.training.trainable import Trainable


def train_step(
    loss: Loss,
    model: Module,
    optimizer: optax.GradientTransformation,
    microbatches: int = 1,
    dropout: bool = False,
    part: Trainable | None = None,
    watch: spikes.Watch | None = None,
    log_norms: bool = False,
    average: AverageConfig | None = None,
    references: Mapping[str, Module] = {},
    **holding: Any,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the pure step `(state, batch, root, learning_rate[, frozen]) → (state, metrics)`.

    `root` is the run's key, `learning_rate` a float32, and `frozen` the parameters of the references by name. The
    update is skipped if the loss or the gradients are not finite, or if `watch` skips a spike. The new state then
    differs only in `step`, in the step counts of the optimizer and in `recent`.

    Args:
      loss: function that is minimized.
      optimizer: transformation of the gradients into updates of `part`; it receives `learning_rate` and `grad_norm`.
      microbatches: number of microbatches, whose gradients are added up.
      dropout: whether the loss gets a PRNG key named `dropout`.
      part: selection of the parameters that are trained; None for all of them.
      watch: definition of spikes; None: spikes are not detected.
      log_norms: whether the metric `norms` includes norms of parameters and updates.
      average: moving average of the parameters in the state; None: no average.
      references: modules of the references that the loss reads, by name.
      holding: further arguments of `step_parameters.build`.

    Returns:
      The step; its metrics are the means of the loss (`losses.means`); `grad_norm`; `learning_rate`; `digest` [3], the
      sum of the batch's `digest` [B, 3]; `norms` [1 or 3, tensors], of the gradients and, with `log_norms`, of the
      parameters and updates; `incident`, a value in `spikes`; `limits` [2], the loss and gradient norm above which a
      step is a spike.
    """
    # Not every optax transformation accepts extra arguments.
    optimizer = optax.with_extra_args_support(optimizer)
    differentiate = batch_gradients(loss, model, microbatches, dropout, part, references, **holding)

    def step(state: TrainState, batch: Mapping[str, jax.Array], root: jax.Array, learning_rate: jax.Array, *frozen):
        batch = dict(batch)
        digest = batch.pop("digest").sum(0)
        grads, sums, carry = differentiate(state.params, state.step, state.carry, batch, root, *frozen)
        unit = means.unit(sums.weights)
        updates, optimizer_state, squared_norms, grad_norm = _update(optimizer, state, grads, unit, learning_rate)
        metrics = means.means(loss, sums)
        verdict = spikes.judge(watch, state.recent, state.step, jnp.stack([metrics["loss"], grad_norm]))
        trained = part.of(state.params) if part else state.params
        metrics |= {"grad_norm": grad_norm, "learning_rate": learning_rate, "digest": digest}
        metrics |= {"incident": verdict.incident, "limits": verdict.limits}
        metrics["norms"] = _norms(squared_norms, unit, (trained, updates) if log_norms else ())
        updated = optax.apply_updates(trained, updates)
        params = part.put(state.params, updated) if part else updated
        return next_state(state, params, optimizer_state, carry, verdict, average), metrics

    return step


def batch_gradients(
    loss: Loss, model: Module, microbatches: int, dropout: bool, part: Trainable | None, references: Any, **holding: Any
) -> Callable[..., tuple[Any, LossSums, Any]]:
    """Returns a pure function `(params, step, carry, batch, root[, frozen])` with the results of `sum_gradients`.

    `params`, `step` and `carry` are fields of the state. The other arguments are those of `train_step`, but the batch
    must not have a digest.
    """
    names = [name for name, needed in (("dropout", dropout), ("sample", loss.samples)) if needed]

    def differentiate(params: Any, step: jax.Array, carry: Any, batch: Batch, root: jax.Array, *frozen):
        step_params = step_parameters.build(model, params, part=part, **holding)
        keys = functools.partial(rngs, root, step, names=names)
        pairs = {name: (module, trees[name]) for trees in frozen for name, module in references.items()}
        compute = functools.partial(loss, model, **({"references": pairs} if pairs else {}))
        return sum_gradients(loss, compute, step_params, batch, loss.weights(model, batch), keys, carry, microbatches)

    return differentiate


def _norms(squared_norms: jax.Array, unit: jax.Array, trees: Sequence[Any]) -> jax.Array:
    """Returns the norms of the mean gradients and of other trees, [1 + trees, tensors]."""
    logged = [jnp.sqrt(optimizers.squared_norms(tree)) for tree in trees]
    return jnp.stack([jnp.sqrt(squared_norms) / unit, *logged])


def _update(optimizer, state: TrainState, grads: Any, unit: jax.Array, learning_rate: jax.Array):
    """Applies the optimizer to the mean gradients `grads / unit`, where `grads` are sums over the batch.

    Returns:
      A tuple: updates; state of the optimizer; squared norm of each tensor of `grads`; global norm of the mean
      gradients.
    """
    # XLA fuses a multiplication into the optimizer, but would store the results of a division.
    squared_norms = optimizers.squared_norms(grads)
    grad_norm = jnp.sqrt(squared_norms.sum()) / unit
    scale = 1.0 / unit
    grads = jax.tree.map(lambda grad: grad * scale, grads)
    updates, optimizer_state = optimizer.update(
        grads, state.optimizer, state.params, grad_norm=grad_norm, learning_rate=learning_rate
    )
    return updates, optimizer_state, squared_norms, grad_norm


def next_state(
    state: TrainState, params: Any, optimizer_state: Any, carry: Any, verdict: Verdict, average: AverageConfig | None
) -> TrainState:
    """Returns the state after a step.

    If `verdict` skips the update, this state differs from `state` only in `step`, in the step counts of the optimizer,
    in `recent`, and in arrays of `carry` that `state.carry` lacks.

    Args:
      state: state before the step.
      params: parameters after the update.
      optimizer_state: state of the optimizer after the update.
      carry: carry after the step. It may have arrays that `state.carry` lacks, which later updates of the same step
        read.
      verdict: whether the update is applied, and the new window of `recent`.
      average: moving average of the parameters; None: no average.
    """

    def unless_skipped(new, old):
        return jax.tree.map(functools.partial(jnp.where, verdict.is_taken), new, old)

    params = unless_skipped(params, state.params)
    mean = average.update(state.average, params, state.step) if average else state.average
    return TrainState(
        step=state.step + 1,
        params=params,
        optimizer=optimizers.unless_skipped(verdict.is_taken, optimizer_state, state.optimizer),
        carry=unless_skipped(carry, carry | state.carry),
        average=unless_skipped(mean, state.average),
        recent=verdict.recent,
    )


def sum_gradients(
    loss: Loss, compute: Callable, params: StepParameters, rows: Batch, counts: Terms, keys, carry, number: int
) -> tuple[Any, LossSums, Any]:
    """Adds up the gradients and the sums of the loss over the microbatches of a batch.

    Args:
      compute: the loss of a model, a function of parameters, batch, keys and carry.
      params: parameters of the step.
      rows: arrays [B, …] of the batch by name.
      counts: weight of each term of the loss in the whole batch.
      keys: function from the index of a microbatch to its PRNG keys by name.
      carry: carry before the batch (`TrainState.carry`).
      number: number of microbatches.

    Returns:
      A tuple: mean gradients times `means.unit(counts)`, float32; sums of the loss; carry to the next batch.
    """

    def objective(trained, rows, microbatch, carry):
        terms, metrics, carry = compute(params.whole(trained), rows, keys(microbatch), carry)
        return means.in_units(loss, terms, counts), (terms, metrics, carry)

    def differentiate(rows, microbatch, carry):
        grads, (terms, metrics, carry) = jax.grad(objective, has_aux=True)(params.trained, rows, microbatch, carry)
        return (grads, terms, metrics), carry

    if number == 1:
        (grads, terms, metrics), carry = differentiate(rows, 0, carry)
    else:
        (grads, terms, metrics), carry = _accumulate(differentiate, params.zeros, rows, carry, number)
    return params.reduced(grads), LossSums(terms, metrics, counts), carry


def _accumulate(differentiate: Callable, zeros: Any, batch: Any, carry: Any, microbatches: int) -> tuple[Any, Any]:
    """Computes the microbatches of a batch one after another.

    Args:
      differentiate: function from rows, the index of the microbatch and its part of the carry to `((gradients, terms,
        metrics), carry)`.
      zeros: initial value of the sum of the gradients.

    Returns:
      A pair: sums of `(gradients, terms, metrics)` over the microbatches; new carry of the batch.
    """
    rows, carries = split_microbatches((batch, carry), microbatches)

    def add(sums, numbered):
        microbatch, rows, carry = numbered
        new, carry = differentiate(rows, microbatch, carry)
        return jax.tree.map(jnp.add, sums, new), carry

    first = jax.tree.map(lambda x: x[0], (rows, jnp.arange(microbatches), carries))
    _, *shapes = jax.eval_shape(differentiate, *first)[0]
    start = zeros, *jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    sums, carries = jax.lax.scan(add, start, (jnp.arange(microbatches), rows, carries))
    return sums, join_microbatches(carries)


def rngs(root: jax.Array, step: ArrayLike, microbatch: ArrayLike, names: Sequence[str]) -> dict[str, jax.Array] | None:
    """Returns the PRNG keys of a microbatch by name; None if `names` is empty.

    `root` is folded with the step, then with the microbatch, then with the name.
    """
    if not names:
        return None
    of_microbatch = jax.random.fold_in(jax.random.fold_in(root, step), microbatch)
    return {name: named_key(of_microbatch, name) for name in names}


def split_microbatches(batch: Any, count: int) -> Any:
    """Splits arrays [B, ...] into [count, B / count, ...].

    Row r goes to microbatch r mod count. Rows therefore stay on their devices.
    """

    def split(x):
        parts = jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)
        return constrain(parts, None, "batch", *[None] * (x.ndim - 1))

    return jax.tree.map(split, batch)


def join_microbatches(parts: Any) -> Any:
    """Joins arrays [count, B / count, ...] into [B, ...]; the inverse of `split_microbatches`."""

    def join(x):
        return constrain(jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), "batch", *[None] * (x.ndim - 2))

    return jax.tree.map(join, parts)
