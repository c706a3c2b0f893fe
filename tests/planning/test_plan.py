"""The plan of a step: its batch is the reader's, its bytes are counted by hand, its program is a TPU's."""

import dataclasses
import functools
import importlib.util
import json
import os
import types
from importlib import metadata

import jax
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common import overrides, trees
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.planning import hlo, tpus
from plm_jax.planning import plan as planning
from plm_jax.planning import slices as offers
from plm_jax.runs import phase_costs, setup
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from tests.support import runs
from tests.support.tiny import PLAIN, RUNS

LAYERS, WIDTH, VOCABULARY, POSITIONS, CHIPS = 3, 256, 1024, 128, 16
WIDE = 4 * WIDTH
# Compiling takes long: PLM_JAX_FULL_TESTS=1 takes a slice of three dimensions too.
SLICES = [("v5e:4x4", 16, 256), *([("v5p:4x4x4", 64, 512)] if os.environ.get("PLM_JAX_FULL_TESTS") else [])]
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")


def wide(width: int, chips: int) -> config.Run:
    """A run of three layers, sharded over all chips, 4 rows each."""
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=VOCABULARY, width=width),
        attention=models.AttentionConfig(
            heads=width // 64, head_dim=64, position=models.LearnedPositions(length=POSITIONS)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, bias=False),
        stack=models.StackConfig(layers=LAYERS),
        remat="dots",
    )
    return dataclasses.replace(
        PLAIN,
        model=model,
        data=dataclasses.replace(PLAIN.data, length=POSITIONS),
        train=dataclasses.replace(PLAIN.train, batch_size=4 * chips),
        mesh=config.MeshConfig(data=1, fsdp=-1),
        precision=config.PrecisionConfig(compute="bfloat16"),
    )


SHARDED = wide(WIDTH, CHIPS)


def module_of(run: config.Run, topology: str) -> hlo.HloModule:
    """Returns a run's step, compiled for a slice."""
    programs = Programs(run, planning.slice_devices(topology))
    (stage,) = programs.phases
    step = programs.at(stage).phase_step(stage).lower(*planning.step_inputs(programs, stage)).compile()
    return hlo.HloModule(step.as_text())


@functools.cache
def wide_module(width: int, chips: int, topology: str) -> hlo.HloModule:
    """Returns the step of `wide`, compiled for a slice."""
    return module_of(wide(width, chips), topology)


def collectives_of(run: config.Run, topology: str) -> list[hlo.Collective]:
    """Returns the collectives of a run's step, compiled for a slice."""
    return module_of(run, topology).collectives()


@needs_libtpu
def test_queries_keys_and_values_are_not_copied_to_another_layout(without_tpu):
    steps = [step.instruction for step in wide_module(WIDTH, CHIPS, "v5e:4x4").steps() if not step.fused]
    assert sum(step.target == "tpu_custom_call" for step in steps) == 2
    rows = 4 * POSITIONS * WIDTH
    moved = [step for step in steps if step.opcode in ("copy", "transpose") and step.arrays[0].size >= rows]
    assert not [step for step in moved if "/attention/" in step.rest]


@pytest.mark.parametrize("name", ["plain", "separate", "bert", "t5", "electra", "spanbert", "modernbert"])
def test_the_planned_batch_is_that_of_the_reader(tiny, name):
    job = setup.build(runs.make(tiny, RUNS[name]), devices=jax.devices()[:2])
    stage = job.programs.phases[-1]
    real = job.reader.batch(stage.first_step, range(stage.batch_size))
    _, planned, *_ = planning.step_inputs(job.programs, stage)
    assert {k: (v.shape, v.dtype) for k, v in planned.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
    placed, _ = next(runs.batches(job, stage.first_step))
    assert {k: v.sharding for k, v in planned.items()} == {k: v.sharding for k, v in placed.items()}


def test_bytes_are_those_counted_by_hand():
    matrices = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * WIDE) + VOCABULARY * WIDTH + POSITIONS * WIDTH
    vectors = LAYERS * (4 * WIDTH + 2 * 2 * WIDTH) + 2 * WIDTH
    programs = Programs(SHARDED, jax.devices()[:8])
    assert sum(leaf.size for leaf in jax.tree.leaves(programs.first.abstract_state.params)) == matrices + vectors
    local = matrices / 8 + vectors
    assert planning.device_bytes(programs.first.abstract_state.params) == 4 * local
    counters = 2 * 4
    assert planning.device_bytes(programs.first.abstract_state.optimizer) == 8 * local + counters


