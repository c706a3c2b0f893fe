"""The base of strategies: how a model's inputs are checked, and what it makes of prompts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common.errors import UserError, nearest
from plm_jax.config import DecodingConfig
from plm_jax.generation import constraints, decoding, inputs, scoring
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK, Head
from plm_jax.models.task_heads import TaskHead
from plm_jax.runs import model_text

if TYPE_CHECKING:
    import seqio

    from plm_jax.inference.language_model import LanguageModel

Rows = Sequence[Sequence[int]]
# The heads of published models that `LanguageModel.logits` tells about.
HEADS = ("sentence_pair", "discriminator", "backward", TASK)


class Strategy:
    """The base: it reads ids of tokens, and writes nothing.

    Attributes:
      lm: the model.
    """

    def __init__(self, lm: "LanguageModel"):
        self.lm = lm

    def read(
        self,
        tokens: Any,
        mask: Any = None,
        token_types: Any = None,
        decoder_tokens: Any = None,
        decoder_mask: Any = None,
    ) -> dict[str, np.ndarray]:
        """The module's inputs by their names; arguments and errors as `LanguageModel.logits`."""
        model = self.lm.config
        found = inputs.ids("tokens", tokens, model.vocab_size)
        found |= inputs.mask("mask", mask, "tokens", found["tokens"])
        if token_types is not None:
            types = model.token_types
            if not types:
                raise UserError("this model has no token types: leave token_types out")
            found |= inputs.ids("token_types", token_types, types)
            inputs.same_shape("token_types", found["token_types"], "tokens", found["tokens"])
        if decoder_tokens is None and decoder_mask is not None:
            raise UserError("decoder_mask is given without decoder_tokens: give both")
        if decoder_tokens is not None:
            if not model.has_decoder:
                raise UserError("this model is no encoder-decoder: leave decoder_tokens out")
            found |= inputs.ids("decoder_tokens", decoder_tokens, model.vocab_size)
            found |= inputs.mask("decoder_mask", decoder_mask, "decoder_tokens", found["decoder_tokens"])
            if len(found["decoder_tokens"]) != len(found["tokens"]):
                raise UserError("decoder_tokens and tokens have different batch sizes: give the same")
        found |= self.places(found)
        if (most := model.num_positions) is not None and (longest := self.longest(found)) > most:
            raise UserError(f"{longest} tokens exceed the model's {most} positions: give fewer")
        return found

    def read_texts(self, tokens: Any, *others: Any) -> dict[str, np.ndarray]:
        """As `read`, for the head of a task: of rows [B, L], or [B, N, L] of several texts each."""
        tokens = inputs.integers("tokens", tokens)
        (one,) = {name: value for name, value in self.lm.config.init_inputs().items() if "decoder" not in name}.values()
        if tokens.ndim <= one.ndim:
            return self.read(tokens, *others)
        rows = tokens.shape[:2]
        given = [None if value is None else inputs.integers("inputs", value) for value in others]
        for value in given:
            if value is not None and value.shape[:2] != rows:
                raise UserError(f"inputs have shapes {tokens.shape} and {value.shape}: give the same rows of texts")
        flat = [None if value is None else value.reshape(-1, *value.shape[2:]) for value in (tokens, *given)]
        return {name: value.reshape(*rows, *value.shape[1:]) for name, value in self.read(*flat).items()}

    def places(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Positions of tokens, as further inputs, of a model that does not count them itself."""
        del given
        return {}

    def longest(self, given: dict[str, np.ndarray]) -> int:
        """How many positions the inputs take."""
        return max(given[name].shape[1] for name in ("tokens", "decoder_tokens") if name in given)

    @property
    def heads(self) -> set[str]:
        """The names of the heads that read features alone; "vocabulary" is that of tokens."""
        named = self.lm.config.named_heads
        return {name for name, head in named.items() if type(head).init_inputs is Head.init_inputs}

    def head(self, name: str | None) -> str:
        """The name of a head that the model has; None: that of tokens.

        Raises:
          UserError: there is no such head, or the model has none.
        """
        heads, wanted = self.heads, name or "vocabulary"
        if wanted not in heads and wanted not in ("vocabulary", *HEADS):
            known = {*HEADS, *heads} - {"vocabulary"}
            raise UserError(f"there is no head '{name}': {nearest(wanted, known)}, or leave it out")
        if wanted not in heads:
            said = wanted.replace("_", "-")
            raise UserError(f"this model has no {said} head: load a checkpoint that holds one")
        return wanted

    def logits(self, given: dict[str, np.ndarray], head: str) -> jax.Array:
        """What one of `heads` gives for inputs as `read` or `read_texts` gives them."""
        if isinstance(self.lm.config.named_heads[head], TaskHead):
            return task_output(self.lm.model, self.lm.params, given, head)
        return head_output(self.lm.model, self.lm.params, given, head)

    def hidden_states(self, given: dict[str, np.ndarray]) -> jax.Array:
        """Float32 [layers + 1, B, L, D], see `LanguageModel.hidden_states`."""
        return hidden_states(self.lm.model, self.lm.params, given, "features", "embedded", "stack")

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, as the model was trained to see it."""
        raise NotImplementedError

    def generate(self, prompts: list[str] | list[list[int]], in_text: bool, seed: int, **options: Any) -> list[Any]:
        """What the model makes of prompts, texts or ids; options as `LanguageModel.generate`."""
        raise UserError(f"a model of kind '{self.lm.config.kind}' writes no text: use `hidden_states` or `logits`")

    def fill(self, texts: Sequence[str], top_k: int) -> list[Any]:
        """See `LanguageModel.fill`."""
        raise UserError("this model is no masked one, or has no mask in its vocabulary: use `generate`")

    def continuation(self, context: Sequence[int], continued: Sequence[int]) -> scoring.ScoringRow:
        """The row in which the model predicts a continuation of a context, both ids."""
        raise UserError(
            f"a model of kind '{self.lm.config.kind}' continues no text: use `pseudo_log_likelihoods`, or another model"
        )

    def continuation_of_text(self, context: str, continued: str) -> scoring.ScoringRow:
        """As `continuation`, of texts; white space at the end of the context belongs to the continuation."""
        return self.continuation([], [])

    def masked(self, tokens: Sequence[int], begin: int, word_l2r: bool) -> list[scoring.ScoringRow]:
        """The rows in which each token of a text from `begin` on is hidden, as `LanguageModel.pseudo_log_likelihoods`
        has it.
        """
        raise UserError("this model is no masked one, or has no mask in its vocabulary: use `score`")

    @property
    def is_masked(self) -> bool:
        """Whether it tells tokens that are hidden."""
        return False

    @property
    def before_all(self) -> list[int]:
        """What a decoder reads before a text.

        Raises:
          UserError: it is none, or nothing stood there in training.
        """
        raise UserError(f"a model of kind '{self.lm.config.kind}' tells no whole texts: take a decoder or a masked one")

    @property
    def of_tokens(self) -> tuple[Any, Any]:
        """The module that predicts tokens, and its parameters."""
        self.head(None)
        return self.lm.model, self.lm.params

    @property
    def sees_prompt(self) -> bool:
        """Whether a decoder was trained on prefixes, all of which see each other."""
        return self.lm.run is not None and self.lm.run.objective.has_prefix

    # What those that write share.

    def decoding(self, **options: Any) -> DecodingConfig:
        """The run's, with some fields set otherwise."""
        of_run = DecodingConfig() if self.lm.run is None else self.lm.run.evaluation.decoding
        return of_run.changed(**options)

    def writer(self, how: DecodingConfig | None = None, seed: int = 0, **options: Any) -> Callable[..., list[Any]]:
        """`decoding.generate` with this model: from rows of tokens to what follows or answers each.

        Args:
          how: to decode; None: as the run does.
          seed: of samples.
          options: fields of it to be set otherwise.

        Raises:
          UserError: the model has no head for tokens, or no vocabulary, which texts to begin with or to stop at need.
        """
        lm = self.lm
        self.head(None)
        how = (how or self.decoding()).changed(**options)
        stops = constraints.stops(how.stop_strings, self.adds, lm.tokenizer.vocab_size) if how.stop_strings else None
        if isinstance(how.forced_prefix, str) and how.forced_prefix:
            how = how.changed(forced_prefix=self.prefix(how.forced_prefix))
        return partial(
            decoding.generate,
            lm.model,
            lm.params,
            decoding=how,
            seed=seed,
            stops=stops,
            eos_ids=self.eos_ids,
            start_id=self.start_id,
            vocab_size=self.known_size,
            sees_prompt=self.sees_prompt,
        )

    def prefix(self, text: str) -> list[int]:
        """The tokens of a text that answers begin with."""
        return list(self.lm.tokenizer.encode(text))

    def adds(self, token: int) -> str:
        """What a token adds to a text, within it."""
        vocabulary = self.lm.tokenizer
        before = vocabulary.encode("a")
        return vocabulary.decode([*before, token])[len(vocabulary.decode(before)) :]

    @property
    def start_id(self) -> int:
        """What a decoder that answers begins with."""
        special = self.lm.special_ids
        return special.get("decoder_start_token_id", special.get("pad_token_id", 0))

    @property
    def eos_ids(self) -> list[int]:
        """What ends a text."""
        vocabulary = self.lm.tokenizer if self.lm.has_vocabulary else None
        eos = self.lm.special_ids.get("eos_token_id", getattr(vocabulary, "eos_id", None))
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    @property
    def known_size(self) -> int | None:
        """How many tokens the vocabulary has; None: there is none, ids need none."""
        return self.lm.tokenizer.vocab_size if self.lm.has_vocabulary else None

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text."""
        return model_text.frame(self.lm.config, self.lm.special_ids, self.lm.run)


class Writer(Strategy):
    """The base of those that write token by token."""

    def generate(self, prompts, in_text, seed, **options):
        """What follows each prompt, or answers it."""
        how = self.decoding(**options)
        write = self.lm.writer(seed=seed, **options)
        if not in_text:
            return write(prompts)
        encoded = [self.encode(prompt) for prompt in prompts]
        found, vocabulary = write(encoded), self.lm.tokenizer

        def to_text(prompt, new):
            return constraints.cut(self.to_text(vocabulary, prompt, new), how.stop_strings)

        if how.num_return_sequences == 1:
            return [to_text(*pair) for pair in zip(encoded, found, strict=True)]
        return [[to_text(prompt, new) for new in answers] for prompt, answers in zip(encoded, found, strict=True)]

    def to_text(self, vocabulary: "seqio.Vocabulary", prompt: Sequence[int], new: Sequence[int]) -> str:
        """What was written, as text."""
        raise NotImplementedError


def spaces_moved(context: str, continued: str) -> tuple[str, str]:
    """A context and its continuation, with the white space at the end of the first at the begin of the second."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continued


def check_masks(prompts: Rows, masks: Sequence[int]) -> None:
    """Raises a `UserError` unless each prompt has a blank, one of these ids."""
    if not all(set(prompt) & set(masks) for prompt in prompts):
        known = f"the model's is {', '.join(map(str, masks))}" if masks else "the model has none"
        raise UserError(f"a prompt has no id of a mask: put one where a token is missing ({known})")


@partial(jax.jit, static_argnames=("model", "head"))
def head_output(model, params, inputs, head):
    """What a head of a module gives for inputs."""
    features = model.apply({"params": params}, **inputs, method="features")
    return model.apply({"params": params}, features, head, method="head_output")


@partial(jax.jit, static_argnames=("model", "head"))
def task_output(model, params, inputs, head):
    """What the head of a task gives for inputs."""
    return task_heads.output(model, params, inputs, name=head)[0]


@partial(jax.jit, static_argnames=("model", "method", "embedded", "stack"))
def hidden_states(model, params, inputs, method, embedded, stack):
    """What a method of a module sows as `embedded` and, of each layer, in a stack, and what it gives."""
    features, sown = model.apply({"params": params}, **inputs, method=method, mutable=["intermediates"])
    if not sown:  # A model that is no stack of layers.
        return features[None].astype(jnp.float32)
    (first,) = sown["intermediates"][embedded]
    *_, hidden = sown["intermediates"][stack]["hidden"]
    return jnp.concatenate([first[None], hidden[:-1], features[None]]).astype(jnp.float32)
