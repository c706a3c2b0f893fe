"""Hugging Face's input for masked language modelling: its collator in a torch DataLoader with two workers.

It is given the blocks that ours reads, in memory, as the lists that the `datasets` package would give, with the masks
of special tokens that its examples (run_mlm.py) have made beforehand.
"""

from collections.abc import Iterator

import numpy as np

WORKERS = 2


def make_tokenizer(words: list[str], pad: int, mask: int):
    """A tokenizer of these words; the collator asks it for its size, its mask and how to pad."""
    import tokenizers
    import transformers

    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), pad_token=words[pad], mask_token=words[mask]
    )


def batches(blocks: np.ndarray, special: list[int], tokenizer, batch_size: int) -> Iterator[int]:
    """Masks `blocks` [n, length] a batch at a time, in random order; yields how many tokens each has."""
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