def test_the_flops_of_the_program_count_loops_and_recomputation():
    def counted(**changed):
        run = dataclasses.replace(SHARDED, model=dataclasses.replace(SHARDED.model, **changed))
        programs = Programs(run, jax.devices()[:1])
        (stage,) = programs.phases
        traced = programs.at(stage).phase_step(stage).trace(*planning.step_inputs(programs, stage))
        return flops.of_program(traced.jaxpr.jaxpr), phase_costs.model_flops(run, stage)

    scanned, model = counted(remat="none")
    # Causal attention is computed whole, and counted half in the model's FLOPs.
    other_half = 3 * 2 * LAYERS * 4 * CHIPS * POSITIONS**2 * 256
    state = Programs(SHARDED, jax.devices()[:1]).first.abstract_state
    grad_norm = 2 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert scanned == model + other_half + grad_norm
    assert counted(remat="none", scan_layers=False)[0] == scanned
    head, down = (2 * 4 * CHIPS * POSITIONS * WIDTH * size for size in (VOCABULARY, LAYERS * WIDE))
    # Of a block's products the last one is not computed again: nothing asks for its result.
    assert counted(remat="full")[0] == scanned + (model + other_half) // 3 - head - down


@needs_libtpu
@pytest.mark.parametrize(("topology", "chips", "width"), SLICES)
def test_an_fsdp_program_gathers_layer_by_layer_and_scatters_gradients(without_tpu, topology, chips, width):
    collectives = wide_module(width, chips, topology).collectives()
    matrix = 2 * width * 4 * width  # The largest of a layer, in bfloat16.

    def in_the_layers(kind):
        # The trips of no other loop of this program are a multiple of the layers.
        return [c for c in collectives if c.kind == kind and c.times % LAYERS == 0]

    def sent(collectives):
        return sum(c.sent * c.times for c in collectives)

    # Each layer's matrices in bfloat16, forward, backward and, some, recomputed; a ring sends one piece too many.
    gathered, scattered = in_the_layers("all-gather"), in_the_layers("reduce-scatter")
    once = LAYERS * 3 * matrix * (chips - 1) / chips
    assert 2 * once <= sent(gathered) <= 3.3 * once
    assert once <= sent(scattered) <= 1.1 * once
    largest = max(array.nbytes for c in gathered + scattered for array in c.arrays)
    assert largest <= matrix, "more than one matrix of one layer at once"
    # Outside of the loops: the embeddings and what is no larger than a row of a matrix.
    outside = [c for c in collectives if c not in gathered + scattered and c.kind in ("all-gather", "all-reduce")]
    assert max(array.nbytes for c in outside for array in c.arrays) <= 4 * VOCABULARY * width
    reduced = [array.nbytes for c in collectives if c.kind == "all-reduce" for array in c.arrays]
    assert max(reduced) < 2 * width**2, "the gradient of a matrix"


