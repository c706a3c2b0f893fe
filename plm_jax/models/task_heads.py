"""Heads of the tasks that a pretrained model is fine-tuned for: classes, labels, a score, tags, a span, a choice.

Shapes: B rows, N texts per row, L length, S states (the embeddings and the output of each layer), D width of the
features, C classes or labels.
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
    """The layers of a model that a task's head reads.

    Attributes:
      reads_states: whether `read` receives all hidden states. If not, it receives the features of the last layer.
    """

    reads_states = True

    def read(self, module: HeadModule, states: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Returns the input of the head [B, L, D']; here, B counts texts.

        Args:
          module: module of the head, which owns the parameters.
          states: all hidden states [S, B, L, D] if `reads_states` is True, otherwise the features [B, L, D].
          mask: [B, L], 1 for tokens, 0 for padding; None: no padding.
        """
        raise NotImplementedError

    def width(self, model: HeadedModel) -> int:
        """Returns D', the width of the result of `read`."""
        return model.state_width


@dataclass(frozen=True)
class LastLayer(Layers):
    """The last layer."""

    kind: ClassVar[str] = "last"
    reads_states = False

    @override
    def read(self, module, states, mask):
        return states


@dataclass(frozen=True)
class ConcatenatedLayers(Layers):
    """The concatenation of several layers, by default of the last four, as for BERT (Devlin et al. 2019 §5.3).

    Attributes:
      layers: indices of the layers: 0 for the embeddings, -1 for the last layer.
    """

    kind: ClassVar[str] = "concatenated"
    layers: tuple[Annotated[int, ranges.Range(-4097, 4096)], ...] = (-4, -3, -2, -1)

    @override
    def read(self, module, states, mask):
        return jnp.concatenate([states[layer] for layer in _numbers(self.layers, len(states))], axis=-1)

    @override
    def width(self, model):
        return len(self.layers) * model.state_width


@dataclass(frozen=True)
class MixedLayers(Layers):
    """A trained weighted sum of layers, as in ELMo (Peters et al. 2018, equation 1).

    Attributes:
      layers: indices of the layers, as in `ConcatenatedLayers`; empty: all layers.
      layer_norm: whether each layer is first normalized over all non-padding tokens and channels of a text. AllenNLP's
        `do_layer_norm` normalizes over all texts of a batch instead; there, the result for a text depends on the other
        texts.
      words: whether the word vectors (layer 0), which do not depend on context, are concatenated with the weighted sum.
    """

    kind: ClassVar[str] = "mixed"
    layers: tuple[Annotated[int, ranges.Range(-4097, 4096)], ...] = ()
    layer_norm: bool = False
    words: bool = False

    @override
    def read(self, module, states, mask):
        numbers = _numbers(self.layers or tuple(range(len(states))), len(states))
        mixed = module.mixed("mix", states[jnp.array(numbers)], mask, self.layer_norm)
        # ELMo's states have the words' vectors once per direction.
        words = states[0, ..., : module.model.embedding.width]
        return jnp.concatenate([words, mixed], axis=-1) if self.words else mixed

    @override
    def width(self, model):
        return model.state_width + self.words * model.embedding.width


def _numbers(layers: tuple[int, ...], states: int) -> tuple[int, ...]:
    """Converts layer indices, which may be negative, to indices from 0 (the embeddings).

    Raises:
      UserError: the model has no such layer.
    """
    for layer in layers:
        if not -states <= layer < states:
            raise UserError(f"a task's head reads layer {layer}: the model has 0 (its embeddings) to {states - 1}")
    return tuple(layer % states for layer in layers)


