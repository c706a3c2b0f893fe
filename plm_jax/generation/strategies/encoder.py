"""Encoders: they fill single tokens that are masked."""

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.generation import decoding, scoring
from plm_jax.generation.strategies.strategy import Strategy, check_masks, head_output
from plm_jax.inference import blanks
from plm_jax.models import electra


class EncoderStrategy(Strategy):
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

    def generate(self, prompts, in_text, seed, **options):
        """The prompts with their masks filled; of options there is no choice."""
        del seed
        if options:
            raise UserError(
                "a masked model generates no text, it fills each blank with the most probable token: leave out "
                f"{', '.join(options)}"
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

    @property
    def is_masked(self):
        """Where it has a mask."""
        return "mask_token_id" in self.lm.special_ids

    def masked(self, tokens, begin, word_l2r):
        """Those of a text that is framed as in training."""
        if not self.is_masked:
            return super().masked(tokens, begin, word_l2r)
        before, after = self.frame
        row, words = [*before, *tokens, *after], None
        if word_l2r:
            words = np.cumsum(self.lm.tokenizer.word_initial[row]).tolist()
        begin, end = len(before) + begin, len(before) + len(tokens)
        return scoring.masked(row, begin, end, self.lm.special_ids["mask_token_id"], words)

    def _fill_ids(self, prompts: list[list[int]]) -> list[list[int]]:
        mask_id = self.lm.special_ids.get("mask_token_id")
        check_masks(prompts, [] if mask_id is None else [mask_id])
        tokens, mask = decoding.padded(prompts, max(map(len, prompts)))
        best = np.asarray(self.lm.logits(tokens, mask)[..., : self.known_size].argmax(axis=-1))
        filled = np.where(tokens == mask_id, best, tokens)
        return [row[: len(prompt)].tolist() for row, prompt in zip(filled, prompts, strict=True)]


class ElectraStrategy(EncoderStrategy):
    """A discriminator, whose generator fills masks."""

    def logits(self, given, head):
        """Those of tokens are the generator's."""
        if head != "vocabulary":
            return super().logits(given, head)
        return head_output(*self.of_tokens, given, head)

    @property
    def of_tokens(self):
        """The generator."""
        self.head(None)
        return electra.generator(self.lm.model, self.lm.params)
