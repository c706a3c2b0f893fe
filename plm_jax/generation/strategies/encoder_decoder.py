"""Encoder-decoders: they answer a text."""

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.generation import scoring
from plm_jax.generation.strategies.strategy import Writer, hidden_states, spaces_moved
from plm_jax.inference import blanks
from plm_jax.models.heads import TASK


class EncoderDecoderStrategy(Writer):
    """An encoder-decoder, which answers a prompt, or gives it with what it answers for its blanks put in."""

    def logits(self, given, head):
        """Those of the decoder's tokens, which there must be; for a task they are by default the encoder's."""
        if "decoder_tokens" not in given and head == TASK:
            given = given | self._read_again(given["tokens"], given.get("mask"))
        if "decoder_tokens" not in given:
            raise UserError("this model is an encoder-decoder: give decoder_tokens too")
        return super().logits(given, head)

    def _read_again(self, tokens, mask):
        """The decoder's inputs [..., L] that are the encoder's after what a text starts with, as in BART's tasks."""
        start = self.start_id
        mask = np.ones_like(tokens) if mask is None else mask
        before = [(0, 0)] * (tokens.ndim - 1) + [(1, 0)]
        shifted, follows = (np.pad(x, before)[..., :-1] for x in (tokens, mask))
        return {"decoder_tokens": np.where(follows > 0, shifted, start), "decoder_mask": mask}

    def hidden_states(self, given):
        """The decoder's where it has tokens, else the encoder's."""
        where = ("encode", "encoder_embedded", self.lm.config.stack_paths[0])
        if "decoder_tokens" in given:
            where = ("features", "embedded", "decoder")
        return hidden_states(self.lm.model, self.lm.params, given, *where)

    def encode(self, text):
        """The text with its blanks as their ids, framed as in training."""
        marks = blanks.sentinels_of(text, self._sentinels)
        if (mask := self.lm.special_ids.get("mask_token_id")) is not None:
            marks |= {mark: mask for mark in blanks.MASKS if mark in text}
        before, _ = self.frame
        return before + blanks.encode(self.lm.tokenizer, text, marks) + self.eos_ids[:1]

    def continuation(self, context, continued):
        """The context is what the encoder reads, as it is; the continuation is what the decoder answers."""
        return self._answer(context, continued, [self.start_id])

    def continuation_of_text(self, context, continued):
        """The answer alone: behind what begins answers in training, without what ends them."""
        context, continued = spaces_moved(context, continued)
        before, _ = self.frame
        return self._answer(self.encode(context), list(self.lm.tokenizer.encode(continued)), [self.start_id, *before])

    def _answer(self, context, continued, begun) -> scoring.ScoringRow:
        """The row in which the decoder, which has read what is `begun`, answers a context, the last tokens that fit."""
        answer = scoring.continuation(begun, continued, self.lm.config.num_positions)
        most = self.lm.config.num_positions or len(context)
        return answer._replace(tokens=context[max(0, len(context) - most) :], decoder_tokens=answer.tokens)

    def generate(self, prompts, in_text, seed, **options):
        """The answers; what fills blanks is taken as a whole."""
        has_blanks = in_text and any(blanks.SENTINEL.search(prompt) for prompt in prompts)
        if has_blanks and self.decoding(**options).stop_strings:
            raise UserError("what fills blanks is one and whole: leave out stop_strings")
        return super().generate(prompts, in_text, seed, **options)

    def to_text(self, vocabulary, prompt, new):
        """The answer, or the prompt with the answer's spans in its blanks."""
        if set(prompt) & set(self._sentinels):
            new = blanks.fill_spans(prompt[:-1] if self.eos_ids else prompt, new, self._sentinels)
        return vocabulary.decode([token for token in new if token != self.lm.special_ids.get("bos_token_id")])

    @property
    def _sentinels(self) -> range:
        size = self.lm.tokenizer.vocab_size
        return range(size - 1, size - 1 - self.lm.special_ids.get("sentinels", 0), -1)
