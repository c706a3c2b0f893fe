"""What a row looks like that is a stretch of a stream: segment ids, padding."""

import numpy as np

Example = dict[str, np.ndarray]


def stretch(tokens: np.ndarray, begins: np.ndarray, length: int, separate: bool, pad: int = 0) -> Example:
    """`tokens` [length]: those given, padded where they are fewer.

    If `separate`, `segment_ids` [length] number the documents, which begin at `begins` and the first at 0, from 1 on,
    0 at padding. If there is padding, `mask` [length] is 0 there and 1 elsewhere.
    """
    num_real = len(tokens)
    padding = (0, length - num_real)
    found = {"tokens": np.pad(tokens, padding, constant_values=pad) if padding[1] else tokens}
    if separate:
        segment_ids = np.zeros(length, np.int32)
        segment_ids[:num_real] = 1 + np.searchsorted(begins, np.arange(num_real), side="right")
        found["segment_ids"] = segment_ids
    if padding[1]:
        found["mask"] = (np.arange(length) < num_real).astype(np.int32)
    return found
