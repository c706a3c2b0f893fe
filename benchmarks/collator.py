"""Hugging Face's input for masked language modeling: its collator in a torch DataLoader with two workers.

The blocks are the same as ours, in memory, as lists like those of the `datasets` package, with the masks of special
tokens that its examples (run_mlm.py) compute beforehand.
"""

from collections.abc import Iterator

import numpy as np

WORKERS = 2


def make_tokenizer(words: list[str], pad: int, mask: int):
    """Returns a tokenizer of these words, which provides the collator with its size, mask and padding."""
    import tokenizers
    import transformers

    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token=words[pad], mask_token=words[mask]
    )


def batches(blocks: np.ndarray, special: list[int], tokenizer, batch_size: int) -> Iterator[int]:
    """Masks `blocks` [n, length] in batches, in random order; yields the number of tokens in each batch."""
    import torch
    import transformers

    is_special = np.isin(blocks, special)
    rows = [
        {"input_ids": tokens.tolist(), "special_tokens_mask": fixed.astype(np.int64).tolist()}
        for tokens, fixed in zip(blocks, is_special, strict=True)
    ]
    loader = torch.utils.data.DataLoader(
        rows,
        batch_size,
        shuffle=True,
        num_workers=WORKERS,
        collate_fn=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    for batch in loader:
        yield batch["input_ids"].numel()
