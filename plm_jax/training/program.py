"""The train step over a mesh, and the state that the step updates."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from plm_jax.common import keys
from plm_jax.common.phases import Phase
from plm_jax.models import registry
from plm_jax.models.partitioning import Rules
from plm_jax.models.protocol import ModelConfig, Module
from plm_jax.training import audit, optimizers, spikes, trainable
from plm_jax.training import mesh as meshes
from plm_jax.training import state as states
from plm_jax.training import step as steps
from plm_jax.training.updates import Update, in_sequence, joined


@dataclass(frozen=True)
class PrecisionConfig:
    """Dtypes of activations and gradients; parameters and the loss are always float32.

    Attributes:
      compute: dtype of activations.
      gradients: dtype in which the gradients of weight matrices are computed and summed over devices if `compute` is
        bfloat16; ignored if `compute` is float32. Sums over microbatches and the gradients of embeddings are always
        float32.
    """

    compute: Literal["float32", "bfloat16"] = "float32"
    gradients: Literal["float32", "bfloat16"] = "bfloat16"


@dataclass(frozen=True)
class ReferenceModel:
    """A frozen second model that a loss reads.

    Attributes:
      model: settings of the model.
      dtype: dtype of its parameters.
    """

    model: ModelConfig
    dtype: str = "float32"


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """The train step over a mesh, and the state that the step updates.

    A vocabulary that the mesh does not divide is padded in the state, and has its published size in checkpoints and
    within the step.

    Attributes:
      model: settings of the model.
      updates: updates of a step, in order; usually one.
      mesh: devices.
      batch_size: number of rows in a batch, for models that carry state from batch to batch.
      rules: sharding rules: (logical axis, mesh axis).
      gathers_once: whether weights are gathered once per step instead of layer by layer.
      compiler_options: options of XLA.
      precision: dtypes of activations and gradients.
      watch: definition of spikes of the loss and the gradient norm; None: spikes are not detected.
      log_norms: whether the metrics contain norms of parameters and updates.
      prng: generator of random numbers.
      references: models that the loss reads, by name.
      average: moving average of the parameters; None: no average.
    """

    model: ModelConfig
    updates: tuple[Update, ...]
    mesh: Mesh
    batch_size: int
    rules: Rules
    gathers_once: bool = False
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    precision: PrecisionConfig
    watch: spikes.Watch | None = None
    log_norms: bool = False
    prng: str = "threefry"
    references: Mapping[str, ReferenceModel] = field(default_factory=dict)
    average: states.AverageConfig | None = None
    _modules: dict[float | None, Module] = field(default_factory=dict, init=False, repr=False)

    def phase_step(self, phase: Phase) -> Callable[..., tuple[states.TrainState, dict[str, jax.Array]]]:
        """Returns the compiled train step of a phase: `(state, batch, key, learning_rate) → (state, metrics)`.

        The buffers of `state` are donated. `key` is the result of `keys.data`. If the program has references, the step
        takes one more argument: their parameters by name, a tree like `reference_shapes`.
        """
        watch = self.watch and dataclasses.replace(self.watch, first_step=phase.first_step)
        step = self._step_of(self.updates[0], phase, watch=watch, average=self.average)
        if self.updates[0].name:
            step = in_sequence({each.name: self._step_of(each, phase) for each in self.updates}, watch, self.average)

        def padded_step(state, batch, key, learning_rate, *frozen):
            root = keys.wrapped(key, self.prng)
            state, metrics = step(fitted(state, self.published_state), batch, root, learning_rate, *frozen)
            return fitted(state, self.abstract_state), metrics

        replicated = meshes.replicated(self.mesh)
        of_frozen = [_shardings(self.reference_shapes)] if self.references else []
        inputs = self.shardings, None, replicated, replicated, *of_frozen
        return self.jit(padded_step, in_shardings=inputs, out_shardings=(self.shardings, replicated), donate_argnums=0)

    def phase_gradients(self, phase: Phase, options: Mapping[str, str] = {}) -> Callable[..., dict[str, jax.Array]]:
        """Returns the compiled function `(state, batch, key) → metrics` with which audits check gradients.

        The state is not donated. If the program has references, the function takes one more argument: their parameters
        by name.

        Args:
          options: options of XLA that are added to the options of the program.

        Returns:
          A function whose metrics are: `checksums`, uint32 [tensors], one checksum per gradient, in the order of
          `tensor_names`; `loss` and `grad_norm`, [updates], one value per update.
        """
        updates = [(each.loss, steps.batch_gradients(**self._gradient_arguments(each, phase))) for each in self.updates]

        def gradients(params, step, carry, batch, key, *frozen):
            params = meshes.fitted(params, self.published_state.params)
            return audit.summarize_gradients(updates, params, step, carry, batch, keys.wrapped(key, self.prng), *frozen)

        replicated = meshes.replicated(self.mesh)
        of_frozen = [_shardings(self.reference_shapes)] if self.references else []
        inputs = self.shardings.params, replicated, self.shardings.carry, None, replicated, *of_frozen
        compiled = meshes.jit(
            gradients,
            self.mesh,
            self.rules,
            {**self.compiler_options, **options},
            in_shardings=inputs,
            out_shardings=replicated,
        )

        def check(state: states.TrainState, batch: Mapping[str, jax.Array], key: jax.Array, *frozen):
            return compiled(state.params, state.step, state.carry, batch, key, *frozen)

        return check

    def _gradient_arguments(self, update: Update, phase: Phase) -> dict[str, Any]:
        """Returns the arguments of `step.batch_gradients` for an update in a phase."""
        module = self.module(phase.dropout)
        return {
            "loss": update.loss,
            "model": module,
            "microbatches": phase.microbatches,
            "dropout": module.model.drops,
            "part": None if update.trained == trainable.ALL else update.trained,
            "references": {name: self._build(self.references[name].model) for name in update.loss.references},
            "gradients": jnp.result_type(*{self.precision.compute, self.precision.gradients}),
            "layouts": self.gathered_shardings if self.gathers_once else None,
        }

    def _step_of(self, update: Update, phase: Phase, **arguments: Any) -> Callable:
        """Returns the step of one update in a phase; `arguments` are further arguments of `step.train_step`."""
        arguments |= self._gradient_arguments(update, phase)
        return steps.train_step(optimizer=update.optimizer, log_norms=self.log_norms, **arguments)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Optimizer that joins the optimizers of all `updates`; its state contains the state of each of them."""
        return joined({update.name: update.optimizer for update in self.updates})

    def tensor_names(self) -> list[str]:
        """Returns the names of the trained tensors, by layer, in the order of the metric `norms`."""
        shapes = registry.shapes(self.model)
        return [name for update in self.updates for name in update.tensor_names(shapes)]

    def jit(self, function: Callable, **arguments: Any) -> Callable:
        """Returns a function compiled for the mesh; `arguments` are further arguments of `jax.jit`."""
        return meshes.jit(function, self.mesh, self.rules, self.compiler_options, **arguments)

    def module(self, dropout: float | None = None) -> Module:
        """Returns the module of the model.

        Args:
          dropout: value of all dropout rates; None: the rates of `model`.
        """
        if dropout not in self._modules:
            model = self.model if dropout is None else self.model.with_dropout(dropout)
            self._modules[dropout] = self._build(model)
        return self._modules[dropout]

    def _build(self, model: ModelConfig) -> Module:
        return registry.build(model, jnp.dtype(self.precision.compute), self.mesh.devices.flat[0])

    @functools.cached_property
    def abstract_state(self) -> states.TrainState:
        """Shapes, types and shardings of the state."""
        return self.state_like(self.batch_size)

    @functools.cached_property
    def published_state(self) -> states.TrainState:
        """Shapes, types and shardings of the state in checkpoints."""
        return self.state_like(self.batch_size, padded=False)

    @functools.cached_property
    def shardings(self) -> states.TrainState:
        """Shardings of the state."""
        return _shardings(self.abstract_state)

    @functools.cached_property
    def reference_shapes(self) -> dict[str, Any]:
        """Shapes, types and shardings of the parameters of each reference, by name."""

        def with_dtype(leaf, dtype):
            return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)

        trees = {}
        for name, reference in self.references.items():
            tree = meshes.stored(registry.boxed_shapes(reference.model), self.mesh, self.rules, padded=False)
            trees[name] = jax.tree.map(functools.partial(with_dtype, dtype=jnp.dtype(reference.dtype)), tree)
        return trees

    @functools.cached_property
    def gathered_shardings(self) -> Any:
        """Shardings of gathered parameters, which are not split over the mesh axes that split the tokens of a batch."""
        rules = meshes.whole_over_tokens(self.rules)
        return _shardings(meshes.stored(registry.boxed_shapes(self.model), self.mesh, rules))

    def state_like(
        self,
        batch_size: int,
        optimizer: optax.GradientTransformation | None = None,
        *,
        padded: bool = True,
    ) -> states.TrainState:
        """Returns the shapes, types and shardings of a state.

        Args:
          batch_size: number of rows of the carry.
          optimizer: optimizer whose state is included; by default the optimizer of the program.
          padded: whether vocabularies are padded.
        """
        make = functools.partial(self._state_of, batch_size=batch_size, optimizer=optimizer or self.optimizer)
        boxed = jax.eval_shape(make, registry.boxed_shapes(self.model))
        return meshes.stored(boxed, self.mesh, self.rules, padded=padded)

    def new_state(self, seed: int) -> states.TrainState:
        """Returns a fresh state, created on the mesh.

        Args:
          seed: seed of the run, from which the parameters are initialized.
        """
        return self._make(self._init, keys.data(seed, self.prng))

    def new_carry(self, batch_size: int) -> Any:
        """Returns the carry before the first batch of this size, created on the mesh."""
        return self._make(functools.partial(registry.new_carry, self.module(), batch_size))

    def new_moments(self, seed: int, step: jax.Array) -> Any:
        """Returns a fresh state of the optimizer, created on the mesh, with `step` as its count of steps."""
        fresh = self._make(lambda key: self._init(key).optimizer, keys.data(seed, self.prng))
        return optimizers.later(fresh, step)

    def place(self, state: states.TrainState, before: "Program", batch_size: int) -> states.TrainState:
        """Returns a state of the program `before`, which must have the same devices, resharded for this program.

        The buffers of `state` are donated if `before` is another program. If the carry is not for `batch_size` rows, it
        is initialized again.
        """
        if not all(len(leaf) == batch_size for leaf in jax.tree.leaves(state.carry)):
            state = state.replace(carry=self.new_carry(batch_size))
        if before is self:
            return state
        state = fitted(state, before.published_state, meshes.refitted)
        shardings = _shardings(self.state_like(batch_size, padded=False))
        with warnings.catch_warnings():
            # An array of another shape cannot reuse the donated buffer, whose memory is free all the same.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            state = jax.device_put(state, shardings, donate=True)
        return fitted(state, self.abstract_state, meshes.refitted)

    def _init(self, key: jax.Array) -> states.TrainState:
        """Returns a fresh state, whose parameters, optimizer state and carry are boxed with logical axes."""
        root = keys.wrapped(key, self.prng)
        return self._state_of(states.init_params(self.module(), root), self.batch_size, self.optimizer)

    def _state_of(self, params, batch_size: int, optimizer) -> states.TrainState:
        carry = registry.new_carry(self.module(), batch_size)
        state = states.new_state(params, optimizer, carry, self.watch.window if self.watch else 0)
        return state.replace(average=params) if self.average else state

    def _make(self, make: Callable, *arguments: Any) -> Any:
        """Returns the result of `make(*arguments)`, a tree of boxed arrays, unboxed, padded and sharded."""
        like = meshes.stored(jax.eval_shape(make, *arguments), self.mesh, self.rules)
        init = self.jit(
            lambda *arguments: meshes.fitted(nn.unbox(make(*arguments)), like),
            in_shardings=meshes.replicated(self.mesh),
            out_shardings=_shardings(like),
        )
        return init(*arguments)


def fitted(state: states.TrainState, like: states.TrainState, fit: Callable = meshes.fitted) -> states.TrainState:
    """Pads or truncates the arrays of a state to the shapes of `like`, using the function `fit(tree, like)`.

    The carry is unchanged, because it does not depend on the vocabulary.
    """
    return state.replace(**{n: fit(getattr(state, n), getattr(like, n)) for n in ("params", "optimizer", "average")})


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, tree)
