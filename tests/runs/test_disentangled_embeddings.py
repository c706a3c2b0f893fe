"""DeBERTaV3: gradient-disentangled embeddings and its updates in sequence, against a training loop in torch."""

import dataclasses

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common import keys
from plm_jax.configs import deberta
from plm_jax.hub import huggingface, sentence_transformers
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import electra, registry
from plm_jax.runs import checkpoint_formats, setup, warm_start
from plm_jax.training import step
from plm_jax.training.program import fitted
from tests.runs.test_references import assert_resumed_equals_whole
from tests.support import runs
from tests.support import tiny as tiny_runs

OPTIMIZER = config.AdamWConfig(epsilon=1e-4, weight_decay=0.01, clip_norm=1.0)
OBJECTIVE = objectives.ReplacedToken(windows=True, mask_share=1.0, discriminator_weight=10.0)
RATE = 2e-3


def small(vocab_size=272):
    """Returns a discriminator of two layers and a generator of one, of different weights everywhere."""
    model = deberta.model(3, 2, 32, 4, vocab_size, 130, dropout=0.0)
    return dataclasses.replace(model, initializer=models.InitializerConfig(std=0.1))


def tiny_run(tiny, decoupled=True, train=None, **sections):
    """Returns a run of a small DeBERTaV3."""
    model = dataclasses.replace(small(), **sections.pop("model", {}))
    base = dataclasses.replace(
        tiny_runs.RUNS["electra"], model=model, objective=OBJECTIVE, schedule=config.ConstantSchedule(RATE)
    )
    updates = deberta.updates(OPTIMIZER) if decoupled else ()
    return runs.make(tiny, base, optimizer=OPTIMIZER, train={"updates": updates, **(train or {})}, **sections)


def one_batch(tiny, run):
    job = setup.build(run, devices=jax.devices()[:1])
    batch, _ = next(runs.batches(job, 0))
    return job, {name: np.asarray(array) for name, array in batch.items() if name != "digest"}


def with_random_leaves(params, seed=0):
    """Returns parameters in which norms, biases and differences have random values, too."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: np.asarray(leaf + rng.normal(0, 0.05, leaf.shape), np.float32), params)


def test_gradients_of_shared_tables_come_from_the_generator_alone(tiny):
    run = tiny_run(tiny, decoupled=False)
    job, batch = one_batch(tiny, run)
    module = job.program.module(0.0)
    params = with_random_leaves(setup.starting_state(job, None)[0].params)
    loss = losses.get("replaced_token", discriminator_weight=10.0)
    rngs = {"sample": jax.random.key(1)}

    def gradient(params, term):
        return jax.grad(lambda params: loss(module, params, batch, rngs, {})[0][term])(params)

    both = jax.jit(lambda params: [gradient(params, term) for term in ("generator", "discriminator")])
    generator, discriminator = map(runs.flat, both(params))
    assert {name for name, leaf in discriminator.items() if not leaf.any()} >= {"token_embedding"}
    assert generator["token_embedding"].any() and not generator["token_embedding_difference"].any()
    assert discriminator["token_embedding_difference"].any()
    for name in generator:
        is_of_generator = name.startswith("generator/") or name == "token_embedding"
        assert not (discriminator if is_of_generator else generator)[name].any(), name


def test_discriminator_alone_equals_that_of_the_pair(tiny):
    job, batch = one_batch(tiny, tiny_run(tiny))
    params = with_random_leaves(setup.starting_state(job, None)[0].params)
    inputs = {name: batch[name] for name in ("tokens", "mask", "positions") if name in batch}
    model = small()
    expected = registry.build(model).apply({"params": params}, **inputs, method="features")
    alone = model.with_discriminator_tables({name: value for name, value in params.items() if name != "generator"})
    got = registry.build(model.discriminator_model).apply({"params": alone}, **inputs, method="features")
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert "token_embedding_difference" not in alone and "generator" not in alone
    embedder = sentence_transformers.without_heads(Pretrained(model, jax.tree.map(np.asarray, params)))
    got = registry.build(embedder.model).apply({"params": embedder.params}, **inputs, method="features")
    np.testing.assert_allclose(got, expected, atol=1e-6)


def torch_pair(model, params, folder):
    """Returns the discriminator, its head's tensors, and the generator in transformers, with the decoder's table."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from safetensors.torch import load_file

    generator_module, generator_params = electra.generator(registry.build(model), params)
    generator_params = jax.tree.map(np.asarray, generator_params)
    parts = {
        "generator": (generator_module.model, generator_params),
        "discriminator": (model, jax.tree.map(np.asarray, params)),
    }
    for name, (part, values) in parts.items():
        (folder / name).mkdir(parents=True)
        huggingface.write(str(folder / name), Pretrained(part, values))
    generator = transformers.DebertaV2ForMaskedLM.from_pretrained(folder / "generator").eval()
    table = load_file(folder / "generator/model.safetensors")["deberta.embeddings.position_embeddings.weight"]
    generator.table = torch.nn.Parameter(table)
    discriminator = transformers.DebertaV2Model.from_pretrained(folder / "discriminator").eval()
    stored = load_file(folder / "discriminator/model.safetensors")
    head = torch.nn.ParameterDict(
        {name.replace(".", "/"): value for name, value in stored.items() if name.startswith("mask_predictions")}
    )
    return torch, generator, discriminator, head


