"""Losses of five steps of every family without dropout, to compare two commits.

    python benchmarks/step_losses.py > before.json                       # in a checkout of the first commit
    python benchmarks/step_losses.py --reference=before.json > after.json  # and in one of the second commit

The models have a few layers of width 32, and both commits start from the same parameters. Each family trains with the
attention kernel of TPUs, interpreted, and with XLA's attention, in float32 and in bfloat16. `largest` has the largest
relative difference of the losses from those of the reference.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import bench

from tests.support import xla

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.flags(devices=1), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
STEPS = 5
# Limits of relative differences of losses, by precision.
LIMITS = {"float32": 1e-5, "bfloat16": 2e-3}


def run(
    families: tuple = ("all",),
    kernels: tuple = ("flash", "xla"),
    precisions: tuple = tuple(LIMITS),
    reference: str = "",
    tile: int = 0,
) -> dict[str, Any]:
    """Trains the families.

    Args:
      families: names of families, as in tests/training/test_families_over_meshes.py.
      kernels: attention kernels; ELMo has no attention.
      precisions: dtypes of activations.
      reference: output of this script at another commit.
      tile: number of queries and of keys in a tile of the interpreted kernel; 0: as on TPUs, at least 128. The kernels
        of DeBERTa and XLNet shift each row of a tile, which takes long to compile when interpreted: use 16 for them.
    """
    from plm_jax.models.kernels import tiles
    from tests.training.test_families_over_meshes import FAMILIES

    if tile:
        tiles.choose = lambda groups, *_, **__: tiles.Tile(tile, tile, groups)

    names = [name for name in FAMILIES if "all" in families or name in families]
    expected = json.loads(pathlib.Path(reference).read_text())["losses"] if reference else {}
    losses: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        _prepare(pathlib.Path(folder), [FAMILIES[name][0] for name in names])
        for name in names:
            losses[name] = _losses(pathlib.Path(folder), FAMILIES[name][0], kernels, precisions)
            bench.log(f"{name}: {_differences({name: losses[name]}, expected) or losses[name]}")
    differences = _differences(losses, expected)
    within = {precision: difference <= LIMITS[precision] for precision, difference in differences.items()}
    return {"losses": losses, "largest": differences, "within_limits": within, "limits": LIMITS}


def _prepare(folder: pathlib.Path, settings: list[Any]) -> None:
    """Writes the corpus of the tests and its caches."""
    from plm_jax.runs import preparation
    from tests.support import runs, tiny

    tiny.write(folder)
    caches = {run.data.cache_dir: run for run in settings}
    for run in caches.values():
        with contextlib.redirect_stdout(sys.stderr):
            preparation.prepare(runs.make(folder, run))


def _losses(folder: pathlib.Path, run: Any, kernels: tuple, precisions: tuple) -> dict[str, list[float]]:
    """Trains a family with each kernel and precision; returns the losses by their names."""
    from plm_jax import config
    from tests.support import runs
    from tests.training.test_families_over_meshes import drawn

    losses = {}
    for kernel in kernels if hasattr(run.model, "attention_kernel") else ("none",):
        speed = {"remat": "dots"} if kernel == "none" else {"remat": "dots", "attention_kernel": kernel}
        model = dataclasses.replace(run.model, **speed)
        for precision in precisions:
            changed = runs.make(
                *(folder, run, 0.0),
                model=model,
                mesh=config.MeshConfig(),
                train={"steps": STEPS},
                precision={"compute": precision},
            )
            losses[f"{kernel}, {precision}"] = runs.steps(changed, 1, drawn(changed.model))[0]
    return losses


def _differences(losses: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Returns the largest relative difference by precision; none without a reference."""
    largest: dict[str, float] = {}
    for name, variants in losses.items():
        for variant, values in variants.items() if name in expected else ():
            precision = variant.split(", ")[1]
            pairs = zip(values, expected[name][variant], strict=True)
            difference = max(abs(value - other) / abs(other) for value, other in pairs)
            largest[precision] = max(largest.get(precision, 0.0), difference)
    return largest


if __name__ == "__main__":
    bench.main(run)
