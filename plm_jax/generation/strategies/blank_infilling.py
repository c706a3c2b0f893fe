"""Decoders that fill blanks behind the text (GLM)."""

from functools import partial

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.generation import infilling, scoring
from plm_jax.generation.strategies.decoder import DecoderStrategy
from plm_jax.generation.strategies.strategy import check_masks, spaces_moved


class BlankInfillingStrategy(DecoderStrategy):
    """A decoder that fills the blanks of a prompt, or one at its end, so that it goes on.

    Attributes:
      marks: the ids that stand for blanks.
    """

    def __init__(self, lm, marks: infilling.Marks):
        super().__init__(lm)
        self.marks = marks

    def places(self, given):
        """A row is a text up to its first sop, see `infilling.places`."""
        tokens = given["tokens"]
        return infilling.places(tokens, given.get("mask", np.ones_like(tokens)), self.marks)

    def longest(self, given):
        """Places in the text and within a blank have a table each."""
        return max(int(given[name].max(initial=0)) for name in ("positions", "block_positions"))

    @property
    def eos_ids(self):
        """What ends the filling of a blank."""
        return [self.marks.eop]

    def encode(self, text):
        """A text with its blanks."""
        return infilling.encode(self.lm.tokenizer, text, self.lm.special_ids)

    def continuation(self, context, continued):
        """The context is part A with its blank, the continuation what fills that."""
        return scoring.continuation([*context, self.marks.sop], continued, None)

    def continuation_of_text(self, context, continued):
        """Of a text without a blank what goes on with it."""
        context, continued = spaces_moved(context, continued)
        return self.continuation(self.encode(context), list(self.lm.tokenizer.encode(continued)))

    def generate(self, prompts, in_text, seed, **options):
        """The prompts with their blanks filled, or what continues them."""
        how = self.decoding(**options)
        if how.num_return_sequences > 1 or how.stop_strings:
            raise UserError("what fills blanks is one and whole: leave out num_return_sequences and stop_strings")
        write = partial(self.lm.writer(seed=seed, **options), marks=self.marks)
        if in_text:
            encoded = [self.encode(text) for text in prompts]
            filled = infilling.fill(encoded, self.marks, write)
            return [
                infilling.decode(self.lm.tokenizer, *of_text, self.marks, self.lm.special_ids)
                for of_text in zip(prompts, encoded, filled, strict=True)
            ]
        check_masks(prompts, self.marks.masks)
        filled = infilling.fill(prompts, self.marks, write)
        parts = (infilling.parts(*of_prompt, self.marks) for of_prompt in zip(prompts, filled, strict=True))
        return [[token for part in found for token in part] for found in parts]
