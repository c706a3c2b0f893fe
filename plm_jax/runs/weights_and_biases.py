"""Metrics to Weights & Biases, besides the files of the run directory; what goes wrong there ends no run."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import one_line


class Sink:
    """A run of `train.wandb_project`; where none is named nothing is imported, and nothing is sent.

    At the first thing that fails it says so, and stops. `WANDB_MODE=offline` keeps all on this machine.
    """

    def __init__(self, run: config.Run, workdir: str, say: Callable[[str], None]):
        self._say, self._run = say, None
        if run.train.wandb_project:
            self._try(self._begin, run, workdir)

    def write(self, row: dict[str, Any]) -> None:
        """Sends a row of metrics."""
        if self._run:
            numbers = {name: value for name, value in row.items() if name != "step"}
            self._try(self._run.log, numbers, step=row["step"])

    def close(self) -> None:
        """Sends what is left."""
        if self._run:
            self._try(self._run.finish)

    def _begin(self, run: config.Run, workdir: str) -> None:
        import wandb  # With the extra [wandb].

        name = os.path.basename(storage.absolute(workdir).rstrip("/"))
        self._run = wandb.init(
            project=run.train.wandb_project,
            name=name,
            dir=tempfile.gettempdir() if storage.is_remote(workdir) else workdir,
            config=config.to_dict(run),
            resume="auto",
            # What a run prints stays where it is printed.
            settings=wandb.Settings(console="off", silent=True),
        )

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except ModuleNotFoundError as error:
            self._fail(f"{error.name} is not installed: pip install 'plm_jax[wandb]'")
        except Exception as error:  # Of a service, anything.
            self._fail(one_line(error) or type(error).__name__)

    def _fail(self, why: str) -> None:
        self._run = None
        self._say(f"Weights & Biases gets no more metrics ({why}); metrics.jsonl has them all")