@dataclass(frozen=True)
class TaskHead(Head):
    """Base class of task heads with a dense output layer.

    Attributes:
      per_token: whether each token has an output. If not, each text or row has one.
      layers: layers of the model that the head reads.
      recurrent: bidirectional LSTM that reads the layers; None: no LSTM.
      transform: activation of a dense layer before the output layer; None: no such layer.
      transform_bias: whether the dense layer of `transform` has a bias.
      transform_norm: whether the model's norm follows the activation `transform`.
      bias: whether the output layer has a bias.
      dropout: dropout rate before the output layer.
      input_dropout: dropout rate before the transform; ignored without a transform.
    """

    loss = "task"
    per_token = True
    layers: Layers = LastLayer()
    recurrent: BiLstmConfig | None = None
    transform: Activation | None = None
    transform_bias: bool = True
    transform_norm: bool = False
    bias: bool = True
    dropout: ranges.ShareBelowOne = 0.0
    input_dropout: ranges.ShareBelowOne = 0.0

    @property
    def outputs(self) -> int:
        """Number of outputs of the output layer."""
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
        """Returns the output of the head in the shape of the task, float32.

        Args:
          module: module that owns the parameters.
          features: [B · N, L, D], the features of the model.
          mask: [B · N, L], 1 for tokens, 0 for padding; None: no padding.
          states: [S, B · N, L, D], all hidden states; required if `layers.reads_states` is True.
          pool: the pooler of the model, a function [B · N, 1, D] → [B · N, D]; required by the `feature` "pooler".
          texts: N, the number of texts per row.
          deterministic: whether dropout is disabled.

        Raises:
          ValueError: `states` is required and missing.
          UserError: the head has no labels, or the model lacks one of `layers`.
        """
        if not self.layers.reads_states:
            states = features
        elif states is None:
            if not module.is_initializing():
                raise ValueError("states are required: this head reads several layers")
            states = jnp.broadcast_to(features, (module.model.num_states, *features.shape))
        x = self.layers.read(module, states, mask)
        if self.recurrent:
            x = module.recurrent("recurrent", self.recurrent, x, mask, deterministic)
        if self.transforms_tokens:
            x = self.transformed(module, x, deterministic)
        x = self.select_features(x, mask, pool)
        if not self.per_token:
            x = x.reshape(-1, texts, x.shape[-1])
        if not self.transforms_tokens:
            x = self.transformed(module, x, deterministic)
        return self.shape_output(self.predict(module, x, deterministic))

    @property
    def transforms_tokens(self) -> bool:
        """Whether the transform is applied before `select_features`, to each token, and not after it."""
        return False

    def transformed(self, module, x, deterministic):
        """Applies dropout, the transform and its norm to x [B, L or N, D]; without a transform, returns x."""
        if not self.transform:
            return x
        # The texts of a row share a dropout mask, as in GPT-1's two choices.
        shared = not (self.per_token or self.transforms_tokens)
        x = module.dropout(x, self.input_dropout, shared, deterministic)
        x = module.dense("transform", x, module.model.embedding.width, bias=self.transform_bias)
        x = ACTIVATIONS[self.transform](x)
        return module.norm("norm", x) if self.transform_norm else x

    def predict(self, module, x, deterministic):
        """Applies `combine_texts`, dropout and the output layer, [B, L or N, D] → float32 [B, L or N or 1, outputs].

        Raises:
          UserError: the head has no labels.
        """
        x = module.dropout(self.combine_texts(x), self.dropout, not self.per_token, deterministic)
        if not self.outputs:
            raise UserError(f"the task's head of kind '{self.kind}' has no labels: set model.heads.{TASK}.labels")
        return module.dense("output", x, self.outputs, bias=self.bias).astype(jnp.float32)

    def select_features(self, x: jax.Array, mask: jax.Array | None, pool: Any) -> jax.Array:
        """Returns the features of the texts [B · N, D] or, by default, of the tokens [B · N, L, D]."""
        return x

    def combine_texts(self, x: jax.Array) -> jax.Array:
        """Combines the features of a row's texts; by default, returns them unchanged."""
        return x

    def shape_output(self, x: jax.Array) -> jax.Array:
        """Returns the output in the shape of the task; by default, returns it unchanged."""
        return x

    @override
    def macs(self, model, length, targets):
        width = self.layers.width(model)
        per_position = 0
        if self.recurrent:
            per_position, width = self.recurrent.macs(width), 2 * self.recurrent.cell
        if self.transform and (self.per_token or self.transforms_tokens):
            per_position, width = per_position + width * model.embedding.width, model.embedding.width
        if self.per_token:
            per_position += width * self.outputs
        return length * per_position


@dataclass(frozen=True)
class _LabelsHead(TaskHead):
    """Base class of heads with one output per label.

    Attributes:
      labels: names of the labels, in the order of their ids.
    """

    labels: tuple[str, ...] = ()

    @property
    @override
    def outputs(self):
        return len(self.labels)


@dataclass(frozen=True)
class TagsHead(_LabelsHead):
    """Prediction of a label for each token: float32 [B, L, C]."""

    kind: ClassVar[str] = "tags"


@dataclass(frozen=True)
class SpanHead(TaskHead):
    """Prediction of a span: float32 [B, L, 2], each token's scores as the first and as the last token of the span."""

    kind: ClassVar[str] = "span"

    @property
    @override
    def outputs(self):
        return 2


