"""Traces of chosen steps by `jax.profiler`, for TensorBoard and Perfetto."""

import os
import tempfile
from collections.abc import Sequence

import jax
from typing_extensions import override

from plm_jax.common import storage
from plm_jax.runs.callbacks import Callback, TrainingContext

FOLDER = "profile"


class Profiler(Callback):
    """Callback that writes traces of the steps in `train.profile_steps` to `profile` in the run directory.

    Consecutive steps share a trace.
    """

    def __init__(self, steps: Sequence[int], workdir: str):
        """Prepares to trace these steps, counted from 1."""
        self._steps = set(steps)
        self._target, self._local = os.path.join(workdir, FOLDER), None

    @override
    def before_step(self, context: TrainingContext) -> None:
        """Begins a trace if the step is to be traced and no trace is running."""
        if context.step + 1 in self._steps and self._local is None:
            # The profiler writes to no buckets except Google's.
            self._local = tempfile.mkdtemp() if storage.is_remote(self._target) else self._target
            jax.profiler.start_trace(self._local)

    @override
    def after_step(self, context: TrainingContext) -> None:
        """Ends the trace when the step is finished, unless the next step is also traced."""
        if self._local is None or (context.step + 1 in self._steps and not context.is_last_step):
            return
        jax.block_until_ready(context.metrics)
        jax.profiler.stop_trace()
        if self._local != self._target:
            for folder, _, names in os.walk(self._local):
                storage.upload(folder, names, os.path.join(self._target, os.path.relpath(folder, self._local)))
        self._local = None
