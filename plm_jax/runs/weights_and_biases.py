"""Metrics in Weights & Biases, in addition to the files of the run directory; failures do not end the run."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from plm_jax import config
from plm_jax.common import extras, storage
from plm_jax.common.errors import one_line


class WandbWriter:
    """Writer of rows of metrics to the Weights & Biases project `train.wandb_project`.

    At the first failure, it reports the reason and stops. `WANDB_MODE=offline` keeps every row on this machine.
    """

    def __init__(self, run: config.Run, workdir: str, report: Callable[[str], None]):
        self._report = report
        self._wandb_run: Any = None
        self._try(self._begin, run, workdir)

    def write(self, row: dict[str, Any]) -> None:
        """Sends a row of metrics."""
        if self._wandb_run:
            numbers = {name: value for name, value in row.items() if name != "step"}
            self._try(self._wandb_run.log, numbers, step=row["step"])

    def close(self) -> None:
        """Sends the remaining rows."""
        if self._wandb_run:
            self._try(self._wandb_run.finish)

    def _begin(self, run: config.Run, workdir: str) -> None:
        import wandb  # With the extra [wandb].

        name = os.path.basename(storage.absolute(workdir).rstrip("/"))
        self._wandb_run = wandb.init(
            project=run.train.wandb_project,
            name=name,
            dir=tempfile.gettempdir() if storage.is_remote(workdir) else workdir,
            config=config.to_dict(run),
            resume="auto",
            # The output of a run stays on its console.
            settings=wandb.Settings(console="off", silent=True),
        )

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except ModuleNotFoundError as error:
            self._fail(f"{error.name} is not installed: {extras.fix('wandb')}")
        except Exception as error:  # The service may raise any error.
            self._fail(one_line(error) or type(error).__name__)

    def _fail(self, reason: str) -> None:
        self._wandb_run = None
        self._report(f"Weights & Biases receives no more metrics ({reason}); metrics.jsonl has all of them")
