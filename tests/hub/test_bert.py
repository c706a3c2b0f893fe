"""BERT side by side with transformers, on random weights."""

import numpy as np
import pytest

import plm_jax
from tests.hub import theirs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MASK = np.array([[1] * 8, [0] * 3 + [1] * 5, [1] * 6 + [0] * 2])
CONFIGS = {
    "usual": {"hidden_size": 16, "num_attention_heads": 4},
    "one_layer_odd_heads_tanh_gelu": {
        "hidden_size": 21,
        "num_hidden_layers": 1,
        "num_attention_heads": 7,
        "hidden_act": "gelu_new",
    },
    "one_type_large_epsilon": {"type_vocab_size": 1, "layer_norm_eps": 0.1},
    "three_types_relu": {"type_vocab_size": 3, "hidden_act": "relu", "intermediate_size": 5},
    "untied_silu_three_layers": {"tie_word_embeddings": False, "hidden_act": "silu", "num_hidden_layers": 3},
}


def make(architecture="BertForPreTraining", **fields):
    """A model with every tensor random, biases and norms too; dropout rates that must not show."""
    defaults = {
        "vocab_size": 37,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 12,
        "initializer_range": 0.3,
    }
    config = transformers.BertConfig(**{**defaults, **fields})
    return theirs.randomised(getattr(transformers, architecture), config)


def inputs(types=2):
    rng = np.random.default_rng(0)
    return rng.integers(0, 37, MASK.shape), rng.integers(0, types, MASK.shape)


def outputs(model, tokens, token_types):
    with torch.no_grad():
        return model(
            torch.tensor(tokens),
            attention_mask=torch.tensor(MASK),
            token_type_ids=torch.tensor(token_types),
            output_hidden_states=True,
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_both_heads_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    model = make(**CONFIGS[name])
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    tokens, types = inputs(model.config.type_vocab_size)
    want, real = outputs(model, tokens, types), MASK == 1
    hidden = torch.stack(want.hidden_states).numpy()
    np.testing.assert_allclose(lm.logits(tokens, MASK, types)[real], want.prediction_logits.numpy()[real], atol=1e-4)
    pair = lm.logits(tokens, MASK, types, head="sentence_pair")
    np.testing.assert_allclose(pair, want.seq_relationship_logits.numpy(), atol=1e-4)
    np.testing.assert_allclose(np.asarray(lm.hidden_states(tokens, MASK, types))[:, real], hidden[:, real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours").eval()
    got = outputs(again, tokens, types)
    np.testing.assert_allclose(got.prediction_logits, want.prediction_logits, atol=1e-5)
    theirs.assert_same_state(model, again)
    for field in ("hidden_act", "hidden_dropout_prob", "layer_norm_eps", "type_vocab_size"):
        assert getattr(again.config, field) == getattr(model.config, field)
