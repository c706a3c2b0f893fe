"""Language modelling after a prefix, and, for encoder-decoders, without one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Integer
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.objectives.causal import Causal
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.rows import check_joined
from plm_jax.objectives.special import Special
from plm_jax.objectives.text_to_text import TextToText, decoder


def _prefix_length(num_tokens: int, rng: np.random.Generator) -> int:
    """Any number from 1 on that leaves a token; of a single token, 0."""
    return int(rng.integers(min(1, num_tokens - 1), num_tokens))


@dataclass(frozen=True)
class PrefixLM(TextToText):
    """The encoder reads the text up to a random place, the decoder goes on (Raffel et al. 2020 §3.2.3, 3.3.1).

    As in T5's `prefix_lm` every place is equally likely, and both parts end with eos. T5 leaves 512 slots for each; a
    row of 512 here, too.
    """

    kind: ClassVar[str] = "prefix_lm"
    targets: ClassVar[str] = "the text after the encoder's part, and the end token"

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """The text up to a place, and from there on."""
        cut = _prefix_length(len(tokens), rng)
        return tokens[:cut], tokens[cut:]


@dataclass(frozen=True)
class FullLM(Objective):
    """The decoder says the text after an encoder that reads nothing but eos (T5's `full_lm`, for an encoder-decoder).

    Documents end with eos, rows do not. `config.data.length` is the decoder's; the encoder's row is of length 1.
    """

    kind: ClassVar[str] = "full_lm"
    architectures: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    targets: ClassVar[str] = "every token"

    @override
    def row_length(self, length: int) -> int:
        """Eos alone."""
        return 1

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Gives the text to the decoder.

        Args:
          example: `tokens` [L]; `mask` [L], 0 at padding, may be left out where there is none.

        Returns:
          `tokens` and `mask` [1] int32, eos; `targets` [L] int32, the text; `target_weights` [L] float32;
          `decoder_tokens` [L] int32, the text shifted right behind pad (0 if there is none).

        Raises:
          UserError: the vocabulary has no eos; documents are kept apart.
        """
        if special.eos is None:
            raise UserError("full lm gives the encoder eos: set config.vocabulary.eos")
        check_joined(example, "full lm")
        targets = np.asarray(example["tokens"], np.int32)
        weights = np.asarray(example["mask"] if "mask" in example else np.ones(len(targets)), np.float32)
        encoder = {"tokens": np.array([special.eos], np.int32), "mask": np.ones(1, np.int32)}
        return encoder | decoder(targets, weights, special)


@dataclass(frozen=True)
class DecoderPrefixLM(Causal):
    """Causal language modelling whose rows begin with a prefix that sees all of itself and is not predicted.

    For a decoder: the "prefix LM" of Raffel et al. 2020 §3.2.1, and UniLM's (Dong et al. 2019, arXiv:1905.03197). Every
    prefix that leaves a token is equally likely, as in T5's `prefix_lm`; eos stands after documents alone, where T5
    puts one after each of the two parts.
    """

    kind: ClassVar[str] = "decoder_prefix_lm"
    targets: ClassVar[str] = "every next token after the prefix"
    has_prefix: ClassVar[bool] = True
    is_likelihood: ClassVar[bool] = False

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Shifts the tokens by one, see `Causal.apply`, which tells the example.

        Returns:
          What `Causal.apply` does, with `target_weights` 0 where the target is in the prefix, and `prefix_lengths` []
          int32, how many of `tokens` are the prefix.

        Raises:
          UserError: documents are kept apart.
        """
        check_joined(example, "a prefix")
        made = super().apply(example, special, rng)
        length = _prefix_length(1 + int(np.count_nonzero(made["target_weights"])), rng)
        made["target_weights"][: max(0, length - 1)] = 0
        return made | {"prefix_lengths": np.array(length, np.int32)}
