"""Padding, mask and segment ids of a row of tokens."""

import numpy as np

Example = dict[str, np.ndarray]


def make_row(tokens: np.ndarray, begins: np.ndarray, length: int, separate: bool, pad: int = 0) -> Example:
    """Makes a row of `length` tokens from a span of tokens, with padding at the end.

    Args:
      tokens: at most `length` tokens.
      begins: sorted positions in `tokens` at which documents begin, except the document of the first token.
      separate: whether the row has segment ids.
      pad: id of padding.

    Returns:
      A dict with `tokens` [length]. If `separate`, the dict also has `segment_ids` [length]: the number of each token's
      document, counted from 1, or 0 at padding. If there is padding, the dict also has `mask` [length]: 0 at padding
      and 1 elsewhere.
    """
    num_real = len(tokens)
    padding = (0, length - num_real)
    row = {"tokens": np.pad(tokens, padding, constant_values=pad) if padding[1] else tokens}
    if separate:
        segment_ids = np.zeros(length, np.int32)
        segment_ids[:num_real] = 1 + np.searchsorted(begins, np.arange(num_real), side="right")
        row["segment_ids"] = segment_ids
    if padding[1]:
        row["mask"] = (np.arange(length) < num_real).astype(np.int32)
    return row
