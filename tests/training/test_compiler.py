"""The options that XLA is given: a preset by device, and the user's own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.runs.programs import Programs
from plm_jax.training import compiler
from tests.support.tiny import PLAIN


class Device:
    def __init__(self, kind):
        self.device_kind = kind


@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        ("TPU v5 lite", "tpu"),
        ("TPU v6 lite", "tpu"),
        ("TPU v4", "tpu_overlap"),
        ("TPU v5", "tpu_overlap"),
        ("NVIDIA H100 80GB HBM3", "cuda"),
        ("cpu", "none"),
    ],
)
def test_each_kind_of_device_has_a_preset(kind, preset):
    assert compiler.preset_of(kind) == preset


class FakeMesh:
    """Mesh of devices of one kind."""

    def __init__(self, kind):
        self.devices = np.array([Device(kind)] * 16)


@pytest.mark.parametrize(
    ("kind", "rows", "has_rings"),
    [
        ("TPU v5 lite", 64, False),
        ("TPU v5 lite", 127, False),
        ("TPU v5 lite", 128, True),
        ("TPU v5 lite", None, True),
        ("TPU v6 lite", 128, False),
        ("TPU v6 lite", 256, True),
        ("TPU v5", 64, True),
    ],
)
def test_rings_are_off_where_shards_do_not_fill_a_matrix_unit(kind, rows, has_rings):
    ring_option = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
    options = compiler.options(FakeMesh(kind), shard_rows=lambda: rows)
    assert (ring_option not in options) == has_rings
    assert ring_option not in compiler.options(FakeMesh(kind), "tpu", shard_rows=lambda: rows)
    assert compiler.options(FakeMesh(kind), "auto", {ring_option: "0"}, lambda: rows)[ring_option] == "0"


def test_options_of_presets_are_unique_and_described():
    for options in compiler.PRESETS.values():
        assert len({option.name for option in options}) == len(options)
        assert all(option.effect for option in options)


def with_mesh(**fields):
    return dataclasses.replace(PLAIN, mesh=config.MeshConfig(**fields))


def test_user_options_override_presets():
    own = {"xla_tpu_dot_dot_fusion": "true", "xla_other": "1"}
    found = Programs(with_mesh(compiler_preset="tpu", compiler_options=own), jax.devices()[:1]).first.compiler_options
    assert found["xla_tpu_nested_dot_fusion"] == "false"
    assert {name: found[name] for name in own} == own


def test_unknown_presets_and_options_are_rejected():
    with pytest.raises(UserError, match="did you mean 'tpu_overlap'"):
        Programs(with_mesh(compiler_preset="tpu_overlaps"), jax.devices()[:1])
    programs = Programs(with_mesh(compiler_options={"xla_no_such": "1"}), jax.devices()[:1])
    with pytest.raises(UserError, match="xla_no_such"):
        programs.first.new_state(0)


def test_inference_is_compiled_once_with_the_options_of_cpus(monkeypatch):
    traced = []

    @functools.partial(compiler.jit_inference, static_argnames="power")
    def total(x, power):
        traced.append(x.shape)
        return (x**power).sum()

    assert [float(total(jnp.arange(n), power=2)) for n in (4, 4, 3)] == [14.0, 14.0, 5.0]
    assert traced == [(4,), (3,)]
    monkeypatch.setattr(compiler, "_CPU_INFERENCE", {"xla_cpu_no_such_option": "1"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_no_such_option"):
        compiler.jit_inference(jnp.sum)(jnp.arange(5))
