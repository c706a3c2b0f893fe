"""Strategy of encoder-decoders, which answer a text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Shaped
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.generation import blanks, scoring_rows
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import Writer, features, hidden_states, move_spaces
from plm_jax.models.heads import TASK


class EncoderDecoderStrategy(Writer):
    """An encoder-decoder. It answers a prompt, or fills the blanks of a prompt with spans of its answer."""

    @override
    def logits(self, arrays: dict[str, np.ndarray], head: str) -> Shaped[Array, "..."]:
        if "decoder_tokens" not in arrays and head == TASK:
            arrays = arrays | self._shifted_inputs(arrays["tokens"], arrays.get("mask"))
        if "decoder_tokens" not in arrays:
            raise UserError("this model is an encoder-decoder: pass decoder_tokens too")
        return super().logits(arrays, head)

    def _shifted_inputs(self, tokens: np.ndarray, mask: np.ndarray | None) -> dict[str, np.ndarray]:
        """Returns decoder inputs [..., L]: the start id, then the encoder's tokens except the last (BART's task
        models).
        """
        mask = np.ones_like(tokens) if mask is None else mask
        padding = [(0, 0)] * (tokens.ndim - 1) + [(1, 0)]
        shifted, follows = np.pad(tokens, padding)[..., :-1], np.pad(mask, padding)[..., :-1]
        return {"decoder_tokens": np.where(follows > 0, shifted, self.text.start_id), "decoder_mask": mask}

    @override
    def hidden_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "states batch length width"]:
        if "decoder_tokens" in arrays:
            return hidden_states(self.model, self.params, arrays, "features", "embedded", "decoder")
        encoder = self.config.stack_paths[0]
        return hidden_states(self.model, self.params, arrays, "encode", "encoder_embedded", encoder)

    @override
    def last_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "batch length width"]:
        return features(self.model, self.params, arrays, "features" if "decoder_tokens" in arrays else "encode")

    @override
    def encode(self, text: str) -> list[int]:
        marks = blanks.sentinel_ids(text, self.text.sentinels)
        if self.text.mask_id is not None:
            marks |= {mask: self.text.mask_id for mask in blanks.MASKS if mask in text}
        return [*self.text.before, *blanks.encode(self.text.vocabulary, text, marks), *self.eos_ids[:1]]

    @override
    def continuation_row(self, context: Sequence[int], continuation: Sequence[int]) -> ScoringRow:
        # The encoder reads the context without a frame. The continuation is the decoder's answer.
        return self._answer_row(context, continuation, [self.text.start_id])

    @override
    def text_continuation_row(self, context: str, continuation: str) -> ScoringRow:
        context, continuation = move_spaces(context, continuation)
        answer = list(self.text.vocabulary.encode(continuation))
        return self._answer_row(self.encode(context), answer, [self.text.start_id, *self.text.before])

    def _answer_row(self, context: Sequence[int], answer: Sequence[int], start: Sequence[int]) -> ScoringRow:
        """Returns a row in which the encoder reads a context, and the decoder reads an answer.

        A context that is too long is cut to its last tokens.

        Args:
          start: ids that the decoder reads before the answer.
        """
        row = scoring_rows.continuation_row(start, answer, self.config.num_positions)
        size = self.config.num_positions or len(context)
        return row._replace(tokens=context[max(0, len(context) - size) :], decoder_tokens=row.tokens)

    @override
    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        has_blanks = in_text and any(blanks.SENTINEL.search(prompt) for prompt in prompts)
        if has_blanks and self.decoding(**options).stop_strings:
            raise UserError("blanks have a complete filling: leave out stop_strings")
        return super().generate(prompts, in_text, seed, **options)

    @override
    def to_text(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        sentinels = self.text.sentinels
        if set(prompt) & set(sentinels):
            answer = blanks.fill_spans(prompt[:-1] if self.eos_ids else prompt, answer, sentinels)
        bos = self.text.special_ids.get("bos_token_id")
        return self.text.vocabulary.decode([token for token in answer if token != bos])
