"""Writes the golden files of BERT and T5 with transformers: `python -m tests.golden.make_bert_t5`.

Each folder holds a Hugging Face directory with random weights and `expected.npz`: the inputs and outputs of
`tests.support.reference.run`, under the names there.
"""

import json
import pathlib

import numpy as np
import transformers
from safetensors.torch import save_file

from tests.support import reference

FOLDER = pathlib.Path(__file__).parent


def main():
    """Writes both folders."""
    bert = transformers.BertConfig(**reference.SIZES["bert"], type_vocab_size=3)
    fields = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3}
    t5 = transformers.T5Config(**{**reference.SIZES["t5"], "d_kv": 5}, **fields)
    models = {
        "bert": reference.randomized(transformers.BertForPreTraining, bert),
        "t5": reference.randomized(transformers.T5ForConditionalGeneration, t5, untied=True),
    }
    for name, model in models.items():
        write(FOLDER / name, model)


def write(folder, model):
    """Writes one folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(json.loads(model.config.to_json_string()), indent=1) + "\n")
    state = {k: v.detach().contiguous() for k, v in model.named_parameters()}  # Tied ones once.
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    inputs, outputs = reference.run(model)
    np.savez_compressed(folder / "expected.npz", **inputs, **outputs)


if __name__ == "__main__":
    main()
