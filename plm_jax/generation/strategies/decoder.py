"""Decoders: they continue a text."""

from plm_jax.common.errors import UserError
from plm_jax.generation import scoring
from plm_jax.generation.strategies.strategy import Writer, spaces_moved
from plm_jax.inference import blanks
from plm_jax.runs import model_text


class DecoderStrategy(Writer):
    """A decoder, which gives what follows a prompt."""

    def longest(self, given):
        """Positions count real tokens alone."""
        return int(given["mask"].sum(axis=1).max(initial=0)) if "mask" in given else super().longest(given)

    def encode(self, text):
        """What began its texts in training, and the text; where both are empty, what stood between documents."""
        begin = model_text.begins_with(self.lm.special_ids)
        return [*begin, *self.lm.tokenizer.encode(text)] or self._between_documents

    def prefix(self, text):
        """As from within a text, which the prompt has begun."""
        return blanks.within(self.lm.tokenizer, text)

    def to_text(self, vocabulary, prompt, new):
        """The continuation, decoded with the prompt, since SentencePiece drops the space before a first word."""
        context = [token for token in prompt if token != vocabulary.eos_id]  # seqio cuts at an end token.
        return vocabulary.decode([*context, *new])[len(vocabulary.decode(context)) :]

    def continuation(self, context, continued):
        """Behind an empty context as behind what stood between documents."""
        context = context or self.before_all
        return scoring.continuation(context, continued, self.lm.config.num_positions, self.sees_prompt)

    def continuation_of_text(self, context, continued):
        """What the tokens of the whole have behind those of the context, as lm-eval 0.4.13 has it (`api/model.py`)."""
        begin = model_text.begins_with(self.lm.special_ids)
        context, continued = spaces_moved(context, continued)
        before = [*begin, *self.lm.tokenizer.encode(context)]
        whole = [*begin, *self.lm.tokenizer.encode(context + continued)]
        if not before and whole[:1] == self.before_all:  # It stands there once.
            return self.continuation(whole[:1], whole[1:])
        return self.continuation(before, whole[len(before) :])

    @property
    def before_all(self) -> list[int]:
        """What the model reads before a text: what began its texts in training, or stood between them.

        Raises:
          UserError: nothing did.
        """
        return model_text.begins_with(self.lm.special_ids) or self._between_documents

    @property
    def _between_documents(self) -> list[int]:
        """Returns the id before a text that nothing begins: the separator of documents, or else eos.

        A model without a run and without a separator uses bos, or else eos.

        Raises:
          UserError: the model has none of these ids.
        """
        separator = self.lm.special_ids.get("separator_token_id")
        if separator is None and self.lm.run is None:
            separator = self.lm.special_ids.get("bos_token_id")
        if ids := self.eos_ids[:1] if separator is None else [separator]:
            return ids
        raise UserError("nothing stood before this model's texts, so it starts from no empty prompt: give a first word")
