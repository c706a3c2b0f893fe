"""What turns gradients into updates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from plm_jax.common import ranges
from plm_jax.common.roles import Role

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Role):
    """Gradients are clipped, become a direction, and are scaled by the learning rate.

    Attributes:
      recipe: fields whose change leaves the state what it is, so that a run may go on with it; any other is refused.
      clip_norm: the largest norm of all gradients together (0: not clipped).
      layer_decay: factor on the learning rate from each layer to the one below it, as of ELECTRA when it is fine-tuned
        (google-research/electra, model/optimization.py): of n layers those of depth d have rate · layer_decay ** (n + 2
        - d), where d is 0 for the embeddings, i + 1 for layer i, n + 1 for a norm after the last one and n + 2 for
        heads. Layers that share parameters have the rate of the last of them, and of several stacks, as an encoder and
        a decoder, each counts its own layers; embeddings count those of the deepest.
    """

    recipe: ClassVar[tuple[str, ...]] = ("clip_norm", "layer_decay")
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = 1.0
    layer_decay: ranges.ShareAboveZero = 1.0

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """What makes a direction of clipped gradients, one after another; importing JAX is left until then."""
        raise NotImplementedError


# What AdamW and LAMB may go on with.
_OF_MOMENTS = ("b1", "b2", "epsilon", "weight_decay", "bias_correction", "first_moment", *OptimizerConfig.recipe)


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay.

    Attributes:
      decay_norms_and_biases: whether weight decay acts on these too, as where all parameters are one group (fairseq).
      first_moment: the type that it is kept in; bfloat16 saves two bytes a parameter. The second one is float32: at a
        b2 of 0.999 what a step adds to it is less than bfloat16 tells apart.
    """

    kind: ClassVar[str] = "adamw"
    recipe: ClassVar[tuple[str, ...]] = _OF_MOMENTS
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.999
    epsilon: ranges.Epsilon = 1e-8
    weight_decay: ranges.Scale = 0.0
    decay_norms_and_biases: bool = False
    bias_correction: bool = True
    first_moment: Literal["float32", "bfloat16"] = "float32"

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """As the base says."""
        from plm_jax.training import optimizers

        return optimizers.adamw(self)


@dataclass(frozen=True)
class LambConfig(OptimizerConfig):
    """AdamW's direction scaled to each tensor's norm, norms and biases left as they are (You et al. 2020).

    The defaults are ALBERT's (google-research/albert, lamb_optimizer.py); You et al. correct the bias.

    Attributes:
      first_moment: as in `AdamWConfig`.
    """

    kind: ClassVar[str] = "lamb"
    recipe: ClassVar[tuple[str, ...]] = _OF_MOMENTS
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.999
    epsilon: ranges.Epsilon = 1e-6
    weight_decay: ranges.Scale = 0.01
    bias_correction: bool = False
    first_moment: Literal["float32", "bfloat16"] = "float32"

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """As the base says."""
        from plm_jax.training import optimizers

        return optimizers.lamb(self)


@dataclass(frozen=True)
class AdafactorConfig(OptimizerConfig):
    """Adafactor without momentum (Shazeer & Stern 2018); the defaults are t5x's, by which T5 was trained.

    Attributes:
      decay_exponent: the second moment of update t decays by 1 - t^-decay_exponent.
      clipping_threshold: the largest root mean square of a tensor's direction.
      min_dim_size_to_factor: a matrix whose sides are both at least this keeps moments of its rows and columns only.
      epsilon: added to squared gradients.
      multiply_by_parameter_scale: whether the rate is relative to the root mean square of the tensor, which counts as
        at least `parameter_epsilon`.
    """

    kind: ClassVar[str] = "adafactor"
    recipe: ClassVar[tuple[str, ...]] = (
        *("decay_exponent", "clipping_threshold", "epsilon", "multiply_by_parameter_scale", "parameter_epsilon"),
        *OptimizerConfig.recipe,
    )
    decay_exponent: Annotated[float, ranges.Range(0, 10, above=True)] = 0.8
    clipping_threshold: ranges.Positive = 1.0
    min_dim_size_to_factor: ranges.Count = 128
    epsilon: ranges.Epsilon = 1e-30
    multiply_by_parameter_scale: bool = True
    parameter_epsilon: ranges.Share = 1e-3
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=0.0, kw_only=True)

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """As the base says."""
        from plm_jax.training import optimizers

        return optimizers.adafactor(self)


@dataclass(frozen=True)
class AdagradConfig(OptimizerConfig):
    """Adagrad (Duchi et al. 2011); the defaults are those of ELMo's training (allenai/bilm-tf, train_elmo.py).

    Attributes:
      initial_accumulator: the sum of squared gradients before the first, TensorFlow's way to keep first steps small.
    """

    kind: ClassVar[str] = "adagrad"
    recipe: ClassVar[tuple[str, ...]] = ("initial_accumulator", *OptimizerConfig.recipe)
    initial_accumulator: ranges.Scale = 1.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=10.0, kw_only=True)

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """As the base says."""
        from plm_jax.training import optimizers

        return optimizers.adagrad(self)


@dataclass(frozen=True)
class SgdConfig(OptimizerConfig):
    """The gradient itself, or with `momentum` the sum of all before it, each times momentum once a step since."""

    kind: ClassVar[str] = "sgd"
    momentum: ranges.ShareBelowOne = 0.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=0.0, kw_only=True)

    def transformations(self) -> Sequence["optax.GradientTransformation"]:
        """As the base says."""
        from plm_jax.training import optimizers

        return optimizers.sgd(self)
