"""mT5 side by side with transformers, on random weights."""

import numpy as np
import pytest

import plm_jax

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

CONFIGS = {
    "tied_odd_heads_shallow_decoder": {"d_kv": 3, "num_heads": 5, "num_decoder_layers": 1},
    "untied_few_buckets_large_epsilon": {
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 5},
        "layer_norm_epsilon": 0.1,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    config = transformers.MT5Config(**{**theirs.SIZES["t5"], **CONFIGS[name]})
    model = theirs.randomised(transformers.MT5ForConditionalGeneration, config, untied=name.startswith("untied"))
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    assert lm.num_parameters == model.num_parameters()
    real, decoder_real = theirs.MASK == 1, theirs.DECODER_MASK == 1
    np.testing.assert_allclose(lm.logits(**inputs)[decoder_real], want["logits"][decoder_real], atol=1e-4)
    encoded = np.asarray(lm.hidden_states(inputs["tokens"], inputs["mask"]))
    np.testing.assert_allclose(encoded[:, real], want["encoder_hidden_states"][:, real], atol=1e-4)
    decoded, wanted = np.asarray(lm.hidden_states(**inputs)), want["decoder_hidden_states"]
    np.testing.assert_allclose(decoded[:, decoder_real], wanted[:, decoder_real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(theirs.run(again)[1]["logits"], want["logits"])
    theirs.assert_same_state(model, again)