def torch_losses(torch, generator, discriminator, head, difference, rows, sampled):
    """Returns functions of the losses of the generator and of the discriminator on its samples, in torch."""
    functional = torch.nn.functional
    mask, weights = torch.tensor(rows["mask"]), torch.tensor(rows["target_weights"])
    at = torch.arange(len(mask))[:, None], torch.tensor(rows["target_positions"]).long()
    targets, samples = torch.tensor(rows["targets"]).long(), torch.tensor(np.asarray(sampled)).long()
    tokens = torch.tensor(rows["tokens"]).long()

    def of_generator():
        outputs = generator.deberta(tokens, mask, output_hidden_states=True)
        stack, hidden = generator.deberta.encoder, outputs.hidden_states[-2]
        queries = hidden + generator.table[: tokens.shape[1]]
        for _ in range(2):
            queries, _ = stack.layer[-1](
                hidden,
                stack.get_attention_mask(mask),
                query_states=queries,
                relative_pos=stack.get_rel_pos(hidden),
                rel_embeddings=stack.get_rel_embedding(),
            )
        logits = generator.lm_predictions(queries, generator.deberta.embeddings.word_embeddings)[at]
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (each * weights.flatten()).sum() / weights.sum()

    def of_discriminator():
        text, corrupted = tokens.clone(), tokens.clone()
        for row, slot in zip(*np.nonzero(rows["target_weights"]), strict=True):
            position = rows["target_positions"][row, slot]
            text[row, position], corrupted[row, position] = targets[row, slot], samples[row, slot]
        table = generator.deberta.embeddings.word_embeddings.weight.detach() + difference
        hidden = discriminator(inputs_embeds=table[corrupted], attention_mask=mask).last_hidden_state
        part = {name.split("/", 1)[1].replace("/", "."): value for name, value in head.items()}
        normed = functional.layer_norm(
            hidden + hidden[:, :1], hidden.shape[-1:], part["LayerNorm.weight"], part["LayerNorm.bias"], 1e-7
        )
        dense = functional.gelu(normed @ part["dense.weight"].T + part["dense.bias"])
        logits = (dense @ part["classifier.weight"].T + part["classifier.bias"])[..., 0]
        labels = (text != corrupted).float()
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return 10.0 * (each * mask).sum() / mask.sum()

    return of_generator, of_discriminator


def torch_optimizer(torch, named):
    """Returns AdamW with the settings of OPTIMIZER; biases and norms are not decayed."""
    groups = [
        {"params": [value for name, value in named if _decays(name) == decays], "weight_decay": 0.01 * decays}
        for decays in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=OPTIMIZER.epsilon)


def _decays(name):
    return not name.endswith("bias") and "LayerNorm" not in name


