"""Writes the GPT-2 golden files with transformers: `python tests/golden/make_gpt2.py`.

Each folder holds a Hugging Face directory with random weights and `expected.npz`: tokens and mask [B, L], positions
[B, L], logits [B, L, V], hidden states [layers + 1, B, L, D], and greedy and beam continuations (-1 after the end).
"""

import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = pathlib.Path(__file__).parent
COMMON = {"vocab_size": 61, "n_positions": 32, "bos_token_id": 3, "initializer_range": 0.3}
MODELS = {
    "gpt2": {"eos_token_id": 13, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40},
    "gpt2_unusual": {
        "eos_token_id": 20,
        "n_embd": 20,
        "n_layer": 3,
        "n_head": 5,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-3,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "tie_word_embeddings": False,
    },
}
MASK = np.array([[1] * 9, [0] * 4 + [1] * 5, [1] * 6 + [0] * 3])
NEW_TOKENS, BEAMS = 10, 3


def randomized(config: GPT2Config) -> GPT2LMHeadModel:
    """A model none of whose tensors, biases and norms included, is at its initial value."""
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name and name.endswith("weight")), std=0.2)
    return model


def continuations(model, tokens, mask, beams):
    """[B, NEW_TOKENS], -1 from the end token on."""
    end = model.config.eos_token_id
    new = model.generate(
        tokens, attention_mask=mask, max_new_tokens=NEW_TOKENS, num_beams=beams, do_sample=False, pad_token_id=end
    )[:, tokens.shape[1] :].numpy()
    ended = np.cumsum(new == end, axis=1) > 0
    return np.pad(np.where(ended, -1, new), ((0, 0), (0, NEW_TOKENS - new.shape[1])), constant_values=-1)


def main():
    """Writes all folders."""
    for seed, (name, fields) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = randomized(GPT2Config(**COMMON, **fields))
        tokens = torch.tensor(np.random.default_rng(seed).integers(8, 61, MASK.shape))
        mask = torch.tensor(MASK)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            output = model(tokens, attention_mask=mask, position_ids=positions, output_hidden_states=True)
            left = tokens[:2], mask[:2]  # generate() wants its padding on the left.
            greedy, beam = continuations(model, *left, 1), continuations(model, *left, BEAMS)
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(json.loads(model.config.to_json_string()), indent=1) + "\n")
        state = {k: v.contiguous() for k, v in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            del state["lm_head.weight"]
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        np.savez_compressed(
            folder / "expected.npz",
            tokens=tokens.numpy().astype(np.int32),
            mask=MASK.astype(np.int32),
            logits=output.logits.numpy(),
            hidden_states=torch.stack(output.hidden_states).numpy(),
            greedy=greedy.astype(np.int32),
            beam=beam.astype(np.int32),
        )


if __name__ == "__main__":
    main()
