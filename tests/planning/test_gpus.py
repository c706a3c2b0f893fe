"""Plans for NVIDIA GPUs that are not there."""

import dataclasses
import importlib.util
import types

import numpy as np
import pytest
from jax.sharding import Mesh

from plm_jax.common.errors import UserError
from plm_jax.planning import gpus
from plm_jax.planning import plan as planning
from plm_jax.training import flops
from tests.planning.test_plan import wide

NO_COMPILER = importlib.util.find_spec("jax_cuda13_plugin") is None


@pytest.mark.parametrize("topology", ["gpu:h100", "gpu:b300:8", "gpu:h100:0", "gpu:h100:12", "gpu:h100:4x4"])
def test_invalid_gpu_topology_is_rejected(topology):
    with pytest.raises(UserError, match=r"pass gpu:KIND:COUNT, such as gpu:h100:8, with KIND h100"):
        planning.slice_devices(topology)


def test_without_the_compiler_it_says_what_brings_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[gpu-plan\]'"):
        planning.slice_devices("gpu:h100:8")


@pytest.mark.parametrize(
    ("environment", "share"),
    [({}, 0.75), ({"XLA_CLIENT_MEM_FRACTION": "0.9"}, 0.9), ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 0.5)],
)
def test_a_step_fits_what_jax_takes_of_a_gpu(monkeypatch, environment, share):
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    h100 = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100 80GB HBM3")
    assert planning._chip([h100]).hbm_bytes == int(80e9 * share)
    v5e = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    assert planning._chip([v5e]) == flops.CHIPS["v5e"]


def test_invalid_memory_fraction_is_rejected(monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(UserError, match=r"XLA_CLIENT_MEM_FRACTION=most: set the share"):
        gpus.memory_share()


@pytest.mark.skipif(NO_COMPILER, reason="needs jax's plugin for CUDA")
def test_hosts_have_eight_gpus_and_plans_know_which_are_in_one():
    assert [len(gpus.devices(f"gpu:h100:{count}")) for count in (1, 4, 8)] == [1, 4, 8]
    sixteen = gpus.devices("gpu:h100:16")
    assert planning._slices(Mesh(np.array(sixteen), ("fsdp",))) == [0] * 8 + [1] * 8
    assert flops.chip(sixteen[0].device_kind) == flops.CHIPS["H100"]


@pytest.mark.skipif(NO_COMPILER, reason="needs jax's plugin for CUDA")
def test_a_step_compiled_for_gpus_is_counted():
    """Every layer's weights are gathered once in the forward pass and once in the backward pass."""
    run = wide(256, 8)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, attention_kernel="xla"))
    report = planning.plan(run, "gpu:h100:8")
    matrices = 2 * (3 * (4 * 256 * 256 + 2 * 256 * 1024))
    gathered = report["collectives"]["all-gather"]
    assert 2 * matrices * 7 / 8 <= gathered["bytes"] <= 2.5 * matrices * 7 / 8
    assert gathered["asynchronous"] == gathered["bytes"]
    assert report["fits"] and 0 < report["estimate"]["seconds"]["optimistic"] < 1
    assert "cuDNN" in report["unasked"] and "cuDNN" in planning.table(report)
