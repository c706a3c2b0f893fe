"""Encoders: they fill single tokens that are masked."""

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.inference import blanks, decoding
from plm_jax.inference.strategies.strategy import Strategy, check_masks, head_output
from plm_jax.models import electra


class Encoder(Strategy):
    """A masked model, which gives a prompt with the most probable token in place of each mask."""

    def longest(self, given):
        """Of some positions count real tokens alone."""
        if "mask" in given and self.lm.config.attention.position.skips_padding:
            return int(given["mask"].sum(axis=1).max(initial=0))
        return super().longest(given)

    def encode(self, text):
        """The text with its masks as their ids, framed as in training."""
        if not any(mask in text for mask in blanks.MASKS):
            raise UserError(f"there is no {blanks.MASKS[0]} in '{text}': write one where a token is missing")
        marks = dict.fromkeys(blanks.MASKS, self.lm.special_ids["mask_token_id"])
        before, after = self.frame
        return [*before, *blanks.encode(self.lm.tokenizer, text, marks), *after]

    def generate(self, prompts, in_text, *, max_new_tokens=None, temperature, top_k, top_p, num_beams, seed=None):
        """The prompts with their masks filled; of options there is no choice."""
        if temperature or num_beams != 1 or (top_k, top_p) != (None, None):
            raise UserError(
                "a masked model fills each blank with the most probable token: leave out temperature, top_k, "
                "top_p and num_beams"
            )
        return [filled.text for filled in self.lm.fill(prompts, top_k=1)] if in_text else self._fill_ids(prompts)

    def fill(self, texts, top_k):
        """Each text with its masks filled, and the candidates for each."""
        mask_id = self.lm.special_ids.get("mask_token_id")
        if mask_id is None:
            return super().fill(texts, top_k)
        if top_k < 1:
            raise UserError(f"top_k is {top_k}: give at least 1")
        encoded, frame = [self.encode(text) for text in texts], [token for part in self.frame for token in part]
        logits = self.lm.logits(*decoding.padded(encoded, max(map(len, encoded), default=0)))
        return [
            blanks.fill_masks(self.lm.tokenizer, tokens, logits_LV, mask_id, frame, top_k)
            for tokens, logits_LV in zip(encoded, logits, strict=True)
        ]

    def _fill_ids(self, prompts: list[list[int]]) -> list[list[int]]:
        mask_id = self.lm.special_ids.get("mask_token_id")
        check_masks(prompts, [] if mask_id is None else [mask_id])
        tokens, mask = decoding.padded(prompts, max(map(len, prompts)))
        best = np.asarray(self.lm.logits(tokens, mask)[..., : self.known_size].argmax(axis=-1))
        filled = np.where(tokens == mask_id, best, tokens)
        return [row[: len(prompt)].tolist() for row, prompt in zip(filled, prompts, strict=True)]


class Electra(Encoder):
    """A discriminator, whose generator fills masks."""

    def logits(self, given, head):
        """Those of tokens are the generator's."""
        if head != "vocabulary":
            return super().logits(given, head)
        module, params = electra.generator(self.lm.model, self.lm.params)
        return head_output(module, params, given, head)