@needs_libtpu
def test_the_time_of_a_step_lies_above_its_bound_and_has_parts(without_tpu):
    report = planning.plan(wide(WIDTH, 4), "v5e:2x2", price=2.0)
    estimate = report["estimate"]
    seconds, mfu = estimate["seconds"], estimate["mfu"]
    assert estimate["bound_seconds"] < seconds["middle"] <= seconds["pessimistic"] <= 1.35 * seconds["optimistic"]
    assert sum(estimate["seconds_by_kind"].values()) == pytest.approx(seconds["middle"])
    assert min(estimate["seconds_by_kind"][kind] for kind in ("matmuls", "attention", "head", "optimizer")) > 0
    assert mfu["middle"] == pytest.approx(report["model_flops_per_step"] / 4 / 197e12 / seconds["middle"])
    cost = 2.0 * 4 / 3600 * seconds["middle"] / report["tokens_per_step"]
    assert report["dollars_per_token"] == pytest.approx(cost)
    assert f"{seconds['middle']:.3g} s" in planning.table(report)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("memory required for HLO temporaries (58.21G) exceeds available HBM (15.75G).", int(58.21 * 2**30)),
        ("Ran out of memory in memory space hbm. Used 17.50M of 15.75M hbm.", int(17.5 * 2**20)),
        ("no figure", None),
    ],
)
def test_required_memory_is_parsed_from_the_compiler_error(message, needed):
    assert planning._requested_bytes(message) == needed


def test_remedies_go_from_cheap_to_dear():
    run = dataclasses.replace(
        SHARDED, mesh=config.MeshConfig(), train=dataclasses.replace(SHARDED.train, batch_size=64)
    )
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, remat="none"))
    changes = [change for change, _ in planning.remedies(run, 8)]
    assert changes[0] == {"mesh.data": 1, "mesh.fsdp": 8}
    assert [(c["model.remat"], c["train.microbatches"]) for c in changes[1:]] == [
        *[("none", 2), ("none", 4), ("dots", 1), ("dots", 2), ("dots", 4)],
        *[("full", 1), ("full", 2), ("full", 4), ("full", 8)],
    ]
    for change, changed in planning.remedies(run, 8):
        assert changed.train.microbatches == change.get("train.microbatches", 1)
        assert changed.model.remat == change.get("model.remat", "none")
        Programs(changed, jax.devices()[:8])


