"""What a run says while it runs: metrics.jsonl, TensorBoard events, a progress bar."""

import json
import os
import sys

from tqdm import tqdm

from plm_jax.errors import UserError


class Telemetry:
    """Writes the rows of one run; use as a context manager. Only the first process should have one."""

    def __init__(self, workdir: str, first_step: int, steps: int):
        """Opens the files; rows after `first_step`, left by a run that was cut off, are dropped."""
        self._path = os.path.join(workdir, "metrics.jsonl")
        _drop_rows_after(self._path, first_step)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 -- closed in __exit__
        self._events = _event_writer(workdir, purge_step=first_step + 1 if first_step else None)
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=steps,
            initial=first_step,
            desc="pretrain",
            unit="step",
            mininterval=0.2 if terminal else 10,
            dynamic_ncols=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sync()
        self._file.close()
        self._events.close()
        self._bar.close()

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Moves the bar."""
        self._bar.set_postfix_str(f"loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
        self._bar.update(step - self._bar.n)

    def write(self, row: dict) -> None:
        """Adds one row; numbers also go to TensorBoard."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in row.items():
            if isinstance(value, float):
                self._events.add_scalar(name, value, row["step"])

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def sync(self) -> None:
        """Returns once all rows are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())


def _event_writer(*args, **kwargs):
    """A tensorboardX SummaryWriter; left alone, its import takes seconds to import torch where that is installed."""
    hidden = sys.modules.setdefault("torch", None) is None
    from tensorboardX import SummaryWriter

    if hidden:
        del sys.modules["torch"]
    return SummaryWriter(*args, **kwargs)


def read_rows(path: str) -> list[dict]:
    """The whole rows of a metrics file; a last line that was cut off is left out.

    Raises:
      UserError: another line is damaged.
    """
    rows = []
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):
                    try:
                        rows.append(json.loads(line))
                    except ValueError as error:
                        raise UserError(f"{path}:{number} is damaged ({error}): remove the line") from error
    return rows


def _drop_rows_after(path: str, step: int) -> None:
    if os.path.exists(path):
        rows = [row for row in read_rows(path) if row["step"] <= step]
        temporary = path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
