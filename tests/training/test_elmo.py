"""Training ELMo: the sampled softmax, the carry through steps, checkpoints and validation, meshes, its recipe."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import plm_jax
from plm_jax import config, losses, models
from plm_jax.common import keys
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.losses import sampled_softmax
from plm_jax.losses.cross_entropy import CrossEntropy, sum_over_vocabulary
from plm_jax.models import registry
from plm_jax.planning import plan as planning
from plm_jax.runs import loop, phase_costs, resume, setup, warm_start
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.training import flops, optimizers, state, step
from tests.support import runs, tiny

ROOT = keys.from_seed(7)
KEYS = ("dropout", "sample")


@pytest.fixture(scope="module")
def folder(verb, tmp_path_factory):
    """The corpora of `tiny.py` with their words counted and their cache."""
    made = tmp_path_factory.mktemp("elmo")
    tiny.write(made)
    finished = verb("prepare", f"--config={made}/tiny.py:elmo")
    assert finished.status == 0, finished.err
    return made


def head(seed=0, vocab_size=40, rows=3, length=5, width=4):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, length, width)).astype(np.float32)
    unembedding = rng.normal(size=(vocab_size, width)).astype(np.float32)
    bias = rng.normal(size=vocab_size).astype(np.float32)
    targets = rng.integers(0, vocab_size, (rows, length)).astype(np.int32)
    return features, unembedding, bias, targets, rng.random((rows, length)).astype(np.float32)


def shares(vocab_size):
    return (np.log(np.arange(vocab_size) + 2) - np.log(np.arange(vocab_size) + 1)) / np.log(vocab_size + 1)


def test_expected_draws_equal_a_simulation():
    np.testing.assert_allclose(sampled_softmax.log_uniform(np.arange(40), 40), shares(40), rtol=1e-5)
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(300):
        seen, draws = set(), 0
        while len(seen) < 20:
            seen.add(int(rng.choice(40, p=shares(40))))
            draws += 1
        counts.append(draws)
    np.testing.assert_allclose(sampled_softmax.expected_draws(40, 20), np.mean(counts), rtol=0.05)


def sampled_by_hand(arrays, drawn, samples):
    """One position after another, with the words that were drawn."""
    features, unembedding, bias, targets, weights = arrays
    expected = 1 - (1 - shares(len(bias))) ** sampled_softmax.expected_draws(len(bias), samples)
    total = 0.0
    for row, place in np.ndindex(targets.shape):
        logits = unembedding @ features[row, place] + bias - np.log(expected)
        target = targets[row, place]
        others = [logits[i] for i in drawn if i != target]
        total += weights[row, place] * (np.log(np.exp([logits[target], *others]).sum()) - logits[target])
    return total


def test_sampled_softmax_covers_the_target_and_the_drawn_words():
    arrays, key = head(), jax.random.key(1)
    drawn = np.argsort(-(np.log(shares(40)) + np.asarray(jax.random.gumbel(key, (40,)))))[:12]
    assert any(target in drawn for target in arrays[3].ravel())
    got = sampled_softmax.sampled_softmax(*arrays, key, 12)
    np.testing.assert_allclose(got, sampled_by_hand(arrays, drawn, 12), rtol=1e-5)
    gradient = jax.grad(sampled_softmax.sampled_softmax, argnums=1)(*arrays, key, 12)
    touched = np.isin(np.arange(40), [*drawn, *arrays[3].ravel()])
    assert (abs(gradient[touched]).max(1) > 0).all() and not gradient[~touched].any()


def test_sampled_softmax_approaches_the_full_softmax():
    arrays = head(2)
    full = sum_over_vocabulary(CrossEntropy(), *arrays[:3], arrays[3:], (), 2**20).loss

    def distance(samples):
        loss = jax.jit(functools.partial(sampled_softmax.sampled_softmax, samples=samples))
        found = [loss(*arrays, jax.random.key(seed)) for seed in range(20)]
        return abs(np.mean(found) / full - 1)

    assert distance(38) < 0.03 and distance(38) < distance(4)


def model_and_batch(rows=4, length=5):
    model, rng = registry.build(tiny.ELMO), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 3, registry.shapes(tiny.ELMO))
    weights = (rng.random((rows, 2, length)) < 0.8).astype(np.float32)
    batch = {
        "characters": rng.integers(0, 261, (rows, 2, length, 12), dtype=np.int32),
        "targets": rng.integers(0, 64, (rows, 2, length), dtype=np.int32),
        "target_weights": weights,
    }
    carry = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 3, nn.unbox(registry.new_carry(model, rows))
    )
    return model, params, batch, carry


@functools.partial(jax.jit, static_argnames=("model", "negative_samples"))
def loss_of(model, params, batch, rngs, carry, negative_samples=0):
    """The sum, the weight, the metrics and the carry."""
    loss = losses.BidirectionalLMLoss(negative_samples=negative_samples)
    terms, metrics, carry = loss(model, params, batch, rngs, carry)
    return terms["bidirectional_lm"], loss.weights(model, batch)["bidirectional_lm"], *metrics.values(), carry


@functools.partial(jax.jit, static_argnames="model")
def read(model, params, characters, carry):
    return model.apply({"params": params}, characters, carry, method="streams")


def full_nll(params, features, targets):
    """Returns the negative log-likelihood of each target under the softmax over all words."""
    logits = np.asarray(features @ params["head"].T + params["head_bias"], np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]


def test_loss_sums_both_directions():
    model, params, batch, carry = model_and_batch()
    loss, weight, metrics, after = loss_of(model, params, batch, None, carry)
    features, want_after = read(model, params, batch["characters"], carry)
    nll = full_nll(params, features, batch["targets"])
    np.testing.assert_allclose(loss, (nll * batch["target_weights"]).sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"], loss, rtol=1e-6)
    assert weight == batch["target_weights"].sum()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), after, want_after)


def test_words_are_sampled_only_in_training():
    model, params, batch, carry = model_and_batch()
    loss = functools.partial(loss_of, model, params, batch, negative_samples=20)
    rngs = step.rngs(ROOT, 0, 0, KEYS)
    full, drawn = loss(None, carry), loss(rngs, carry)
    np.testing.assert_allclose(full[0], loss_of(model, params, batch, None, carry)[0], rtol=1e-6)
    assert abs(drawn[0] - full[0]) > 1e-3 and drawn[2] == {}
    assert drawn[0] == loss(rngs, carry)[0] != loss(step.rngs(ROOT, 1, 0, KEYS), carry)[0]


def test_no_gradient_reaches_the_previous_batch():
    model, params, first, carry = model_and_batch()
    second = first | {"characters": first["characters"][:, ::-1]}

    def loss(params, batch, carry):
        loss_sum, _, _, after = loss_of(model, params, batch, None, carry)
        return loss_sum, after

    def of_both(params, *, cut):
        after = loss(params, first, carry)[1]
        return loss(params, second, jax.lax.stop_gradient(after) if cut else after)[0]

    run = step.train_step(losses.BidirectionalLMLoss(), model, optax.sgd(0.0), dropout=False)
    digest = {"digest": jnp.zeros((4, 2), jnp.uint32)}
    run = jax.jit(run)
    after, _ = run(state.new_state(params, optax.sgd(0.0), carry), first | digest, ROOT, 0.0)
    _, metrics = run(after, second | digest, ROOT, 0.0)
    gradients = {cut: jax.jit(jax.grad(functools.partial(of_both, cut=cut)))(params) for cut in (True, False)}
    norms = {cut: optax.global_norm(found) / second["target_weights"].sum() for cut, found in gradients.items()}
    np.testing.assert_allclose(metrics["grad_norm"], norms[True], rtol=1e-5)
    assert abs(norms[True] / norms[False] - 1) > 1e-4


def test_microbatches_keep_the_state_of_each_row():
    model, params, batch, carry = model_and_batch(rows=6)
    batch |= {"digest": jnp.zeros((6, 2), jnp.uint32)}

    def once(count):
        sgd = optax.sgd(1.0)
        run = step.train_step(losses.BidirectionalLMLoss(), model, sgd, count)
        return jax.jit(run)(state.new_state(params, sgd, carry), batch, ROOT, 1.0)

    whole, metrics = once(1)
    parts, same = once(3)
    np.testing.assert_allclose(same["loss"], metrics["loss"], rtol=1e-6)
    for one, other in ((parts.carry, whole.carry), (parts.params, whole.params)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


def test_recipe_equals_updates_of_a_loss_summed_over_steps():
    """bilm-tf's Adagrad and clip on 20 times the gradient, and the config's on the gradient."""
    rng = np.random.default_rng(0)
    theirs, ours = (
        optimizers.build(config.AdagradConfig(initial_accumulator=initial, clip_norm=clip))
        for initial, clip in ((1.0, 10.0), (1 / 400, 0.5))
    )
    params = {"w": jnp.zeros(5)}
    states = [theirs.init(params), ours.init(params)]
    clipped = 0
    for _ in range(4):
        gradient = {"w": jnp.asarray(rng.normal(size=5) * rng.choice([0.01, 1.0]))}
        clipped += optax.global_norm(gradient) > 0.5
        one, states[0] = theirs.update(jax.tree.map(lambda g: 20 * g, gradient), states[0], params, learning_rate=0.2)
        other, states[1] = ours.update(gradient, states[1], params, learning_rate=0.2)
        np.testing.assert_allclose(other["w"], one["w"], rtol=1e-5)
    assert 0 < clipped < 4


@functools.cache
def trained(folder, **sizes):
    changed = {"mesh": config.MeshConfig(**sizes), "train": {"steps": 5, "phases": ()}, "schedule": {"warmup_steps": 0}}
    run = runs.make(folder, tiny.RUNS["elmo_everything"], **changed)
    return runs.steps(run, int(np.prod(list(sizes.values()))))


def test_training_on_a_mesh_equals_one_device(folder):
    want_losses, before, want, _, last = trained(folder, data=1)
    got_losses, _, got, _, same_last = trained(folder, data=1, fsdp=4, tensor=2)
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    for leaf in want:
        np.testing.assert_allclose(got[leaf], want[leaf], rtol=1e-5, atol=1e-5, err_msg=leaf)
        assert abs(want[leaf] - before[leaf]).max() > 0, leaf
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), same_last.carry, last.carry)


def test_parameters_and_state_are_sharded(folder):
    _, _, _, job, _ = trained(folder, data=1, fsdp=4, tensor=2)
    leaves = jax.tree_util.tree_leaves_with_path((job.program.shardings.params, job.program.shardings.carry))
    specs = {jax.tree_util.keystr(path[1:], simple=True, separator="/"): sharding.spec for path, sharding in leaves}
    assert specs["lstm/blocks/input/kernel"] == P(None, None, "fsdp", None, "tensor")
    assert specs["lstm/blocks/projection/kernel"] == P(None, None, "tensor", "fsdp")
    assert specs["embedding/blocks/carry/kernel"] == P(None, "fsdp", "tensor")
    assert specs["embedding/projection/kernel"] == P("tensor", "fsdp")
    assert specs["head"] == P("tensor", "fsdp")
    assert specs["cell"] == P("fsdp", None, None, "tensor")


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    """A run of 24 steps with everything except dropout, saved every four, in this process."""
    run, workdir = runs.make(folder, tiny.RUNS["elmo_everything"], 0.0), tmp_path_factory.mktemp("finished") / "run"
    loop.pretrain(run, str(workdir))
    return run, workdir


def newest(run, workdir):
    """A job and the state that it begins with."""
    job = setup.build(run, resume.find_latest_checkpoint(str(workdir), run.train.steps))
    with Checkpoints(str(workdir), run.checkpoint) as checkpoints:
        return job, setup.starting_state(job, checkpoints.restore)[0]


def test_resumed_run_restores_the_recurrent_state(finished, tmp_path):
    run, workdir = finished
    resumed = runs.copy_at(workdir, tmp_path / "run", 16)  # Amid the second phase.
    loop.pretrain(run, str(resumed))
    assert [row["step"] for row in runs.rows(resumed)] == list(range(1, 25))
    for name in ("train/batch_digest", "train/loss", "validation/loss"):
        assert runs.column(resumed, name) == runs.column(workdir, name)
    want, got = newest(run, workdir)[1], newest(run, resumed)[1]
    jax.tree.map(np.testing.assert_array_equal, (got.params, got.carry), (want.params, want.carry))
    assert want.carry["hidden"].shape == (32, 2, 2, 8) and abs(np.asarray(want.carry["hidden"])).min(axis=3).all()


def test_changed_batch_size_resets_the_recurrent_state(finished, tmp_path):
    run, workdir = finished
    job, state = newest(run, runs.copy_at(workdir, tmp_path / "run", 12))
    first, second = job.programs.phases
    assert (first.end_step, first.batch_size, second.batch_size) == (12, 16, 32)
    assert state.carry["cell"].shape[0] == 16 and np.asarray(state.carry["cell"]).any()
    assert job.program.place(state, job.program, first.batch_size) is state
    fresh = job.program.place(state, job.program, second.batch_size).carry
    assert jax.tree.map(jnp.shape, fresh) == {"cell": (32, 2, 2, 16), "hidden": (32, 2, 2, 8)}
    assert not any(np.asarray(leaf).any() for leaf in fresh.values())
    # And so does the command line's.
    changed = dataclasses.replace(run, train=dataclasses.replace(run.train, batch_size=48, phases=()))
    job, state = newest(changed, tmp_path / "run")
    assert job.program.place(state, job.program, 48).carry["cell"].shape[0] == 48


def test_validation_continues_rows_with_the_full_softmax(finished):
    run, workdir = finished
    lm = plm_jax.load(workdir)
    batches = list(Reader(config.reader_config(run)).in_order("validation", 8))
    characters, targets, weights = (
        np.concatenate([batch[key] for batch in batches], axis=2) for key in ("characters", "targets", "target_weights")
    )
    assert len(batches) > 1
    carry = nn.unbox(registry.new_carry(lm.model, 8))
    features, _ = read(lm.model, lm.params, characters, carry)
    nll = full_nll(lm.params, features, targets)
    want = (nll * weights).sum() / weights.sum()
    job = setup.build(run, devices=jax.devices()[:1])
    validated = job.validation(lm.params, job.programs.phases[0])
    assert validated["a/loss"] == validated["loss"]
    np.testing.assert_allclose(validated["loss"], want, rtol=1e-5)
    found = perplexity.evaluate(lm, lm.run, "a", show_progress=False)
    np.testing.assert_allclose([found["loss"], found["tokens"]], [want, weights.sum()], rtol=1e-5)
    assert found["real_tokens"] < found["tokens"]
    validated = runs.column(workdir, "validation/loss")
    assert validated[20] < validated[10] < np.log(64)


def test_trained_model_reads_words_and_is_saved(finished, tmp_path):
    lm = plm_jax.load(finished[1])
    ids = [list(lm.vocabulary.encode("Whale Captain Zzyzx."))]
    assert ids[0][-1] == lm.vocabulary.unk_id and len(ids[0]) == 3
    lm.save(tmp_path, format="bilm")
    np.testing.assert_array_equal(plm_jax.load(tmp_path).logits(ids), lm.logits(ids))
    # And is taken up again.
    source = dataclasses.replace(lm.run.train, init_from=str(tmp_path))
    params, notes = warm_start.load_weights(jax.tree.map(jnp.zeros_like, lm.params), source, lm.run.model)
    jax.tree.map(np.testing.assert_array_equal, params, lm.params)
    assert len(notes) == 1


@pytest.mark.parametrize("samples", [0, 20])
def test_flops_are_three_forward_passes(samples):
    model, params, batch, carry = model_and_batch()

    def forward(params):
        rngs = step.rngs(ROOT, 0, 0, KEYS)
        return loss_of(model, params, batch, rngs, carry, samples)[0]

    counted = flops.of_program(jax.make_jaxpr(forward)(params).jaxpr)
    assert flops.per_step(model.model, 4, 5, 5, samples=samples) == 3 * counted
    run = tiny.of_elmo(tiny.PLAIN, negative_samples=samples)
    stage = dataclasses.replace(config.resolve_phases(run)[0], batch_size=4)
    assert phase_costs.model_flops(run, stage) == 3 * counted


def test_flops_of_a_task_leave_out_the_softmax():
    """The word vectors count once, because both directions read them."""
    model = dataclasses.replace(tiny.ELMO.with_task(models.TagsHead(labels=("a", "b"))), head=models.NoHead())
    module, characters = registry.build(model), model_and_batch()[2]["characters"][:, 0]

    def forward(params):
        features = module.apply({"params": params}, characters, method="features")
        return module.apply({"params": params}, features, name="task", method="head_output")

    counted = flops.of_program(jax.make_jaxpr(forward)(registry.shapes(model)).jaxpr)
    assert flops.per_step(model, *characters.shape[:2], targets=5) == 3 * counted


def test_elmo_run_is_planned():
    run = tiny.RUNS["elmo"]
    report = planning.plan(run, "none")
    assert report["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(registry.shapes(run.model)))
