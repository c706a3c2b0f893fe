"""Writers of run directories that a report can read, without training."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from plm_jax import config
from tests.support import tiny


def rows(number: int, seed: int = 0, every: int = 1) -> list[dict[str, Any]]:
    """Returns rows of a metrics.jsonl with a decreasing loss, a spike in the middle and ten validations."""
    metrics = []
    for i in range(1, number + 1):
        row = {"step": i * every, "train/loss": 8 / i**0.5 + 0.01 * seed + 0.001 * (i * 7919 % 13)}
        row |= {"train/accuracy": 1 - 1 / i, "train/grad_norm": 50.0 if i == number // 2 else 1 + i % 3}
        row |= {"train/learning_rate": 1e-3 / i, "train/step_seconds": 0.5, "train/data_wait_seconds": 0.05}
        row |= {"train/tokens_per_second": 1e4 + i % 7, "train/mfu": 0.4, "train/batch_digest": "0123456789abcdef"}
        if i % max(1, number // 10) == 0:
            row |= {"validation/loss": row["train/loss"] + 0.1, "validation/a/loss": 1.0, "validation/b/loss": 2.0}
        metrics.append(row)
    return metrics


def write(
    folder: pathlib.Path,
    metrics: Sequence[dict[str, Any]] = (),
    run: config.Run = tiny.PLAIN,
    evaluation: Sequence[dict[str, Any]] = (),
    samples: Sequence[dict[str, Any]] = (),
    history: Sequence[dict[str, Any]] = (),
) -> str:
    """Writes a run directory. Returns its path."""
    folder.mkdir(parents=True)
    described = {"config": config.to_dict(run), "history": list(history)}
    (folder / "config.json").write_text(json.dumps(described))
    for name, lines in (("metrics", metrics), ("evaluation", evaluation), ("samples", samples)):
        if lines:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)
