"""GPT-2 side by side with transformers, on random weights."""

import numpy as np
import pytest

import plm_jax
from plm_jax.inference import decoding

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MASK = np.array([[1] * 8, [0] * 3 + [1] * 5, [1] * 6 + [0] * 2])
CONFIGS = {
    "usual": {"n_embd": 16, "n_layer": 2, "n_head": 4},
    "one_layer_odd_heads_exact_gelu": {"n_embd": 21, "n_layer": 1, "n_head": 7, "activation_function": "gelu"},
    "narrow_inner_pytorch_tanh": {"n_inner": 5, "activation_function": "gelu_pytorch_tanh"},
    "relu_large_epsilon": {"activation_function": "relu", "layer_norm_epsilon": 0.1},
    "silu_untied": {"activation_function": "silu", "tie_word_embeddings": False},
    "tanh_unscaled": {"activation_function": "tanh", "scale_attn_weights": False},
    "inverse_depth_upcast": {"n_layer": 3, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "both_scales_one_head": {"n_head": 1, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
}


def make(seed, **fields):
    """A model with every tensor random, biases and norms too; dropout rates that must not show."""
    torch.manual_seed(seed)
    defaults = {"vocab_size": 37, "n_positions": 12, "n_embd": 12, "n_layer": 2, "n_head": 3, "initializer_range": 0.3}
    config = transformers.GPT2Config(**{**defaults, "bos_token_id": 1, "eos_token_id": 2, **fields})
    model = transformers.GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name and name.endswith("weight")), std=0.3)
    return model


def outputs(model, tokens):
    """Logits and hidden states; Hugging Face's GPT-2 does not derive positions from the mask."""
    mask = torch.tensor(MASK)
    with torch.no_grad():
        output = model(
            torch.tensor(tokens),
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            output_hidden_states=True,
        )
    return output.logits.numpy(), torch.stack(output.hidden_states).numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    model = make(len(name), **CONFIGS[name])
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    tokens, real = np.random.default_rng(0).integers(0, 37, MASK.shape), MASK == 1
    logits, hidden = outputs(model, tokens)
    np.testing.assert_allclose(lm.logits(tokens, MASK)[real], logits[real], atol=1e-4)
    np.testing.assert_allclose(np.asarray(lm.hidden_states(tokens, MASK))[:, real], hidden[:, real], atol=1e-4)
    assert lm.num_parameters == model.num_parameters()

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_allclose(outputs(again, tokens)[0], logits, atol=1e-5)
    theirs, ours = model.state_dict(), again.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)
    for field in ("bos_token_id", "eos_token_id", "resid_pdrop", "layer_norm_epsilon"):
        assert getattr(again.config, field) == getattr(model.config, field)


def test_the_bare_model_in_shards_loads(tmp_path):
    model = make(0)
    model.transformer.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokens = np.random.default_rng(0).integers(0, 37, MASK.shape)
    got = plm_jax.load(tmp_path).logits(tokens, MASK)
    np.testing.assert_allclose(got[MASK == 1], outputs(model, tokens)[0][MASK == 1], atol=1e-4)


@pytest.mark.parametrize("ends", [[31], [6, 24, 32]])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_greedy_and_beam_continuations_are_equal(beams, ends, tmp_path):
    model = make(3, n_positions=40)
    model.save_pretrained(tmp_path)
    lm = plm_jax.load(tmp_path)
    tokens, mask = np.random.default_rng(1).integers(0, 37, (8, 6)), np.ones((8, 6), int)
    for row in range(8):
        mask[row, : row % 4] = 0
    new = model.generate(
        torch.tensor(tokens),
        attention_mask=torch.tensor(mask),
        max_new_tokens=20,
        num_beams=beams,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0],
    )[:, 6:].tolist()
    want = [row[: min((row.index(end) for end in ends if end in row), default=20)] for row in new]
    prompts = [row[keep == 1] for row, keep in zip(tokens, mask, strict=True)]
    got = decoding.generate(lm.model, lm.params, prompts, max_new_tokens=20, num_beams=beams, eos_ids=ends)
    assert got == want
    assert any(0 < len(row) < 20 for row in got), "no continuation ended early: the test has lost its point"
