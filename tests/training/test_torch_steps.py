"""Twenty optimizer steps against torch's: from golden files, and live where torch and transformers are."""

import functools

import flax
import jax
import numpy as np
import pytest

from plm_jax import config, losses, models
from plm_jax.common import keys
from plm_jax.hub import families, huggingface
from plm_jax.models import registry
from plm_jax.training import optimizers, state, step
from tests.golden import FOLDER
from tests.support import torch_weights

# As in tests/golden/make_training.py, which is not imported because it imports torch.
ADAMW = config.AdamWConfig(b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=0.5)
# transformers factors every matrix.
ADAFACTOR = config.AdafactorConfig(clip_norm=0.5, min_dim_size_to_factor=1)
RECIPES = {
    "gpt2": (ADAMW, 2e-3, losses.NextTokenLoss()),
    "bert": (ADAMW, 2e-3, losses.MaskedLMLoss()),
    "t5": (ADAFACTOR, 0.05, losses.NextTokenLoss()),
}
MICROBATCHES = 2


@functools.cache
def compiled(family: str, model: models.TransformerConfig):
    """Returns the step of a recipe, its optimizer and its learning rate by step."""
    recipe, peak, loss = RECIPES[family]
    optimizer, rate = optimizers.build(recipe), config.ConstantSchedule(peak, warmup_steps=5).rate(20)
    return jax.jit(step.train_step(loss, registry.build(model), optimizer, MICROBATCHES)), optimizer, rate


def train(family: str, pretrained: huggingface.Pretrained, batches) -> tuple[list[float], dict]:
    """Our losses and final parameters."""
    run, optimizer, rate = compiled(family, pretrained.model)
    # The golden files are in torch's order of microbatches: first half, second half. Ours takes every other row.
    order = np.arange(len(batches["tokens"][0])).reshape(MICROBATCHES, -1).T.ravel()
    current, found = state.new_state(pretrained.params, optimizer), []
    for number in range(len(batches["tokens"])):
        batch = {key: value[number][order] for key, value in batches.items()}
        batch["digest"] = np.zeros((len(batch["tokens"]), 2), np.uint32)
        current, metrics = run(current, batch, keys.from_seed(0), rate(number))
        found.append(float(metrics["loss"]))
    return found, current.params


def check(family: str, pretrained, batches, want_losses, tensors) -> None:
    counts = batches["target_weights"].sum(2)
    assert (counts[:, ::2].sum(1) > 1.5 * counts[:, 1::2].sum(1)).all(), "rows are to differ in target counts"
    got_losses, params = train(family, pretrained, batches)
    np.testing.assert_allclose(got_losses, want_losses, atol=1e-4, rtol=0)
    assert abs(want_losses[0] - want_losses[-1]) > 0.1, "nothing was learnt"
    flat, start = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (params, pretrained.params))
    layout = families.layout_of(families.registered()[family], pretrained.model)
    assert {piece.path for stored in layout.values() for piece in stored.pieces} == flat.keys()
    for path, _, expected, trained, begun in torch_weights.pieces(layout, tensors, flat, start):
        if path.endswith("attention/key/bias"):
            # Its gradient is mathematically zero: Adam follows the sign of rounding errors.
            assert np.abs(trained - begun).max() <= 20 * 2e-3
            continue
        difference = np.linalg.norm(trained - expected) / np.linalg.norm(expected)
        assert difference < 1e-4, (path, difference)
        assert np.linalg.norm(expected - begun) > 0, path


@pytest.mark.parametrize("family", RECIPES)
def test_twenty_steps_equal_golden_files(family):
    with np.load(FOLDER / f"{family}_training.npz") as arrays:
        golden = dict(arrays)
    names = ("tokens", "mask", "token_types", "decoder_tokens", "targets", "target_positions", "target_weights")
    batches = {key: golden[key] for key in (*names, "pair_label") if key in golden}
    check(family, huggingface.read(str(FOLDER / family)), batches, golden["losses"], golden)


@pytest.mark.parametrize("family", RECIPES)
def test_twenty_steps_equal_torch_live(family, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.golden import make_training as recipe

    torch.manual_seed(1)
    model = recipe.ARCHITECTURES[family](transformers.AutoConfig.from_pretrained(FOLDER / family))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
    model.save_pretrained(tmp_path)
    batches = recipe.batches(family, 1, model.config.vocab_size)
    want = recipe.train(model, batches)
    check(family, huggingface.read(str(tmp_path)), batches, want, {k: v.numpy() for k, v in model.state_dict().items()})