def test_ten_steps_equal_a_loop_in_torch(tiny, tmp_path):
    run = tiny_run(tiny, train={"steps": 10})
    job = setup.build(run, devices=jax.devices()[:1])
    state, _ = setup.starting_state(job, None)
    params = with_random_leaves(jax.device_get(state.params))
    params["token_embedding_difference"] *= 0.5
    state = dataclasses.replace(state, params=jax.device_put(params))
    torch, generator, discriminator, head = torch_pair(small(), params, tmp_path / "before")
    difference = torch.nn.Parameter(torch.tensor(params["token_embedding_difference"]))
    optimizers = (
        torch_optimizer(torch, list(generator.named_parameters())),
        torch_optimizer(
            torch,
            [("difference", difference), *discriminator.encoder.named_parameters(), *head.items()]
            + [(f"LayerNorm.{name}", value) for name, value in discriminator.embeddings.LayerNorm.named_parameters()],
        ),
    )
    train_step, module = job.program.phase_step(job.programs.phases[0]), job.program.module(0.0)
    sample = jax.jit(
        lambda params, rows, rngs: job.program.updates[0].loss(module, params, rows, rngs, {})[2]["sampled"]
    )
    for number, (batch, _) in enumerate(runs.batches(job, 0)):
        rows = {name: np.asarray(array) for name, array in batch.items() if name != "digest"}
        sample_keys = step.rngs(keys.from_seed(run.train.seed), number, 0, ["sample"])
        sampled = sample(jax.device_get(state.params), rows, sample_keys)
        state, metrics = train_step(state, batch, *job.programs.inputs(number))
        pair = torch_losses(torch, generator, discriminator, head, difference, rows, sampled)
        for name, loss, optimizer in zip(("generator", "discriminator"), pair, optimizers, strict=True):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            trained = [value for group in optimizer.param_groups for value in group["params"]]
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            np.testing.assert_allclose(metrics[f"loss/{name}"], value.item(), rtol=1e-4, err_msg=str(number))
    assert number == 9
    params = jax.device_get(fitted(state, job.program.published_state).params)
    _, after, discriminator_after, head_after = torch_pair(small(), params, tmp_path / "after")
    np.testing.assert_allclose(params["token_embedding_difference"], difference.detach(), atol=1e-4)
    pairs = [(after, generator), (discriminator_after.encoder, discriminator.encoder), (head_after, head)]
    for ours, theirs in pairs:
        for name, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[name], value.detach(), atol=1e-4, err_msg=name)


def test_eight_devices_equal_one(tiny):
    runs.assert_eight_devices_equal_one(tiny_run(tiny, train={"microbatches": 2, "steps": 3}))


def test_resumed_run_equals_uninterrupted_one(tiny_copy, verb, tmp_path):
    checkpoint = config.CheckpointConfig(save_every=2, keep_last=9)
    run = tiny_run(tiny_copy, train={"steps": 6}, checkpoint=checkpoint)
    assert_resumed_equals_whole(run, tiny_copy, verb, tmp_path)


def test_a_task_starts_from_the_discriminators_tables(tiny, tmp_path):
    job, _ = one_batch(tiny, tiny_run(tiny))
    params = with_random_leaves(setup.starting_state(job, None)[0].params)
    checkpoint_formats.save(str(tmp_path / "pair"), Pretrained(small(), params), "plm_jax")
    task = small().with_task(models.ClassesHead(labels=("a", "b")))
    new = jax.tree.map(jnp.asarray, registry.init_params(registry.build(task), jax.random.key(0)))
    train = config.TrainConfig(batch_size=1, steps=1, init_from=str(tmp_path / "pair"))
    loaded, _ = warm_start.load_weights(flax.linen.unbox(new), train, task)
    expected = params["token_embedding"] + params["token_embedding_difference"]
    np.testing.assert_array_equal(loaded["token_embedding"], expected)
    generator = small().generator_model
    fresh = jax.tree.map(jnp.asarray, registry.init_params(registry.build(generator), jax.random.key(0)))
    names = (("generator/(.*)", r"\1"), "token_embedding")
    train = dataclasses.replace(train, init_names=names)
    loaded, _ = warm_start.load_weights(flax.linen.unbox(fresh), train, generator)
    np.testing.assert_array_equal(loaded["token_embedding"], params["token_embedding"])
    again = tiny_run(tiny, train={"init_from": str(tmp_path / "pair")})
    state, _ = setup.starting_state(setup.build(again, devices=jax.devices()[:1]), None)
    np.testing.assert_array_equal(state.params["token_embedding"], params["token_embedding"])
    np.testing.assert_array_equal(state.params["token_embedding_difference"], params["token_embedding_difference"])