@dataclass(frozen=True)
class TextHead(TaskHead):
    """Base class of heads that make one prediction for a text, or for several texts whose features are added.

    GPT-1 reads a pair of texts in both orders and adds the features of the two texts (Radford et al. 2018 §3.3).

    Attributes:
      feature: features of a text, computed from its non-padding tokens (from all positions if there are none).
        `pooler`: output of the model's pooler (a dense layer with tanh) for the first token. `first` or `last`:
        features of the first or last token. `mean` or `max`: mean or maximum of the features of all tokens. `late`:
        mean over all tokens after the transform is applied to each token (EuroBERT).
    """

    per_token = False
    feature: Literal["pooler", "first", "mean", "last", "max", "late"] = "first"

    @property
    @override
    def transforms_tokens(self):
        return self.feature == "late"

    @override
    def select_features(self, x, mask, pool):
        if self.feature == "pooler":
            return pool(_pool_tokens(x, mask, "first")[:, None])
        return _pool_tokens(x, mask, "mean" if self.feature == "late" else self.feature)

    @override
    def combine_texts(self, x):
        """Adds the features of a row's texts, [B, N, D] → [B, 1, D]."""
        return x.sum(1, keepdims=True)

    @override
    def shape_output(self, x):
        return x[:, 0]


def _pool_tokens(x, mask, feature):
    """Reduces [B, L, D] to [B, D] over non-padding tokens.

    For a text of padding only, reduces over all positions. The result is therefore finite.
    """
    real = jnp.ones(x.shape[:2], bool) if mask is None else mask > 0
    real = real | ~real.any(1, keepdims=True)
    if feature == "max":
        return jnp.where(real[..., None], x, -jnp.inf).max(1)
    if feature == "mean":
        total = jnp.sum(x * real[..., None], 1, dtype=jnp.float32) / real.sum(1, keepdims=True)
        return total.astype(x.dtype)
    position = real.argmax(1) if feature == "first" else real.shape[1] - 1 - real[:, ::-1].argmax(1)
    return jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]


@dataclass(frozen=True)
class ClassesHead(TextHead, _LabelsHead):
    """Classification of a text: float32 [B, C]."""

    kind: ClassVar[str] = "classes"


@dataclass(frozen=True)
class MultiLabelHead(TextHead, _LabelsHead):
    """Prediction of zero or more labels of a text: float32 [B, C], the logit of each label."""

    kind: ClassVar[str] = "labels"


@dataclass(frozen=True)
class ScoreHead(TextHead):
    """Regression of the score of a text: float32 [B, 1].

    Attributes:
      labels: name of the score; empty: no name.
    """

    kind: ClassVar[str] = "score"
    labels: tuple[str, ...] = ()

    @property
    @override
    def outputs(self):
        return 1


@dataclass(frozen=True)
class ChoiceHead(TextHead):
    """Choice among the N texts of a row: float32 [B, N]."""

    kind: ClassVar[str] = "choice"

    @property
    @override
    def outputs(self):
        return 1

    @override
    def combine_texts(self, x):
        return x

    @override
    def shape_output(self, x):
        return x[..., 0]


def output(
    module: Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    keys: Mapping[str, jax.Array] | None = None,
    name: str = TASK,
) -> tuple[jax.Array, jax.Array]:
    """Returns a pair: the output of a task's head, and the features of the model, which other heads may read.

    The features are [B · N, L, D] in most models.

    Args:
      module: module of a model with the head.
      params: parameters of the module.
      batch: inputs of the model, such as `tokens` [B, L], or [B, N, L] with several texts per row. Other arrays are
        ignored. `mask` (`decoder_mask` for an encoder-decoder) is 0 for padding; without this array, there is no
        padding.
      keys: dict with the random key `dropout`; None or an empty dict: no dropout.
      name: name of the head.
    """
    model, keys = module.model, dict(keys or {})
    head = model.named_heads[name]
    reads_states = getattr(head, "layers", LastLayer()).reads_states
    inputs, texts = flatten_texts(model, model.read(batch))
    options = {"deterministic": not keys, "rngs": keys}
    if reads_states:
        states, _ = module.apply({"params": params}, **inputs, **options, method="states", mutable=["intermediates"])
        features, head_inputs = states[-1], {"states": states}
    else:
        features, head_inputs = module.apply({"params": params}, **inputs, **options, method="features"), {}
    head_inputs |= {"mask": inputs.get("decoder_mask" if model.has_decoder else "mask"), "texts": texts}
    return module.apply({"params": params}, features, name, **head_inputs, **options, method="head_output"), features


def flatten_texts(model: ModelConfig, inputs: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], int]:
    """Returns a pair: a model's inputs with one row per text, [B · N, …], and N, the number of texts per row.

    Inputs that already have one text per row are unchanged, and N is 1.
    """
    name, one = next(iter(model.init_inputs().items()))
    if inputs[name].ndim == one.ndim:
        return dict(inputs), 1
    return {key: value.reshape(-1, *value.shape[2:]) for key, value in inputs.items()}, inputs[name].shape[1]
