"""Twenty optimizer steps against torch's: from a golden file, and live where torch and transformers are."""

import functools

import flax
import jax
import numpy as np
import pytest

from plm_jax import config
from plm_jax.hub import gpt2, huggingface
from plm_jax.models.decoder import Decoder
from plm_jax.training import losses, optimizers, schedules, state, step
from tests.golden import FOLDER

# As in tests/golden/make_gpt2_training.py, which is not imported because it imports torch.
OPTIMIZER = config.AdamW(b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=0.5)
SCHEDULE = config.Schedule("constant", 2e-3, warmup_steps=5)
MICROBATCHES = 2


def train(pretrained: huggingface.Pretrained, batches) -> tuple[list[float], dict]:
    """Our losses and final parameters."""
    rate = schedules.learning_rate(SCHEDULE, 20)
    optimizer = optimizers.build(OPTIMIZER, rate)
    loss = functools.partial(losses.causal, Decoder(pretrained.model))
    run = jax.jit(step.train_step(loss, optimizer, rate, state.key(0, "threefry"), MICROBATCHES))
    current, found = state.new_state(pretrained.params, optimizer), []
    for number in range(len(batches["tokens"])):
        batch = {key: value[number] for key, value in batches.items()}
        current, metrics = run(current, batch | {"digest": np.zeros((len(batch["tokens"]), 2), np.uint32)})
        found.append(float(metrics["loss"]))
    return found, current.params


def check(pretrained, batches, want_losses, tensors) -> None:
    counts = batches["target_weights"].reshape(20, -1, 2, 12).sum((1, 3))
    assert (counts.max(1) > 2 * counts.min(1)).all(), "the microbatches are to differ in target counts"
    got_losses, params = train(pretrained, batches)
    np.testing.assert_allclose(got_losses, want_losses, atol=1e-4, rtol=0)
    assert abs(want_losses[0] - want_losses[-1]) > 0.1, "nothing was learnt"
    flat, start = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (params, pretrained.params))
    shapes = {name: leaf.shape for name, leaf in flat.items()}
    layout = huggingface.layout(gpt2.FAMILY.tensors, shapes)
    assert sum(len(pieces) for pieces in layout.values()) >= len(flat)
    for name, pieces in layout.items():
        parts = np.split(tensors[name], np.cumsum([p.shape[-1] for p in pieces])[:-1], axis=-1)
        for piece, want in zip(pieces, parts, strict=True):
            got = np.asarray(flat[piece.path][piece.index])
            if piece.path.endswith("attention/key/bias"):
                # Its gradient is mathematically zero: Adam walks by the sign of rounding errors.
                assert np.abs(got - start[piece.path][piece.index]).max() <= 20 * 2e-3
                continue
            difference = np.linalg.norm(got - want) / np.linalg.norm(want)
            assert difference < 1e-4, (piece.path, difference)
            assert np.linalg.norm(want - start[piece.path][piece.index]) > 0, piece.path


def test_twenty_steps_equal_the_golden_ones():
    with np.load(FOLDER / "gpt2_training.npz") as arrays:
        golden = dict(arrays)
    batches = {key: golden[key] for key in ("tokens", "targets", "target_weights")}
    pretrained = huggingface.read(str(FOLDER / "gpt2"))
    check(pretrained, batches, golden["losses"], golden)


def test_twenty_steps_equal_torch_live(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.golden import make_gpt2_training as recipe

    torch.manual_seed(1)
    sizes = {"vocab_size": 97, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    settings = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(settings)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
    model.save_pretrained(tmp_path)
    batches = recipe.batches(1, 97)
    want = recipe.train(model, batches)
    check(huggingface.read(str(tmp_path)), batches, want, {k: v.numpy() for k, v in model.state_dict().items()})
