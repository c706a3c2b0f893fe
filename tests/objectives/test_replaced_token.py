import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.common.errors import UserError

SPECIAL = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=1000)
TOKENS = np.array([2, *range(100, 610), 3])


def test_generator_reads_mask_or_token():
    """85 % masks as in the source, within four standard errors over 1e6 tokens; a field selects the paper's 100 %."""
    rng, draws, masks = np.random.default_rng(0), 2000, 0
    objective, paper = (
        objectives.get("replaced_token", SPECIAL),
        objectives.get("replaced_token", SPECIAL, mask_share=1.0),
    )
    for _ in range(draws):
        result = objective({"tokens": TOKENS}, rng)
        at = result["target_positions"]
        inputs = result["tokens"][at]
        assert ((inputs == SPECIAL.mask) | (inputs == result["targets"])).all()
        np.testing.assert_array_equal(result["targets"], TOKENS[at])
        np.testing.assert_array_equal(np.delete(result["tokens"], at), np.delete(TOKENS, at))
        masks += (inputs == SPECIAL.mask).sum()
    total = draws * 77  # 0.15 of 512.
    assert abs(masks - 0.85 * total) < 4 * np.sqrt(total * 0.85 * 0.15)
    result = paper({"tokens": TOKENS}, rng)
    assert (result["tokens"][result["target_positions"]] == SPECIAL.mask).all()


def test_large_model_predicts_a_quarter():
    objective = objectives.get("replaced_token", SPECIAL, rate=0.25)
    assert objective({"tokens": TOKENS}, np.random.default_rng(0))["target_weights"].sum() == 128


def test_negative_weight_is_rejected():
    with pytest.raises(UserError, match=r"config.objective.discriminator_weight is -1: must be between 0 and"):
        objectives.get("replaced_token", discriminator_weight=-1)
