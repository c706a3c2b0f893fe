"""Encoder-decoders: they answer a text."""

from plm_jax.common.errors import UserError
from plm_jax.inference import blanks
from plm_jax.inference.strategies.strategy import Writer, hidden_states


class EncoderDecoder(Writer):
    """An encoder-decoder, which answers a prompt, or gives it with what it answers for its blanks put in."""

    def logits(self, given, head):
        """Those of the decoder's tokens, which there must be."""
        if "decoder_tokens" not in given:
            raise UserError("this model is an encoder-decoder: give decoder_tokens too")
        return super().logits(given, head)

    def hidden_states(self, given):
        """The decoder's where it has tokens, else the encoder's."""
        where = ("encode", "encoder_embedded", "encoder")
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

    def to_text(self, vocabulary, prompt, new):
        """The answer, or the prompt with the answer's spans in its blanks."""
        if set(prompt) & set(self._sentinels):
            new = blanks.fill_spans(prompt[:-1] if self.eos_ids else prompt, new, self._sentinels)
        return vocabulary.decode([token for token in new if token != self.lm.special_ids.get("bos_token_id")])

    @property
    def _sentinels(self) -> range:
        size = self.lm.tokenizer.vocab_size
        return range(size - 1, size - 1 - self.lm.special_ids.get("sentinels", 0), -1)
