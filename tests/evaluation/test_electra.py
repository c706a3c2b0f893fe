"""An ELECTRA from its run to what is said of it: its logged metrics, its logits, its evaluation, its way on."""

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config, models
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs import setup
from plm_jax.runs.checkpoints import Checkpoints
from tests.support import runs
from tests.support.tiny import ELECTRA, RUNS

METRICS = ("loss", "nll", "accuracy", "discriminator_loss", "discriminator_accuracy", "replaced")


@pytest.fixture(scope="module")
def workdir(tiny, verb, tmp_path_factory):
    """A run of four steps."""
    folder = tmp_path_factory.mktemp("electra") / "run"
    options = ["--config.train.steps=4", "--config.evaluation.every=2", "--config.evaluation.batch_size=8"]
    finished = verb("pretrain", f"--config={tiny}/tiny.py:electra", f"--workdir={folder}", *options)
    assert finished.status == 0, finished.err
    return folder


def test_training_and_validation_log_both_losses(workdir):
    for row in runs.rows(workdir):
        for name in METRICS:
            assert np.isfinite(row[f"train/{name}"])
            assert (f"validation/{name}" in row) == (row["step"] % 2 == 0)
        want = row["train/nll"] + 50 * row["train/discriminator_loss"]
        np.testing.assert_allclose(row["train/loss"], want, rtol=1e-5)
        # A generator of this age seldom says the text's own token: nearly all targets are replaced.
        assert 0.1 < row["train/replaced"] < 0.2


def test_a_run_is_loaded_as_the_pair(workdir, tmp_path):
    lm = plm_jax.load(workdir)
    assert isinstance(lm.config, models.ElectraConfig)
    tokens = np.arange(10).reshape(2, 5)
    scores = lm.logits(tokens, head="discriminator")
    assert scores.shape == (2, 5) and scores.dtype == np.float32
    assert lm.logits(tokens).shape == (2, 5, 272)
    assert lm.hidden_states(tokens).shape == (3, 2, 5, 32)
    with pytest.warns(UserWarning, match="generator"):
        lm.save(tmp_path)
    np.testing.assert_array_equal(plm_jax.load(tmp_path).logits(tokens, head="discriminator"), scores)


def test_a_saved_discriminator_begins_another_run(workdir, tiny, tmp_path):
    with pytest.warns(UserWarning, match="generator"):
        plm_jax.load(workdir).save(tmp_path / "saved")
    run = runs.make(tiny, RUNS["electra"], train={"init_from": str(tmp_path / "saved"), "seed": 3})
    with Checkpoints(str(tmp_path / "run"), run.checkpoint) as checkpoints:
        state, notes = setup.starting_state(setup.build(run, devices=jax.devices()[:1]), checkpoints.restore)
    taken, source = runs.flat(state.params), runs.flat(plm_jax.load(tmp_path / "saved").params)
    assert all(np.array_equal(taken[name], leaf) for name, leaf in source.items())
    new = notes[1].removeprefix("new: ").split(", ")
    assert sorted(new) == sorted(taken.keys() - source.keys()) and all(name.startswith("generator/") for name in new)


def test_evaluation_equals_a_walk_over_the_rows(workdir):
    """A bias makes the generator say one letter always, so that what the discriminator sees is known."""
    trained, letter = plm_jax.load(workdir), ord("e")
    generator = trained.params["generator"] | {"head_bias": np.float32(50) * (np.arange(272) == letter)}
    lm = LanguageModel(
        ELECTRA, {**trained.params, "generator": generator}, run=trained.run, vocabulary_id=trained.vocabulary_id
    )
    metrics = perplexity.evaluate(lm, trained.run, "b", show_progress=False)
    losses, hits, replaced, logits = [], [], [], []
    run = perplexity.single_source_run(trained.run, lm, "b", trained.run.data.length)
    for row in Reader(config.reader_config(run)).in_order("validation", 1):
        real = row["mask"][0] == 1
        text, seen = row["tokens"][0].copy(), row["tokens"][0].copy()
        at = row["target_positions"][0][row["target_weights"][0] > 0]
        text[at], seen[at] = row["targets"][0][: len(at)], letter
        scores = np.asarray(lm.logits(seen[None], row["mask"], head="discriminator")[0], np.float64)
        wrong = text != seen
        losses += (np.log1p(np.exp(scores)) - wrong * scores)[real].tolist()
        hits += ((scores > 0) == wrong)[real].tolist()
        replaced += wrong[real].tolist()
        logits += scores[real].tolist()
    assert 0 < np.mean(replaced) < 0.2
    for name, values in (("loss", losses), ("accuracy", hits)):
        np.testing.assert_allclose(metrics[f"discriminator_{name}"], np.mean(values), rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(metrics["replaced"], np.mean(replaced), rtol=1e-6)
    assert metrics["discriminator_constant_accuracy"] == pytest.approx(1 - np.mean(replaced), rel=1e-6)
    of_replaced, of_text = (np.array(logits)[np.array(replaced) == value] for value in (True, False))
    # Every pair of one of each; so near to each other that float32 may have changed their order, they may be ties.
    above = np.mean(of_replaced[:, None] > of_text)
    near = np.mean(np.abs(of_replaced[:, None] - of_text) < 1e-5)
    assert abs(metrics["discriminator_auc"] - above) <= near < 0.05
