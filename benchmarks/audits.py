"""Audits on eight fake devices: faults that they find and name, data spikes, clean steps, and their cost.

    python benchmarks/audits.py [--trials=100] [--steps=2000] [--every=1] [--spikes=20]

A small decoder is trained on eight devices of a CPU. A fault is a relative error of 1e-4 in one column of the matrix
products of one device: in the forward pass, in the gradients of inputs or in its share of the gradients of kernels.

- Sticky faults: each device computes the fixed block of audits, one of them with a fault. Counts trials in which this
  device alone is named, and in which two computations of a batch's gradients agree, both with the fault.
- Transient faults: one of two computations of a batch's gradients has a fault, the fixed block has none. Counts trials
  that are detected, and those in which a device is named.
- Data spikes: the tokens of a batch are replaced by random ones in a real run. Counts spikes, audits of them, and lines
  that blame a device.
- Clean steps: a real run, audited every `every` steps. Counts audits and alarms.
- Cost: two computations of the gradients and a fixed block every 1,000 steps, relative to the steps: by arithmetic for
  BERT-large (32 rows of 512 tokens on eight devices), whose step counts as one computation of the gradients, and from
  the measured seconds of the small decoder.

Prints JSON.
"""

import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
import numpy as np

DEVICES, ROWS, EVERY = 8, 8, 1000
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()


class _Log:
    """Stand-in for telemetry and logger that records lines and the seconds of audits."""

    def __init__(self):
        self.lines: list[str] = []
        self.seconds: list[float] = []

    def say(self, line: str) -> None:
        """Records a line."""
        self.lines.append(line)

    def write(self, row: dict[str, Any]) -> None:
        """Ignores a row of metrics."""

    @contextlib.contextmanager
    def auditing(self, compiles: bool) -> Iterator[None]:
        """Records the seconds within it, unless they include a compilation."""
        began = time.perf_counter()
        yield
        if not compiles:
            self.seconds.append(time.perf_counter() - began)


