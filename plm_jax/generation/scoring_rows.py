"""Rows that a model reads to score tokens: continuations of a context, or masked tokens of a text."""

from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.common.errors import UserError


class ScoringRow(NamedTuple):
    """A row of tokens that a model reads, and the targets that it scores.

    Attributes:
      tokens: input of the model; for an encoder-decoder that of the encoder.
      positions: index of the feature that predicts each target, in `tokens` or in `decoder_tokens`.
      targets: id at each position.
      decoder_tokens: input of the decoder of an encoder-decoder.
      prefix: number of the first tokens that attend to each other in both directions, for a decoder trained this way.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    targets: Sequence[int]
    decoder_tokens: Sequence[int] = ()
    prefix: int = 0


def continuation_row(
    context: Sequence[int], continuation: Sequence[int], max_length: int | None, has_prefix: bool = False
) -> ScoringRow:
    """Returns the row in which a decoder predicts a continuation. The row keeps the last tokens of a long context.

    Args:
      context: at least one id.
      continuation: at least one id.
      max_length: number of tokens that the decoder reads; None if it is unlimited.
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
    """Returns one row for each token in `[begin, end)`, in which this token is masked and is the target.

    Args:
      mask_id: id of the mask.
      word_numbers: number of the word of each token. The later tokens of the target's word are masked too. None: only
        the target is masked.
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
