"""Prefix language modeling, and full language modeling for encoder-decoders."""

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
    """Draws the length of a prefix of `num_tokens` tokens, from 1 to `num_tokens` - 1; for a single token, it is 0."""
    return int(rng.integers(min(1, num_tokens - 1), num_tokens))


@dataclass(frozen=True)
class PrefixLM(TextToText):
    """Prefix language modeling: the decoder continues a text that the encoder reads up to a random position.

    As in T5's `prefix_lm` (Raffel et al. 2020 §3.2.3, 3.3.1), all positions are equally likely, and both parts end with
    eos. For a length of 512, the encoder's and the decoder's row have 512 tokens each.
    """

    kind: ClassVar[str] = "prefix_lm"
    targets: ClassVar[str] = "the text after the encoder's part, and the end token"

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Splits the text at a random position."""
        cut = _prefix_length(len(tokens), rng)
        return tokens[:cut], tokens[cut:]


@dataclass(frozen=True)
class FullLM(Objective):
    """Language modeling with the decoder of an encoder-decoder; the encoder reads only eos (T5's `full_lm`).

    Documents end with eos, but rows do not. `config.data.length` is the length of the decoder's row; the encoder's row
    has length 1.
    """

    kind: ClassVar[str] = "full_lm"
    architectures: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    targets: ClassVar[str] = "every token"

    @override
    def row_length(self, length: int) -> int:
        """Returns 1: the encoder reads only eos."""
        return 1

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Returns a row with the text in the decoder.

        Args:
          example: `tokens` [L]; optionally `mask` [L], 0 at padding.

        Returns:
          `tokens` and `mask` [1] int32, eos; `targets` [L] int32, the text; `target_weights` [L] float32;
          `decoder_tokens` [L] int32, the text shifted right by one, with pad as the first token (0 if the vocabulary
          has no pad).

        Raises:
          UserError: the vocabulary has no eos, or the row has `segment_ids`, which keep its documents apart.
        """
        if special.eos is None:
            raise UserError("full lm needs eos as the encoder's input: set config.vocabulary.eos")
        check_joined(example, "full lm")
        targets = np.asarray(example["tokens"], np.int32)
        weights = np.asarray(example["mask"] if "mask" in example else np.ones(len(targets)), np.float32)
        encoder = {"tokens": np.array([special.eos], np.int32), "mask": np.ones(1, np.int32)}
        return encoder | decoder(targets, weights, special)


@dataclass(frozen=True)
class DecoderPrefixLM(Causal):
    """Causal language modeling after a prefix. The prefix has bidirectional attention and is not predicted.

    The objective trains decoders, like the "prefix LM" of Raffel et al. 2020 §3.2.1 and UniLM (Dong et al. 2019,
    arXiv:1905.03197). All lengths of the prefix that leave at least one token to predict are equally likely, as in T5's
    `prefix_lm`. T5 puts an eos after the prefix and after the rest of the text; here, eos only follows documents.
    """

    kind: ClassVar[str] = "decoder_prefix_lm"
    targets: ClassVar[str] = "every next token after the prefix"
    has_prefix: ClassVar[bool] = True
    is_likelihood: ClassVar[bool] = False

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Shifts the tokens by one, like `Causal.apply`, and draws a prefix.

        Returns:
          The row of `Causal.apply`, in which `target_weights` are 0 for targets in the prefix, with `prefix_lengths` []
          int32, the number of tokens in the prefix.

        Raises:
          UserError: the row has `segment_ids`, which keep its documents apart.
        """
        check_joined(example, "a prefix")
        row = super().apply(example, special, rng)
        length = _prefix_length(1 + int(np.count_nonzero(row["target_weights"])), rng)
        row["target_weights"][: max(0, length - 1)] = 0
        return row | {"prefix_lengths": np.array(length, np.int32)}