def run(trials: int = 100, steps: int = 2000, every: int = 1, spikes: int = 20) -> dict[str, Any]:
    """Runs all parts.

    Args:
      trials: number of sticky faults of each kind, and of transient faults of each kind.
      steps: number of clean steps.
      every: number of clean steps between audits.
      spikes: number of batches with random tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = _job(folder, max(steps, 200 + 20 * spikes), every)
        faults = _faults(job, trials)
        bench.log(str(faults))
        clean, seconds = _clean(job, steps, every)
        bench.log(str(clean))
        spiky = _spikes(job, spikes)
    return {**faults, "data_spikes": spiky, "clean": clean, "cost": _cost(job, seconds)}


def _job(folder: str, steps: int, every: int) -> Any:
    """Prepares the corpus of the tests, and returns the run of a decoder over eight devices."""
    from plm_jax import config
    from plm_jax.runs import preparation, setup
    from tests.support import runs, tiny

    path = pathlib.Path(folder)
    tiny.write(path)
    train = {
        "steps": steps,
        "batch_size": ROWS,
        "audits": config.AuditsConfig(every=every),
        "incidents": config.IncidentsConfig(deviations=30.0, window=16),
    }
    settings = runs.make(path, mesh=config.MeshConfig(data=DEVICES), train=train)
    with contextlib.redirect_stdout(sys.stderr):
        preparation.prepare(settings)
    return setup.build(settings)


def _faults(job: Any, trials: int) -> dict[str, Any]:
    """Counts sticky and transient faults that are detected and named."""
    from plm_jax.runs import setup
    from plm_jax.training import audit
    from plm_jax.training import mesh as meshes
    from tests.support import faulty_devices
    from tests.support.faulty_devices import KINDS, NAME

    state, (phase,) = setup.starting_state(job, None)[0], job.programs.phases
    batches, rng = setup.global_batches(job.programs, job.reader, 0), np.random.default_rng(0)
    key, _ = job.programs.inputs(0)
    check = audit.DeviceCheck(job.program.mesh, compute=faulty_devices.block)
    none = faulty_devices.faults(DEVICES)
    sticky, transient = ({kind: {} for kind in KINDS} for _ in range(2))
    with faulty_devices.faulty_losses():
        compute = job.program.phase_gradients(phase)

        def checksums(batch, faults):
            placed = meshes.to_global({NAME: faults}, np.arange(ROWS), ROWS, job.program.mesh)
            return np.asarray(compute(state, batch | placed, key)["checksums"])

        for kind in KINDS:
            repeated, named, detected, blamed = [], [], [], []
            for _ in range(trials):
                device, batch = int(rng.integers(DEVICES)), next(batches)[0]
                faults = faulty_devices.faults(DEVICES, device, kind, column=int(rng.integers(4096)))
                faulty, again, correct = (checksums(batch, which) for which in (faults, faults, none))
                repeated.append((faulty == again).all())
                detected.append((faulty != correct).any())
                named.append(audit.count_votes(check(**{NAME: faults})) == audit.Vote(differing=(device,)))
                blamed.append(audit.count_votes(check(**{NAME: none})) != audit.Vote())
            sticky[kind] = {"trials": trials, "named": sum(named), "repeats_agree": int(sum(repeated))}
            transient[kind] = {"trials": trials, "detected": int(sum(detected)), "named": sum(blamed)}
    return {"relative_error": 1e-4, "sticky": sticky, "transient": transient}


def _train(job: Any, steps: int, change: Callable, **audits: Any) -> tuple[_Log, set[int], float]:
    """Trains with audits, whose settings are given; returns the log, the steps with incidents, and seconds per step.

    Args:
      change: function from the number of a step and its batch to the batch that is trained on.
    """
    import dataclasses

    from plm_jax import config
    from plm_jax.runs import loop, setup
    from plm_jax.runs.audits import Audit
    from plm_jax.runs.callbacks import Callback, TrainingContext

    incidents: set[int] = set()
    times, log = {}, _Log()

    class Watch(Callback):
        def after_step(self, context):
            if int(context.metrics["incident"]):
                incidents.add(context.step)
            times[context.step] = time.perf_counter()

    train = dataclasses.replace(job.run.train, audits=config.AuditsConfig(**audits))
    batches = setup.global_batches(job.programs, job.reader, 0)
    changed = ((change(step, batch), waited) for step, (batch, waited) in enumerate(batches, 1))
    context = TrainingContext(job.programs.phases[0], job.program, setup.starting_state(job, None)[0], 0, steps)
    loop.train(context, job.programs, changed, [Audit(train, job.programs, log, log), Watch()])
    return log, incidents, (times[steps] - times[2]) / (steps - 2)


def _clean(job: Any, steps: int, every: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Trains without faults; returns counts, and the seconds of a step and of an audit."""
    log, _, _ = _train(job, steps, lambda step, batch: batch, at_incidents=False, every=every)
    *_, step_seconds = _train(job, min(steps, 300), lambda step, batch: batch, at_incidents=False)
    counts = {"steps": steps, "audits": steps // every, "alarms": len(log.lines)}
    return counts, {"step": step_seconds, "audit": float(np.median(log.seconds))}


def _spikes(job: Any, count: int) -> dict[str, Any]:
    """Trains with batches of random tokens every 20 steps after the first 200."""
    from plm_jax.training import mesh as meshes

    rng, planted = np.random.default_rng(1), {200 + 20 * number for number in range(count)}

    def change(step, batch):
        if step not in planted:
            return batch
        shapes = {name: batch[name].shape for name in ("tokens", "targets")}
        rows = {name: rng.integers(0, 250, shape).astype(np.int32) for name, shape in shapes.items()}
        return batch | meshes.to_global(rows, np.arange(ROWS), ROWS, job.program.mesh)

    log, incidents, _ = _train(job, max(planted) + 10, change)
    return {
        "planted": count,
        "spikes": len(planted & incidents),
        "audits": len(log.lines),
        "not_reproduced": sum("the data are likely the cause" in line for line in log.lines),
        "devices_blamed": sum("device " in line.replace("all devices ", "") for line in log.lines),
        "line": log.lines[0] if log.lines else "",
    }


def _cost(job: Any, seconds: dict[str, float]) -> dict[str, Any]:
    """Returns the share of an audit every 1,000 steps, by arithmetic and as measured here."""
    from plm_jax.runs import phase_costs
    from plm_jax.training import audit

    shapes = {name: array.shape for name, array in audit.block_inputs(np.float32, "tpu").items()}
    tokens, width = shapes["x"]
    kernels = sum(int(np.prod(shape)) for name, shape in shapes.items() if name not in ("x", "d_y"))
    block = 3 * (2 * tokens * kernels + 4 * tokens * tokens * width)
    bert_large = 6 * 334_000_000 * 32 * 512 / DEVICES
    return {
        "every": EVERY,
        "gradients_twice": 2 / EVERY,
        "block_in_steps_of_bert_large": block / bert_large,
        "share_by_arithmetic": (2 + block / bert_large) / EVERY,
        "tiny_model_flops_per_step": phase_costs.model_flops(job.run, job.programs.phases[0]),
        "measured_step_seconds": seconds["step"],
        "measured_audit_seconds": seconds["audit"],
        "measured_share": seconds["audit"] / seconds["step"] / EVERY,
    }


if __name__ == "__main__":
    bench.main(run)
