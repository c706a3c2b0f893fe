"""Writes the golden files of BART with transformers: `python -m tests.golden.make_bart`.

The folder is as those of `make_bert_t5.py`; the bias of the head, a buffer there, is not 0.
"""

import torch
import transformers

from tests.golden.make_bert_t5 import FOLDER, write
from tests.support import reference


def main():
    """Writes the folder."""
    config = transformers.BartConfig(**reference.SIZES["bart"] | {"decoder_layers": 3, "scale_embedding": True})
    model = reference.randomized(transformers.BartForConditionalGeneration, config)
    model.final_logits_bias = torch.nn.Parameter(torch.randn_like(model.final_logits_bias))  # So that it is written.
    write(FOLDER / "bart", model)


if __name__ == "__main__":
    main()
