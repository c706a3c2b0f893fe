"""A page about runs: one HTML file that loads nothing.

A run may be anyone's: the page shows its text escaped, and only the page's own script runs.
"""

import os
from collections.abc import Sequence

from plm_jax.common import storage
from plm_jax.experiments import report_page, run_logs


def write(workdirs: Sequence[str], output: str, png: str | None = None) -> None:
    """Writes a page about runs to `output`, and pictures of them, TITLE.png, to the folder `png`.

    Args:
      workdirs: run directories; the folder of a sweep, or of several runs, stands for these.

    Raises:
      UserError: one is neither, or damaged.
    """
    if png is not None:
        from plm_jax.experiments import report_pictures  # Fails before anything is read if its extra is missing.
    runs, sweeps = run_logs.gather(workdirs)
    storage.write(output, report_page.page(runs, sweeps).encode("utf-8", "backslashreplace"))
    if png is not None:
        for title, pixels in report_pictures.pictures(runs):
            storage.write(os.path.join(png, f"{title}.png"), pixels)
