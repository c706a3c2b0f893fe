"""Training on examples with inputs and targets, alone and among texts."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.data.reader import Reader
from plm_jax.evaluation import task_metrics
from plm_jax.inference.language_model import load
from plm_jax.models import registry
from plm_jax.runs import loop, preparation
from tests.support import runs, tiny

SPECIAL = objectives.Special(pad=0, eos=1, vocab_size=272)
EXAMPLES = [([11, 12, 13], [21, 22]), ([14], [23]), ([15, 16, 17, 18], [24, 25, 26])]


def of(model, segmented):
    objective = objectives.SpanCorruption() if isinstance(model, models.EncoderDecoderConfig) else objectives.Causal()
    return objective.example_rows(objective, SPECIAL, 10 if objective.kind == "span_corruption" else 5, segmented)


def make(model):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.array(rng.normal(size=leaf.shape) / 4, jnp.float32), registry.shapes(model))
    return registry.build(model), params


def stacked(rows):
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def sum_and_weight(module, params, batch):
    terms, _, _ = losses.NextTokenLoss()(module, params, batch, None, {})
    return terms["next_token"], losses.NextTokenLoss().weights(module, batch)["next_token"]


@pytest.mark.parametrize("model", [tiny.T5, tiny.MODEL, tiny.LLAMA], ids=["t5", "gpt2", "llama"])
def test_packed_examples_have_the_loss_of_separate_rows(model):
    module, params = make(model)
    loss = jax.jit(functools.partial(sum_and_weight, module, params))
    packed, alone = of(model, True), of(model, False)
    want = loss(stacked([alone.row([example], 16) for example in EXAMPLES]))
    found = loss(stacked([packed.row(EXAMPLES, 16)]))
    assert found[1] == want[1] == 9
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5)
    # Without segments they see each other.
    names = ("segment_ids", "decoder_segment_ids")
    open_to_all = {k: v for k, v in stacked([packed.row(EXAMPLES, 16)]).items() if k not in names}
    assert abs(float(loss(open_to_all)[0]) - float(want[0])) > 1e-2


@pytest.mark.parametrize("model", [tiny.T5, tiny.MODEL], ids=["t5", "gpt2"])
def test_loss_covers_only_targets_and_eos(model):
    module, params = make(model)
    row = stacked([of(model, False).row(EXAMPLES[:1], 16)])
    inputs = model.read(row)
    log_p = np.asarray(jax.nn.log_softmax(module.apply({"params": params}, **inputs)))[0]
    first = 0 if "decoder_tokens" in row else 2  # The last token of the inputs is asked for the first target.
    want = -sum(log_p[first + i, token] for i, token in enumerate([21, 22, 1]))
    loss, weight = sum_and_weight(module, params, row)
    assert weight == 3
    np.testing.assert_allclose(loss, want, rtol=1e-5)


ANSWERS = {"mood": {"good": "+", "bad": "-"}, "size": {"big": "L", "small": "S"}}


def write(folder):
    """A file a task: one of two words and a number, and the answer that is the word's."""
    for task, answers in ANSWERS.items():
        with open(folder / f"{task}.jsonl", "w") as file:
            for number in range(150):
                word = list(answers)[number % 2]
                file.write(json.dumps({"word": f"{word} {number}", "answer": answers[word]}) + "\n")


@pytest.fixture
def mixed(tiny_copy):
    """A run of T5 on the texts and two tasks, prepared, with fields changed."""
    write(tiny_copy)
    tasks = {name: config.TableInputsTargets(f"{name}.jsonl", name + ": {word}", "{answer}") for name in ANSWERS}

    def get(texts=True, **sections):
        data = dataclasses.replace(
            tiny.PLAIN.data,
            cache_dir="cache_mixed",
            sources=(tiny.PLAIN.data.sources if texts else {}) | tasks,
            mixture=({"a": 1.0, "b": 1.0} if texts else {}) | dict.fromkeys(tasks, 1.0),
            inputs_targets=config.InputsTargetsConfig(target_length=9, packed=True),
        )
        run = runs.make(tiny_copy, dataclasses.replace(tiny.of_t5(tiny.PLAIN), data=data), **sections)
        preparation.prepare(run, show_progress=False)
        return run

    return get


def test_mixed_run_resumes_exactly(mixed, tmp_path):
    run = mixed()
    workdir, again = tmp_path / "run", tmp_path / "again"
    loop.pretrain(run, str(workdir))
    kinds = [set(Reader(config.reader_config(run)).example(k)["segment_ids"].tolist()) for k in range(48)]
    assert any(2 in kind for kind in kinds) and any(kind == {1} for kind in kinds)
    runs.copy_at(workdir, again, 3)
    loop.pretrain(run, str(again))
    for name in ("train/batch_digest", "train/loss"):
        found = runs.column(again, name)
        assert found == runs.column(workdir, name) and len(found) == 6
    assert len(set(runs.column(workdir, "train/batch_digest").values())) == 6


def test_small_t5_learns_two_tasks(mixed, tmp_path):
    run = mixed(
        texts=False,
        train={"steps": 70, "log_every": 70},
        optimizer=config.AdamWConfig(),
        schedule={"learning_rate": 3e-3},
        checkpoint={"save_every": 70},
        data={"length": 40, "inputs_targets": config.InputsTargetsConfig(target_length=8, packed=True)},
    )
    loop.pretrain(run, str(tmp_path / "run"))
    lm = load(tmp_path / "run")
    for task in ANSWERS:
        found = task_metrics.evaluate(lm, lm.run, task, show_progress=False)
        assert found["accuracy"] > 0.9 > 0.8 > found["most_frequent_accuracy"], found
