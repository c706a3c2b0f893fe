"""Base classes of strategies, which check the inputs of a model and answer prompts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from plm_jax.common.errors import UserError, nearest
from plm_jax.generation import constraints, decoding, inputs
from plm_jax.generation.blanks import FilledText
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.text_format import TextFormat
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK, Head
from plm_jax.models.protocol import Module
from plm_jax.models.task_heads import TaskHead
from plm_jax.training import compiler

# Heads of published models that `LanguageModel.logits` documents.
HEADS = ("sentence_pair", "discriminator", "backward", TASK)


class Strategy:
    """Inference with models of one architecture.

    This base class computes states and logits. Methods such as `encode` and `generate` raise a `UserError` unless a
    subclass overrides them.

    Attributes:
      model: the Linen module.
      params: parameters of the module.
      config: the model's settings.
      text: format of the model's texts.
      default_decoding: decoding settings that the options of a call override.
    """

    def __init__(self, model: Module, params: Any, text: TextFormat, default_decoding: DecodingConfig):
        self.model, self.params, self.config = model, params, model.model
        self.text, self.default_decoding = text, default_decoding

    def read(
        self,
        tokens: Any,
        mask: Any = None,
        token_types: Any = None,
        decoder_tokens: Any = None,
        decoder_mask: Any = None,
    ) -> dict[str, np.ndarray]:
        """Returns the module's inputs by name. The arguments and errors are the same as for `LanguageModel.logits`."""
        arrays = inputs.ids("tokens", tokens, self.config.vocab_size)
        arrays |= inputs.mask("mask", mask, "tokens", arrays["tokens"])
        if token_types is not None:
            if not self.config.token_types:
                raise UserError("this model has no token types: leave out token_types")
            arrays |= inputs.ids("token_types", token_types, self.config.token_types)
            inputs.check_same_shape("token_types", arrays["token_types"], "tokens", arrays["tokens"])
        if decoder_tokens is None and decoder_mask is not None:
            raise UserError("decoder_mask is passed without decoder_tokens: pass both")
        if decoder_tokens is not None:
            if not self.config.has_decoder:
                raise UserError("this model is not an encoder-decoder: leave out decoder_tokens")
            arrays |= inputs.ids("decoder_tokens", decoder_tokens, self.config.vocab_size)
            arrays |= inputs.mask("decoder_mask", decoder_mask, "decoder_tokens", arrays["decoder_tokens"])
            if len(arrays["decoder_tokens"]) != len(arrays["tokens"]):
                raise UserError("decoder_tokens and tokens have different batch sizes: pass equal ones")
        arrays = self.with_positions(arrays)
        limit, length = self.config.num_positions, self.num_positions(arrays)
        if limit is not None and length > limit:
            raise UserError(f"{length} tokens exceed the model's {limit} positions: shorten the input")
        return arrays

    def read_texts(self, tokens: Any, *arguments: Any) -> dict[str, np.ndarray]:
        """Returns the inputs of a task head, by name.

        Args:
          tokens: ids [B, L], or [B, N, L] with N texts per row.
          arguments: further arguments of `read`, or None. They have the same leading axes as `tokens`.

        Returns:
          Arrays with the leading axes of `tokens`.

        Raises:
          UserError: the inputs have different numbers of rows or texts, or `read` rejects them.
        """
        tokens = inputs.integers("tokens", tokens)
        (rows,) = (array for name, array in self.config.init_inputs().items() if "decoder" not in name)
        if tokens.ndim <= rows.ndim:
            return self.read(tokens, *arguments)
        batch, arrays = tokens.shape[:2], [tokens]
        for argument in arguments:
            array = None if argument is None else inputs.integers("inputs", argument)
            if array is not None and array.shape[:2] != batch:
                raise UserError(f"inputs have shapes {tokens.shape} and {array.shape}: pass the same rows of texts")
            arrays.append(array)
        flat = [None if array is None else array.reshape(-1, *array.shape[2:]) for array in arrays]
        return {name: array.reshape(*batch, *array.shape[1:]) for name, array in self.read(*flat).items()}

    def with_positions(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the inputs. Positions are added for a model that does not compute them itself.

        This base class adds no positions.
        """
        return arrays

    def num_positions(self, arrays: dict[str, np.ndarray]) -> int:
        """Returns the number of positions that the longest row uses."""
        return max(arrays[name].shape[1] for name in ("tokens", "decoder_tokens") if name in arrays)

    @property
    def heads(self) -> set[str]:
        """Names of the heads whose only input is the features. The head for tokens is named "vocabulary"."""
        named = self.config.named_heads
        return {name for name, head in named.items() if type(head).init_inputs is Head.init_inputs}

    def head(self, name: str | None) -> str:
        """Checks that the model has a head, and returns the name of the head. None means the head for tokens.

        Raises:
          UserError: no model has such a head, or this model lacks it.
        """
        heads, head = self.heads, name or "vocabulary"
        if head not in heads and head not in ("vocabulary", *HEADS):
            known = {*HEADS, *heads} - {"vocabulary"}
            raise UserError(f"there is no head '{name}': {nearest(head, known)}")
        if head not in heads:
            raise UserError(f"this model has no {head.replace('_', '-')} head: load a checkpoint that has one")
        return head

    def logits(self, arrays: dict[str, np.ndarray], head: str) -> Shaped[Array, "..."]:
        """Returns the output of a head in `heads`. The inputs come from `read` or `read_texts`."""
        if isinstance(self.config.named_heads[head], TaskHead):
            return task_output(self.model, self.params, arrays, head)
        return head_output(self.model, self.params, arrays, head)

    def hidden_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "states batch length width"]:
        """Returns the embeddings, then the output of each layer, float32 [layers + 1, B, L, D].

        A model without a stack of layers has only one state, its output.
        """
        return hidden_states(self.model, self.params, arrays, "features", "embedded", "stack")

    def last_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "batch length width"]:
        """Returns the last state of `hidden_states`, without collecting the other states."""
        return features(self.model, self.params, arrays, "features")

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a prompt, framed as in training.

        Raises:
          UserError: the model does not read prompts, or the prompt does not fit the model.
        """
        raise UserError(f"a model of kind '{self.config.kind}' does not read prompts: use `hidden_states` or `logits`")

    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        """Answers prompts, which are texts if `in_text` is true and ids otherwise.

        The options and errors are the same as for `LanguageModel.generate`.
        """
        raise UserError(f"a model of kind '{self.config.kind}' does not generate text: use `hidden_states` or `logits`")

    def to_text(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """Returns the text of an answer to a prompt."""
        raise UserError(f"a model of kind '{self.config.kind}' does not generate text: use `hidden_states` or `logits`")

    def fill(self, texts: Sequence[str], top_k: int) -> list[FilledText]:
        """Fills the masks of texts, with `top_k` candidates for each mask.

        Raises:
          UserError: the model does not predict masked tokens, a text has no mask, or `top_k` is below 1.
        """
        raise UserError("this is not a masked model, or its vocabulary has no mask: use `generate`")

    def continuation_row(self, context: Sequence[int], continuation: Sequence[int]) -> ScoringRow:
        """Returns the row in which the model predicts a continuation of a context. Both are ids."""
        raise UserError(f"a model of kind '{self.config.kind}' does not continue text: use `pseudo_log_likelihoods`")

    def text_continuation_row(self, context: str, continuation: str) -> ScoringRow:
        """Returns the row in which the model predicts a continuation of a context. Both are texts.

        White space at the end of the context belongs to the continuation.
        """
        raise UserError(f"a model of kind '{self.config.kind}' does not continue text: use `pseudo_log_likelihoods`")

    def masked_rows(self, tokens: Sequence[int], begin: int, word_l2r: bool) -> list[ScoringRow]:
        """Returns a row for each token of a text from index `begin` on. The token is masked in this row.

        Args:
          word_l2r: whether the later tokens of the same word are masked too.

        Raises:
          UserError: the model does not predict masked tokens.
        """
        raise UserError("this is not a masked model, or its vocabulary has no mask: use `score`")

    @property
    def is_masked(self) -> bool:
        """Whether the model predicts masked tokens."""
        return False

    @property
    def initial_ids(self) -> list[int]:
        """Ids that a decoder reads before a text.

        Raises:
          UserError: the model is not a decoder, or no token preceded its texts in training.
        """
        raise UserError(
            f"a model of kind '{self.config.kind}' does not score whole texts: use a decoder or a masked model"
        )

    @property
    def token_model(self) -> tuple[Module, Any]:
        """Pair: the module that predicts tokens, and the parameters of this module.

        Raises:
          UserError: the model has no head for tokens.
        """
        self.head(None)
        return self.model, self.params

    @property
    def has_prefix(self) -> bool:
        """Whether a decoder was trained on prefixes, whose tokens attend to each other in both directions."""
        return self.text.has_prefix

    def decoding(self, **options: Any) -> DecodingConfig:
        """Returns the default decoding settings with these fields replaced.

        Raises:
          UserError: a field does not exist, or a value is invalid.
        """
        return self.default_decoding.changed(**options)

    def writer(self, settings: DecodingConfig | None = None, seed: int = 0, **options: Any) -> Callable[..., list[Any]]:
        """Returns a function that answers rows of ids: `decoding.generate` with this model and these settings.

        Args:
          settings: decoding settings; None: the default settings.
          seed: seed of the samples.
          options: fields of the decoding settings to replace.

        Raises:
          UserError: the model has no head for tokens, an option is invalid, or the model lacks the vocabulary that a
            text prefix or stop strings need.
        """
        self.head(None)
        settings = (settings or self.decoding()).changed(**options)
        stops = None
        if settings.stop_strings:
            stops = constraints.stops(settings.stop_strings, self.token_text, self.text.vocabulary.vocab_size)
        if isinstance(settings.forced_prefix, str) and settings.forced_prefix:
            settings = settings.changed(forced_prefix=self.encode_prefix(settings.forced_prefix))
        return partial(
            decoding.generate,
            self.model,
            self.params,
            decoding=settings,
            seed=seed,
            stops=stops,
            eos_ids=self.eos_ids,
            start_id=self.text.start_id,
            vocab_size=self.text.vocabulary_size,
            has_prefix=self.has_prefix,
        )

    def encode_prefix(self, text: str) -> list[int]:
        """Returns the ids of the text with which answers begin (`DecodingConfig.forced_prefix`)."""
        return list(self.text.vocabulary.encode(text))

    def token_text(self, token: int) -> str:
        """Returns the text that a token adds to the text before it."""
        vocabulary = self.text.vocabulary
        before = vocabulary.encode("a")
        return vocabulary.decode([*before, token])[len(vocabulary.decode(before)) :]

    @property
    def eos_ids(self) -> list[int]:
        """Ids that end an answer."""
        return self.text.eos_ids

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Pair: the ids before a text, and the ids after a text."""
        return list(self.text.before), list(self.text.after)


class Writer(Strategy):
    """Base class of the strategies that write token by token."""

    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        """Continues or answers each prompt. The arguments are the same as in the base class."""
        settings = self.decoding(**options)
        write = self.writer(seed=seed, **options)
        if not in_text:
            return write(prompts)
        encoded = [self.encode(prompt) for prompt in prompts]

        def to_text(prompt: list[int], answer: list[int]) -> str:
            return constraints.cut(self.to_text(prompt, answer), settings.stop_strings)

        written = zip(encoded, write(encoded), strict=True)
        if settings.num_return_sequences == 1:
            return [to_text(prompt, answer) for prompt, answer in written]
        return [[to_text(prompt, answer) for answer in answers] for prompt, answers in written]


def move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Moves the white space at the end of a context to the beginning of its continuation."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation


def check_masks(prompts: Sequence[Sequence[int]], mask_ids: Sequence[int]) -> None:
    """Raises a `UserError` unless each prompt has at least one of these ids."""
    if not all(set(prompt) & set(mask_ids) for prompt in prompts):
        known = f"the model's is {', '.join(map(str, mask_ids))}" if mask_ids else "the model has none"
        raise UserError(f"a prompt has no mask id: use one in place of each missing token ({known})")


@partial(compiler.jit_inference, static_argnames=("model", "head"))
def head_output(model: Module, params: Any, inputs: dict[str, Any], head: str) -> Shaped[Array, "..."]:
    """Returns the output of a head of a module."""
    features = model.apply({"params": params}, **inputs, method="features")
    return model.apply({"params": params}, features, head, method="head_output")


@partial(compiler.jit_inference, static_argnames=("model", "head"))
def task_output(model: Module, params: Any, inputs: dict[str, Any], head: str) -> Shaped[Array, "..."]:
    """Returns the output of a task head of a module."""
    return task_heads.output(model, params, inputs, name=head)[0]


@partial(compiler.jit_inference, static_argnames=("model", "method"))
def features(
    model: Module, params: Any, inputs: dict[str, Any], method: Literal["features", "encode"]
) -> Float[Array, "batch length width"]:
    """Returns the output of `features` or `encode`, a method of a module, as float32."""
    return model.apply({"params": params}, **inputs, method=method).astype(jnp.float32)


@partial(compiler.jit_inference, static_argnames=("model", "method", "embedded", "stack"))
def hidden_states(
    model: Module, params: Any, inputs: dict[str, Any], method: Literal["features", "encode"], embedded: str, stack: str
) -> Float[Array, "states batch length width"]:
    """Returns the embeddings, the output of each layer except the last layer, and the output of `method`, stacked.

    A model without a stack of layers yields only the output of `method`.

    Args:
      embedded: name under which the module sows the embeddings.
      stack: name of the submodule that sows the output of each layer.
    """
    features, sown = model.apply({"params": params}, **inputs, method=method, mutable=["intermediates"])
    if not sown:  # A model without a stack of layers.
        return features[None].astype(jnp.float32)
    (first,) = sown["intermediates"][embedded]
    *_, hidden = sown["intermediates"][stack]["hidden"]
    return jnp.concatenate([first[None], hidden[:-1], features[None]]).astype(jnp.float32)
