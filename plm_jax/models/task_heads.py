"""Heads of tasks that a pretrained model is fine-tuned for: classes, a score, tags, a span, a choice.

Shapes: B rows, N texts a row, L length, S states (the embeddings, then what each layer gives), D width, C classes.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.models.heads import TASK, Head, HeadedModel, HeadModule
from plm_jax.models.layers import ACTIVATIONS, Activation
from plm_jax.models.protocol import ModelConfig, Module
from plm_jax.models.recurrent import BiLstmConfig


class Layers(Role):
    """Which of a model's layers a task's head reads.

    Attributes:
      reads_states: whether `read` takes the states [S, B, L, D] or the last layer's features [B, L, D] alone.
    """

    reads_states = True

    def read(self, module: HeadModule, states: jax.Array, mask: jax.Array | None) -> jax.Array:
        """[S, B, L, D], or [B, L, D] where it reads no states → [B, L, D']; a text's mask is [B, L]."""
        raise NotImplementedError

    def width(self, model: HeadedModel) -> int:
        """D'."""
        return model.state_width


@dataclass(frozen=True)
class LastLayer(Layers):
    """The last layer."""

    kind: ClassVar[str] = "last"
    reads_states = False

    @override
    def read(self, module, states, mask):
        """As it is."""
        return states


@dataclass(frozen=True)
class ConcatenatedLayers(Layers):
    """Several layers side by side, by default BERT's last four (Devlin et al. 2019 §5.3).

    Attributes:
      layers: their numbers; 0 is the embeddings, -1 the last layer.
    """

    kind: ClassVar[str] = "concatenated"
    layers: tuple[Annotated[int, ranges.Range(-4097, 4096)], ...] = (-4, -3, -2, -1)

    @override
    def read(self, module, states, mask):
        """[S, B, L, D] → [B, L, D · layers]."""
        return jnp.concatenate([states[layer] for layer in _numbers(self.layers, len(states))], axis=-1)

    @override
    def width(self, model):
        """All of them."""
        return len(self.layers) * model.state_width


@dataclass(frozen=True)
class MixedLayers(Layers):
    """A trained weighted sum of layers, ELMo's (Peters et al. 2018, equation 1).

    Attributes:
      layers: as of `ConcatenatedLayers`; empty: all.
      layer_norm: each layer is normed before, over all real places and channels of a text together (AllenNLP's
        `do_layer_norm`, but that takes all texts of a batch together, so that what stands beside a text changes it).
      words: the words' own vectors x stand beside the sum, [x; ELMo]: layer 0, without what it has of context.
    """

    kind: ClassVar[str] = "mixed"
    layers: tuple[Annotated[int, ranges.Range(-4097, 4096)], ...] = ()
    layer_norm: bool = False
    words: bool = False

    @override
    def read(self, module, states, mask):
        """[S, B, L, D] → [B, L, D], or [B, L, x + D] with the words' vectors."""
        numbers = _numbers(self.layers or tuple(range(len(states))), len(states))
        mixed = module.mixed("mix", states[jnp.array(numbers)], mask, self.layer_norm)
        # An ELMo has its words' vectors once for each direction.
        words = states[0, ..., : module.model.embedding.width]
        return jnp.concatenate([words, mixed], axis=-1) if self.words else mixed

    @override
    def width(self, model):
        """The sum's, and that of words."""
        return model.state_width + self.words * model.embedding.width


def _numbers(layers: tuple[int, ...], states: int) -> tuple[int, ...]:
    """Layers counted from the embeddings.

    Raises:
      UserError: there are fewer.
    """
    for layer in layers:
        if not -states <= layer < states:
            raise UserError(f"a task's head reads layer {layer}: the model has 0 (its embeddings) to {states - 1}")
    return tuple(layer % states for layer in layers)


@dataclass(frozen=True)
class TaskHead(Head):
    """What the heads of all tasks have; a dense layer to what is told of a text comes last.

    Attributes:
      of_tokens: whether each token has an output of its own.
      layers: what of the model is read.
      recurrent: an LSTM in both directions over that; None: there is none.
      transform: before the last layer comes a dense one with this activation.
      bias: the last layer has a bias.
      dropout: before the last layer.
      input_dropout: before the transform.
    """

    loss = "task"
    of_tokens = True
    layers: Layers = LastLayer()
    recurrent: BiLstmConfig | None = None
    transform: Activation | None = None
    bias: bool = True
    dropout: ranges.ShareBelowOne = 0.0
    input_dropout: ranges.ShareBelowOne = 0.0

    @property
    def outputs(self) -> int:
        """How many numbers the last layer gives."""
        raise NotImplementedError

    @property
    @override
    def drops(self) -> bool:
        return any((self.dropout, self.input_dropout, self.recurrent and self.recurrent.dropout))

    @override
    def with_dropout(self, rate: float) -> "TaskHead":
        recurrent = self.recurrent and dataclasses.replace(self.recurrent, dropout=rate)
        return dataclasses.replace(self, recurrent=recurrent, dropout=rate, input_dropout=rate)

    @override
    def compute(self, module, features, mask=None, states=None, pool=None, texts=1, *, deterministic=True):
        """[B · N, L, D] → float32, as the task asks for.

        Args:
          module: as in `Head`.
          features: [B · N, L, D], the model's.
          mask: [B · N, L], 1 for real tokens; None: all are.
          states: [S, B · N, L, D], for layers that are read besides the last.
          pool: what the model's pooler makes of features, [B · N, 1, D] → [B · N, D].
          texts: N.
          deterministic: no dropout.
        """
        if not self.layers.reads_states:
            states = features
        elif states is None:
            if not module.is_initializing():
                raise ValueError("this head reads several layers: give states")
            states = jnp.broadcast_to(features, (module.model.num_states, *features.shape))
        x = self.layers.read(module, states, mask)
        if self.recurrent:
            x = module.recurrent("recurrent", self.recurrent, x, mask, deterministic)
        x = self.gathered(x, mask, pool)
        if not self.of_tokens:
            x = x.reshape(-1, texts, x.shape[-1])
        return self.finished(self.told(module, x, deterministic))

    def told(self, module, x, deterministic):
        """The layers after what is read: [B, L or N, D] → float32 [B, L or N or 1, outputs]."""
        # The texts of a row are dropped alike, as in GPT-1's two choices.
        shared = not self.of_tokens
        if self.transform:
            x = module.dropout(x, self.input_dropout, shared, deterministic)
            x = ACTIVATIONS[self.transform](module.dense("transform", x, module.model.embedding.width))
        x = module.dropout(self.joined(x), self.dropout, shared, deterministic)
        if not self.outputs:
            raise UserError(f"the task's head of kind '{self.kind}' has no labels: set model.heads.{TASK}.labels")
        return module.dense("output", x, self.outputs, bias=self.bias).astype(jnp.float32)

    def gathered(self, x: jax.Array, mask: jax.Array | None, pool: Any) -> jax.Array:
        """What of a text is used: [B · N, L, D] as it is, or [B · N, D]."""
        return x

    def joined(self, x: jax.Array) -> jax.Array:
        """What a row's texts make together."""
        return x

    def finished(self, x: jax.Array) -> jax.Array:
        """The output in the shape that the task asks for."""
        return x

    @override
    def products(self, model, length, targets):
        """At all tokens, as far as there are layers there."""
        width = self.layers.width(model)
        each = 0
        if self.recurrent:
            each, width = self.recurrent.products(width), 2 * self.recurrent.cell
        if self.of_tokens:
            if self.transform:
                each, width = each + width * model.embedding.width, model.embedding.width
            each += width * self.outputs
        return length * each


@dataclass(frozen=True)
class _OfLabels(TaskHead):
    """The base of heads that tell one of several labels.

    Attributes:
      labels: their names, in the order of their ids.
    """

    labels: tuple[str, ...] = ()

    @property
    @override
    def outputs(self):
        """One a label."""
        return len(self.labels)


@dataclass(frozen=True)
class TagsHead(_OfLabels):
    """A label for each token: float32 [B, L, C]."""

    kind: ClassVar[str] = "tags"


@dataclass(frozen=True)
class SpanHead(TaskHead):
    """Where an answer begins and ends: float32 [B, L, 2], how likely each token is its first, its last."""

    kind: ClassVar[str] = "span"

    @property
    @override
    def outputs(self):
        """The scores of beginnings and of ends."""
        return 2


@dataclass(frozen=True)
class TextHead(TaskHead):
    """The base of heads that tell something of a whole text, or of several texts by the sum of what stands for each.

    GPT-1 reads a pair of texts in both orders so (Radford et al. 2018 §3.3).

    Attributes:
      feature: what stands for the text. `pooler`: the model's own pooler's dense layer with tanh on the first token;
        `first`, `last`: a real token; `mean`, `max`: over all real tokens.
    """

    of_tokens = False
    feature: Literal["pooler", "first", "mean", "last", "max"] = "first"

    @override
    def gathered(self, x, mask, pool):
        """[B · N, L, D] → [B · N, D]."""
        if self.feature == "pooler":
            return pool(_gathered(x, mask, "first")[:, None])
        return _gathered(x, mask, self.feature)

    @override
    def joined(self, x):
        """The sum over texts, [B, N, D] → [B, 1, D]."""
        return x.sum(1, keepdims=True)

    @override
    def finished(self, x):
        """[B, 1, outputs] → [B, outputs]."""
        return x[:, 0]


def _gathered(x, mask, feature):
    """[B, L, D] → [B, D], of the real tokens alone; of a row of padding, which does not count, of all."""
    real = jnp.ones(x.shape[:2], bool) if mask is None else mask > 0
    real = real | ~real.any(1, keepdims=True)
    if feature == "max":
        return jnp.where(real[..., None], x, -jnp.inf).max(1)
    if feature == "mean":
        total = jnp.sum(x * real[..., None], 1, dtype=jnp.float32) / real.sum(1, keepdims=True)
        return total.astype(x.dtype)
    place = real.argmax(1) if feature == "first" else real.shape[1] - 1 - real[:, ::-1].argmax(1)
    return jnp.take_along_axis(x, place[:, None, None], axis=1)[:, 0]


@dataclass(frozen=True)
class ClassesHead(TextHead, _OfLabels):
    """One of several labels of a text: float32 [B, C]."""

    kind: ClassVar[str] = "classes"


@dataclass(frozen=True)
class ScoreHead(TextHead):
    """A number for a text: float32 [B, 1].

    Attributes:
      labels: what it is called, if it is.
    """

    kind: ClassVar[str] = "score"
    labels: tuple[str, ...] = ()

    @property
    @override
    def outputs(self):
        """One."""
        return 1


@dataclass(frozen=True)
class ChoiceHead(TextHead):
    """Which of a row's texts is the right one: float32 [B, N]."""

    kind: ClassVar[str] = "choice"

    @property
    @override
    def outputs(self):
        """One for each text."""
        return 1

    @override
    def joined(self, x):
        """Each by itself."""
        return x

    @override
    def finished(self, x):
        """[B, N, 1] → [B, N]."""
        return x[..., 0]


def output(
    module: Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    keys: Mapping[str, jax.Array] | None = None,
    name: str = TASK,
) -> tuple[jax.Array, jax.Array]:
    """What a model's head of a task gives for a batch, and the features [B · N, L, D] that other heads may read.

    Args:
      module: of a model with the head.
      params: its parameters.
      batch: its inputs, each [B, L], or [B, N, L] for several texts a row; others are not read. Which tokens are real
        tells `mask`, of an encoder-decoder's decoder `decoder_mask`; without it all are.
      keys: `dropout`, or none.
      name: of the head.
    """
    model, keys = module.model, dict(keys or {})
    head = model.named_heads[name]
    reads_states = getattr(head, "layers", LastLayer()).reads_states
    inputs, texts = flattened(model, model.read(batch))
    given = {"deterministic": not keys, "rngs": keys}
    if reads_states:
        states, _ = module.apply({"params": params}, **inputs, **given, method="states", mutable=["intermediates"])
        features, read = states[-1], {"states": states}
    else:
        features, read = module.apply({"params": params}, **inputs, **given, method="features"), {}
    read |= {"mask": inputs.get("decoder_mask" if model.has_decoder else "mask"), "texts": texts}
    return module.apply({"params": params}, features, name, **read, **given, method="head_output"), features


def flattened(model: ModelConfig, inputs: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], int]:
    """A model's inputs with the texts of all rows as rows, [B, N, …] → [B · N, …], and N; 1 where rows are texts."""
    name, one = next(iter(model.init_inputs().items()))
    if inputs[name].ndim == one.ndim:
        return dict(inputs), 1
    return {key: value.reshape(-1, *value.shape[2:]) for key, value in inputs.items()}, inputs[name].shape[1]
