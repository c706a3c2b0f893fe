"""Rows that a model reads to score tokens: continuations of a context, or masked tokens of a text."""

from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.common.errors import UserError


class ScoringRow(NamedTuple):
    """A row of tokens that a model reads, and the targets that it scores.

    Attributes:
      tokens: input of the model; for an encoder-decoder, the input of the encoder.
      positions: index, for each target, of the token whose features predict the target. The index is a position in
        `decoder_tokens` for an encoder-decoder, otherwise in `tokens`.
      targets: ids that the model predicts at `positions`.
      decoder_tokens: input of the decoder of an encoder-decoder.
      prefix: number of tokens, at the beginning of the row, that attend to each other in both directions; 0 unless a
        decoder was trained on prefixes.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    targets: Sequence[int]
    decoder_tokens: Sequence[int] = ()
    prefix: int = 0


def continuation_row(
    context: Sequence[int], continuation: Sequence[int], max_length: int | None, has_prefix: bool = False
) -> ScoringRow:
    """Returns the row in which a decoder predicts a continuation. A long context is cut to its last tokens.

    Args:
      context: at least one id.
      continuation: at least one id.
      max_length: maximum number of tokens that the decoder reads; None: no maximum.
      has_prefix: whether the tokens of the context attend to each other in both directions.

    Raises:
      UserError: the continuation alone is longer than `max_length`.
    """
    if max_length is not None and len(continuation) > max_length:
        raise UserError(
            f"a continuation has {len(continuation)} tokens, the model has {max_length} positions: shorten it"
        )
    size = len(context) if max_length is None else min(len(context), max_length + 1 - len(continuation))
    tokens = [*context[len(context) - size :], *continuation[:-1]]
    return ScoringRow(tokens, range(size - 1, len(tokens)), continuation, prefix=size if has_prefix else 0)


def masked_rows(
    tokens: Sequence[int], begin: int, end: int, mask_id: int, word_numbers: Sequence[int] | None
) -> list[ScoringRow]:
    """Returns a row for each position in `[begin, end)`. The token at this position is masked and is the target.

    Args:
      mask_id: id of the mask.
      word_numbers: index of the word that each token belongs to. The later tokens of the target's word, up to `end`,
        are masked too. None: only the target is masked.
    """
    rows = []
    for position in range(begin, end):
        row = list(tokens)
        row[position] = mask_id
        if word_numbers is not None:
            for later in range(position + 1, end):
                if word_numbers[later] == word_numbers[position]:
                    row[later] = mask_id
        rows.append(ScoringRow(row, [position], [tokens[position]]))
    return rows
