"""Writes the golden files of LLaMA, GLM-4 and GPT-1 with transformers: `python -m tests.golden.make_decoders`.

As `make_gpt2.py` writes those of GPT-2.
"""

import json
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.golden.make_gpt2 import BEAMS, MASK, NEW_TOKENS, continuations
from tests.support import reference

FOLDER = pathlib.Path(__file__).parent
SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "initializer_range": 0.3}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": transformers.LlamaConfig(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_parameters=SCALED, eos_token_id=13
    ),
    "glm": transformers.GlmConfig(
        **SIZES, num_attention_heads=3, num_key_value_heads=1, head_dim=8, eos_token_id=13, pad_token_id=0
    ),
    "gpt1": transformers.OpenAIGPTConfig(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=3, initializer_range=0.3, eos_token_id=13
    ),
}


def main():
    """Writes all folders."""
    for seed, (name, config) in enumerate(MODELS.items()):
        model = reference.randomized(transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config)
        tokens, mask = torch.tensor(np.random.default_rng(seed).integers(14, 61, MASK.shape)), torch.tensor(MASK)
        with torch.no_grad():
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            output = model(tokens, attention_mask=mask, position_ids=positions, output_hidden_states=True)
            # One by one: GPT-1 there knows no padding on the left when it generates.
            prompts = [row[keep][None] for row, keep in zip(tokens[:2], mask[:2] == 1, strict=True)]
            greedy, beam = (
                np.concatenate([continuations(model, prompt, torch.ones_like(prompt), beams) for prompt in prompts])
                for beams in (1, BEAMS)
            )
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(json.loads(model.config.to_json_string()), indent=1) + "\n")
        state = {k: v.detach().contiguous() for k, v in model.named_parameters()}  # Tied ones once.
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        assert greedy.shape == beam.shape == (2, NEW_TOKENS)
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
