"""Traces of `jax.profiler` of chosen steps, for TensorBoard and Perfetto."""

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import jax

from plm_jax import config
from plm_jax.common import storage

FOLDER = "profile"


class Profiler:
    """Traces the steps of `train.profile_steps` into `W/profile`, those in a row together, every process its own."""

    def __init__(self, run: config.Run, workdir: str):
        self._steps, self._last = set(run.train.profile_steps), run.train.steps
        self._target, self._local = os.path.join(workdir, FOLDER), None

    def before(self, step: int) -> None:
        """Begins a trace if the step is to be traced and the one before was not."""
        if step in self._steps and self._local is None:
            # What traces are written by reaches no buckets but Google's.
            self._local = tempfile.mkdtemp() if storage.is_remote(self._target) else self._target
            jax.profiler.start_trace(self._local)

    def after(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Ends the trace, once the step is done, unless the next one is to be traced too."""
        if self._local is None or (step + 1 in self._steps and step < self._last):
            return
        jax.block_until_ready(metrics)
        jax.profiler.stop_trace()
        if self._local != self._target:
            for folder, _, names in os.walk(self._local):
                storage.upload(folder, names, os.path.join(self._target, os.path.relpath(folder, self._local)))
        self._local = None