def test_settings_of_remedies_give_the_changed_run_when_phases_differ():
    """Phases keep their numbers of tokens per microbatch within that of the costliest phase, as ModernBERT needs."""
    phases = (
        config.PhaseConfig(until=0.2, batch_size=16, microbatches=1),
        config.PhaseConfig(until=0.5, length=SHARDED.data.length // 2, batch_size=64),
        config.PhaseConfig(until=1.0, batch_size=48, microbatches=3),
    )
    run = dataclasses.replace(SHARDED, train=dataclasses.replace(SHARDED.train, batch_size=64, phases=phases))
    remedies = list(planning.remedies(run, 8))
    for settings, changed in remedies:
        assert trees.parse(config.Run, overrides.overridden(run, settings).to_dict(), "config") == changed
        Programs(changed, jax.devices()[:8])
        tokens = [phase.batch_size // phase.microbatches * phase.length for phase in config.resolve_phases(changed)]
        assert max(tokens) == tokens[2]
    assert [phase.microbatches for phase in config.resolve_phases(remedies[-1][1])] == [2, 4, 6]


@pytest.mark.parametrize(
    ("mesh", "sharded", "rows"),
    [
        (config.MeshConfig(data=2, tensor=-1), {"mesh.data": 1, "mesh.fsdp": 2, "mesh.tensor": 4}, 32),
        (config.MeshConfig(data=2, tensor=2, context=-1), {"mesh.data": 1, "mesh.fsdp": 2, "mesh.context": 2}, 32),
        (config.MeshConfig(data=2, stage=-1), {"mesh.data": 1, "mesh.fsdp": 2, "mesh.stage": 4}, 8),
    ],
)
def test_remedies_know_every_axis(mesh, sharded, rows):
    """The last one takes the rows of a device one after another."""
    run = dataclasses.replace(SHARDED, mesh=mesh, train=dataclasses.replace(SHARDED.train, batch_size=64))
    changes = [change for change, _ in planning.remedies(run, 8)]
    assert changes[0] == sharded and changes[-1]["train.microbatches"] == rows


@pytest.mark.parametrize(("enough", "suggestion"), [("dots", ("dots", 1)), ("nothing", None)])
def test_what_would_make_a_step_fit_is_the_first_remedy_that_does(monkeypatch, enough, suggestion):
    tried = []

    def compiled(programs, say, price=0.0):
        tried.append(programs.run.model.remat)
        return {"fits": programs.run.model.remat == enough, "bytes_per_device": {"total": None}}

    monkeypatch.setattr(planning, "_compiled", compiled)
    monkeypatch.setattr(planning, "slice_devices", lambda topology, slices: jax.devices()[:8])
    monkeypatch.setattr(flops, "chip", lambda device: flops.CHIPS["v5e"])
    run = dataclasses.replace(SHARDED, model=dataclasses.replace(SHARDED.model, remat="none", scan_layers=False))
    lines = []
    report = planning.plan(run, "v5e:2x4", lines.append)
    assert not report["fits"]
    assert len(lines) == len(tried) - 1
    if suggestion:
        assert report["suggestion"] == dict(zip(("model.remat", "train.microbatches"), suggestion, strict=True))
    else:
        assert report["suggestion"] is None and tried[-1] == "full"


def test_a_refusal_of_the_compiler_is_no_fit(monkeypatch):
    programs = Programs(SHARDED, jax.devices()[:8])

    def refuse(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory. Used 20.00G of 15.75G hbm.")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    monkeypatch.setattr(flops, "chip", lambda device: flops.CHIPS["v5e"])
    report = planning._compiled(programs, lambda line: None)
    assert report["fits"] is False and report["bytes_per_device"]["total"] == 20 * 2**30
    assert "no, 4.3 GB more than the 17.2 GB per device" in planning.table(report | {"suggestion": None})
    settings = {"model.remat": report["remat"], "train.microbatches": 4}
    assert "would fit with" in (table := planning.table(report | {"suggestion": settings}))
    assert "--config.train.microbatches=4" in table and "--config.model.remat" not in table


def test_memory_of_a_step_includes_temporaries_and_counts_donated_arguments_once(monkeypatch):
    """The device holds 10,000 bytes of arguments, 1,000 of further results, 700 of temporaries and 60 of code."""
    memory = types.SimpleNamespace(
        argument_size_in_bytes=10_000,
        output_size_in_bytes=9_000,
        alias_size_in_bytes=8_000,
        temp_size_in_bytes=700,
        generated_code_size_in_bytes=60,
    )
    text = jax.jit(jax.numpy.sin).lower(1.0).compile().as_text()
    compiled = types.SimpleNamespace(memory_analysis=lambda: memory, as_text=lambda: text)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: compiled)
    programs = Programs(SHARDED, jax.devices()[:8])
    for hbm_bytes, fits in ((11_760, True), (11_759, False)):
        chip = dataclasses.replace(flops.CHIPS["v5e"], hbm_bytes=hbm_bytes)
        monkeypatch.setattr(flops, "chip", lambda device, chip=chip: chip)
        report = planning._compiled(programs, lambda line: None)
        assert (report["bytes_per_device"]["total"], report["fits"]) == (11_760, fits)


def test_shapes_alone_need_no_data_and_no_compiler(tmp_path, verb):
    output = tmp_path / "plan.json"
    flags = "--topology=none", "--config.model.scan_layers=no", f"--output={output}"
    finished = verb("plan", "--config=configs/gpt2.py:small", *flags)
    assert finished.status == 0, finished.err
    report = json.loads(output.read_text())
    assert report["parameters"] == 124_439_808
    assert "124,439,808" in finished.out and "layers unrolled" in finished.out
    assert report["bytes_per_device"] == {
        "parameters": 4 * 124_439_808,
        "optimizer": 8 * 124_439_808 + 8,
        "temporaries": None,
        "total": None,
    }
    assert report["model_flops_per_step"] == flops.per_step(_config("gpt2.py", "small").model, 512, 1024, 1024)


def _config(file, size):
    return config.from_dict(pages.load(f"configs/{file}:{size}").config())


@pytest.mark.parametrize(
    ("topology", "wraps"),
    [
        ("v5p:4x4x8", (True, True, True)),
        ("v4:2x4x4", (False, False, False)),
        ("v5e:8x16", (False, True, False)),
        ("v6e:16x16", (True, True, False)),
        ("tpu7x:4x4x12", (True, True, True)),
    ],
)
def test_slices_that_are_tori_are_known(topology, wraps):
    assert offers.wraps(topology) == wraps


@pytest.mark.parametrize(("installed", "told"), [(None, "is missing"), ("0.0.1.2", r"libtpu 0\.0\.1\.2 does not fit")])
def test_a_missing_or_wrong_compiler_is_said_with_the_version_that_jax_requires(installed, told, monkeypatch):
    def version(name):
        if name == "libtpu" and installed is None:
            raise metadata.PackageNotFoundError(name)
        return {"libtpu": installed, "jax": "0.99.1"}[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=2", 'libtpu==0.0.98.*; extra == "tpu"'])
    with pytest.raises(UserError, match=rf"{told}.*: run pip install 'libtpu==0\.0\.98\.\*', or pass"):
        planning.slice_devices("v5e:4x4")


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        ("v5e:16x32", "the nearest is v5e:16x16"),
        ("v5e:4x16", "the nearest is v5e:8x8"),
        ("v5p:8x4x4", "the nearest is v5p:4x4x8"),
        ("v5p:16x16x32", "the nearest is v5p:"),
        ("tpu7x:3x4x4", "the nearest is tpu7x:"),
        ("v9:4x4", "v5e:4x4"),
        ("v5p", "v5e:4x4"),
        ("nonsense", "v5e:4x4"),
    ],
)
def test_slices_that_google_does_not_offer_are_refused(topology, told):
    with pytest.raises(UserError) as raised:
        tpus.devices(topology)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_slices_that_google_offers_are_known():
    for offered in ("v4:2x2x1", "v5p:8x8x16", "v5p:16x16x24", "v6e:16x16", "v5e:2x4", "tpu7x:16x24x24"):
        offers.check(offered)
    assert max(map(np.prod, offers.available_slices("v5p"))) == 6144
    assert len(set(offers.available_slices("v4"))) == len(offers.available_slices("v4"))


@needs_libtpu
@pytest.mark.parametrize(("topology", "slices", "devices"), [("tpu7x:2x2x1", 1, 8), ("v5e:2x4", 2, 16)])
def test_devices_of_other_kinds_and_of_several_slices(without_tpu, topology, slices, devices):
    slice_devices = tpus.devices(topology, slices)
    assert len(slice_devices) == devices
    assert {getattr(device, "slice_index", 0) for device in slice_devices} == set(range(slices))
    chip = flops.chip(slice_devices[0].device_kind)
    assert chip is flops.CHIPS["TPU7x" if "7x" in topology else "v5e"]


def test_another_chip_is_not_taken_for_a_known_one():
    assert flops.chip("TPU v5 lite").hbm_bytes == 16 * 2**30
    assert flops.chip("cpu") is None
    assert np.isclose(flops.chip("TPU v5").flops, 459e12)


def test_windows_count_their_own_keys_alone():
    def counted(windows):
        attention = dataclasses.replace(SHARDED.model.attention, windows=windows)
        return flops.per_step(dataclasses.replace(SHARDED.model, attention=attention), 2, 20, 20)

    distance = np.abs(np.arange(20)[:, None] - np.arange(20))
    unseen = {window: (distance >= window).sum() / 2 for window in (5, 7)}  # Half of them lie after the query.
    scores_and_mix = 2 * 3 * 2 * 2 * WIDTH
    assert counted((0, 0)) == counted(()) == counted((20,))
    assert np.isclose(counted(()) - counted((0, 5)), scores_and_mix * unseen[5])
    assert np.isclose(counted(()) - counted((7, 5)), scores_and_mix * (unseen[5] + 2 * unseen[7]))
