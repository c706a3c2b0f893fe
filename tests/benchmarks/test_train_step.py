"""The training-step benchmark runs to its end at tiny sizes, on the bare stack, and goes on when a contestant fails."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import time

import jax
import pytest

from plm_jax.models import registry
from tests.support import xla

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = ("tensorflow", "seqio", "grain", "orbax", "array_record", "tensorboardX")


def environment(**changed: str) -> dict[str, str]:
    """One CPU device, one thread, quick compilation."""
    fixed = {
        "XLA_FLAGS": xla.flags(devices=1),
        "OMP_NUM_THREADS": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return os.environ | fixed | changed


def bench(*flags: str, **changed: str) -> dict:
    """Runs `train_step.py`; returns its result."""
    command = [sys.executable, str(ROOT / "benchmarks" / "train_step.py"), "--tiny", *flags]
    done = subprocess.run(command, env=environment(**changed), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def case(config: str, targets: int):
    import contestants

    return contestants.Case(config, rows=2, length=16, targets=targets, layers=2, device="gpu", narrow=True)


@pytest.mark.parametrize("has_peer", [True, False])
def test_a_gpu_run_ends_on_the_bare_stack_with_its_peer_or_says_what_is_missing(has_peer, tmp_path):
    if has_peer:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    for name in HEAVY if has_peer else (*HEAVY, "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is no part of the bare stack')")
    flags = ("--device=gpu", "--model=t5_1.1_large", "--contestants", "plm_jax_scan", "torch_eager", "--commit=abc")
    result = bench(*flags, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert result["commit"] == "abc" and "jax" in result["versions"]
    model = result["models"]["t5_1.1_large"]
    ours, peer = model["contestants"]["plm_jax_scan"], model["contestants"]["torch_eager"]
    assert ours["last_loss"] < ours["first_loss"]
    tokens = ours["rows"] * (model["length"] + model["decoder_length"])
    assert ours["tokens_per_second"] == pytest.approx(tokens / ours["step_seconds"])
    if has_peer:
        assert "error" not in peer, peer
        assert peer["parameters"] == ours["parameters"] and peer["last_loss"] < peer["first_loss"]
        assert model["speed_ratio"] == {"torch_eager": ours["tokens_per_second"] / peer["tokens_per_second"]}
    else:
        assert "ModuleNotFoundError" in peer["error"] and model["speed_ratio"] == {}


OTHER = """
import os, sys
assert sys.argv[-1] == "--contestant=plm_jax" and not any(flag.startswith("--before") for flag in sys.argv)
assert os.environ["PYTHONPATH"].startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
for _ in sys.stdin:
    print(0.5, flush=True)
"""


def test_a_cpu_run_takes_contestants_in_turn(tmp_path):
    """Another checkout is a script here that reports half a second for each step."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/train_step.py").write_text(OTHER)
    result = bench("--model=bert_base", "--before", str(tmp_path), "--peer=none")
    ours = result["all_seconds"]["plm_jax"]
    assert len(ours) == 2 and result["all_seconds"]["plm_jax_before"] == [0.5, 0.5]
    assert result["ratio"] == {"plm_jax_before": pytest.approx(sum(ours) / 2 / 0.5)}


@pytest.mark.parametrize(
    ("config", "targets"),
    [
        *(("gpt2.py:small", 16), ("bert.py:large", 3), ("t5.py:base", 4)),
        *(("llama.py:tiny-1.1b", 16), ("albert.py:xlarge", 3), ("bart.py:large", 16)),
    ],
)
def test_the_peer_is_the_same_model(config, targets):
    """The peer has the same number of parameters; its loss starts at that of a uniform guess and falls."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import contestants
    import on_gpu

    torch.set_num_threads(1)
    torch.manual_seed(0)
    narrow = case(config, targets)
    peer = on_gpu.measure(contestants.make("torch_eager", narrow), rounds=1, steps=8)
    assert peer["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(registry.shapes(narrow.run.model)))
    assert peer["first_loss"] == pytest.approx(math.log(512), rel=0.2)
    assert peer["last_loss"] < peer["first_loss"]


def test_mfu_is_counted_flops_over_the_peak():
    import on_gpu

    result = on_gpu.speed(case("gpt2.py:small", 16), {"device": "NVIDIA H100 80GB HBM3", "step_seconds": 0.5})
    # Forward × 3, 2 operations a product; attention to half of 16 positions; the head on all of them.
    block = 4 * 64 * 64 + 2 * 64 * 128 + 2 * 8 * 64
    assert result["model_flops_per_step"] == 6 * 32 * (2 * block + 64 * 512)
    assert result["mfu"] == pytest.approx(result["model_flops_per_step"] / 0.5 / 989e12)
    assert on_gpu.speed(case("gpt2.py:small", 16), {"device": "cpu", "step_seconds": 0.5})["mfu"] is None


def test_out_of_memory_halves_the_rows_and_other_errors_stay(monkeypatch):
    import on_gpu

    asked = []

    def ask(arguments, model, rows, name, seconds):
        asked.append(rows)
        return {"error": "OutOfMemoryError: CUDA out of memory."} if rows > 2 else {"error": "ValueError: odd"}

    monkeypatch.setattr(on_gpu, "ask", ask)
    wide = dataclasses.replace(case("gpt2.py:small", 16), rows=8)
    result = on_gpu.measure_apart(argparse.Namespace(seconds=9.0), "gpt2_small", wide, "plm_jax", time.monotonic() + 9)
    assert asked == [8, 4, 2] and result == {"rows": 2, "error": "ValueError: odd"}


def test_only_failed_measurements_are_repeated(tmp_path, monkeypatch):
    import on_gpu

    asked = []

    def measure_apart(arguments, model, case, name, deadline):
        asked.append((model, name))
        failed = {"error": "odd"} if len(asked) == 2 else {"tokens_per_second": 100.0 * len(asked)}
        return {"rows": 2} | failed

    monkeypatch.setattr(on_gpu, "measure_apart", measure_apart)
    monkeypatch.setattr(on_gpu.machine, "gpu", lambda: None)
    cases = {"bert_large": case("bert.py:large", 3), "gpt2_small": case("gpt2.py:small", 16)}
    arguments = argparse.Namespace(
        results=str(tmp_path / "found.json"), minutes=1.0, contestants=on_gpu.ORDER[:3], peer="torch", commit="abc"
    )
    on_gpu.compare(arguments, cases)
    pairs = [(model, name) for model in cases for name in on_gpu.ORDER[:2]]
    assert asked == [*pairs, *((model, "plm_jax") for model in cases)]
    result = on_gpu.compare(arguments, {"bert_large": cases["bert_large"]})
    assert asked[6:] == [("bert_large", "torch_compile")]
    assert result == json.loads((tmp_path / "found.json").read_text())
    assert result["models"]["gpt2_small"]["contestants"]["plm_jax"] == {"rows": 2, "tokens_per_second": 600.0}
    assert result["models"]["bert_large"]["speed_ratio"] == {"torch_compile": 500 / 700}
    assert result["models"]["bert_large"]["goals"]["sequences_per_second"] == 530


def test_no_measurement_starts_after_the_deadline(monkeypatch):
    import on_gpu

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("begun"))
    arguments = argparse.Namespace(minutes=9.0)
    assert "9 minutes" in on_gpu.ask(arguments, "gpt2_small", 2, "plm_jax", -1.0)["error"]
