"""The estimate of a step's time, by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.planning import estimate as estimates
from plm_jax.planning import hlo, kernels
from plm_jax.training import flops

CHIP = flops.Chip(flops=100.0, hbm_bytes=1, hbm_bandwidth=10.0, network_bandwidth=1.0, slice_bandwidth=0.1)
WORK = estimates.Work(product_flops=100, hbm_bytes=5, overlapped=0.5, synchronous=0.0)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(flops.CHIPS, "toy", CHIP)


def estimate(**changed):
    return estimates.estimate("toy", dataclasses.replace(WORK, **changed))


def test_the_estimate_names_what_binds():
    assert estimate() == {
        "seconds": {"optimistic": 1.0},
        "bound": "compute",
        "seconds_alone": {"compute": 1.0, "memory": 0.5, "network": 0.5, "synchronous": 0.0},
    }
    assert estimate(hbm_bytes=20)["bound"] == "memory"
    assert estimate(overlapped=4)["bound"] == "network"
    assert estimate(overlapped=4)["seconds"]["optimistic"] == 4.0
    assert estimate(between_slices=0.3)["bound"] == "between slices"


def test_what_is_synchronous_is_hidden_by_nothing():
    estimated = estimate(synchronous=1.5)
    assert (estimated["seconds"], estimated["bound"]) == ({"optimistic": 2.5}, "synchronous")
    assert estimate(overlapped=2.0)["seconds"] == {"optimistic": 2.0}


def test_kernels_take_longer_than_their_products():
    estimated = estimate(product_flops=75, kernel_flops={"another": 15})["seconds_alone"]["compute"]
    assert estimated == (75 + 15 / kernels.OTHER_KERNELS) / 100


# Bundles for 1,024 scores as `benchmarks/kernel_bundles.py` counted them, with so many FLOPs a cycle.
@pytest.mark.parametrize(
    ("kind", "cycle", "name", "head_dim", "drops", "bundles"),
    [
        ("TPU v5 lite", 131072, "flash_forward", 64, False, 4.45),
        ("TPU v5 lite", 131072, "flash_forward", 256, False, 8.39),
        ("TPU v5 lite", 131072, "flash_forward", 64, True, 5.86),
        ("TPU v5 lite", 131072, "flash_backward", 64, True, 8.40),
        ("TPU v5", 131072, "flash_backward", 128, False, 10.55),
        ("TPU v5", 131072, "flash_backward", 256, False, 19.94),
        ("TPU v6 lite", 524288, "flash_forward", 128, False, 4.07),
        ("TPU v6 lite", 524288, "flash_backward", 64, True, 6.03),
    ],
)
def test_kernels_take_the_time_of_the_compilers_schedule(kind, cycle, name, head_dim, drops, bundles):
    products = 1024 * 2 * head_dim * {"flash_forward": 2, "flash_backward": 5}[name]
    work = dataclasses.replace(WORK, kernel_flops={name: products}, kernel_scores={name: 1024}, drops=drops)
    assert np.isclose(estimates.kernel_flops_at_peak(kind, work) / cycle, bundles, rtol=0.1)
    assert estimates.kernel_flops_at_peak(kind, work) >= products


def test_bytes_between_slices_go_over_the_slower_network():
    text = """
ENTRY %main (a: f32[4]) -> f32[8] {
  %a = f32[4] parameter(0)
  %near = f32[8] all-gather(%a), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %far = f32[8] all-gather(%a), channel_id=2, replica_groups={{0,2},{1,3}}, dimensions={0}
}
"""
    jaxpr = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((4, 4))).jaxpr
    work = estimates.measure_work(jaxpr, hlo.HloModule(text), [0, 0, 1, 1])
    assert (work.synchronous, work.overlapped, work.between_slices) == (16, 0, 16)
    assert work.product_flops == 2 * 4**3 / 4
    assert estimates.measure_work(jaxpr, hlo.HloModule(text), [0, 0, 0, 0]).between_slices == 0


def test_a_token_costs_its_share_of_the_chips_hours():
    assert estimates.dollars_per_token(seconds=3600, chips=8, tokens=1000, price=2.5) == 8 * 2.5 / 1000
