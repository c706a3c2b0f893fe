"""Report of runs and sweeps: one self-contained HTML file.

Runs are untrusted: the report escapes their text and executes only its own script.
"""

import os
from collections.abc import Sequence

from plm_jax.common import storage
from plm_jax.experiments import report_page, run_logs


def write(workdirs: Sequence[str], output: str, png: str | None = None) -> None:
    """Writes a report of runs.

    Args:
      workdirs: run directories, or folders of sweeps or of several runs.
      output: path of the HTML file.
      png: folder for plots, which are named TITLE.png; None for no plots.

    Raises:
      UserError: a folder contains neither runs nor a sweep, a folder is damaged, no run has started, or the runs log
        too many metrics.
    """
    if png is not None:
        from plm_jax.experiments import report_pictures  # Raises before runs are read if the extra is missing.
    runs, sweeps = run_logs.gather(workdirs)
    storage.write(output, report_page.page(runs, sweeps).encode("utf-8", "backslashreplace"))
    if png is not None:
        for title, pixels in report_pictures.pictures(runs):
            storage.write(os.path.join(png, f"{title}.png"), pixels)
