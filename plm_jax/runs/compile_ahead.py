"""Train steps of the phases of a run; on accelerators, the next phase's step is prepared during the current phase."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from plm_jax import config
from plm_jax.common import keys
from plm_jax.common.phases import Phase
from plm_jax.data.reader import blank_batch
from plm_jax.runs.callbacks import TrainingContext
from plm_jax.runs.programs import Programs
from plm_jax.training import mesh as meshes

# Whether a step is compiled ahead (True) or only traced and lowered (False), by the platform of the devices. While XLA
# compiles for a GPU, it measures kernels on that GPU: steps of the current phase would distort these measurements and
# share the memory, and the processes of a job wait for each other's measurements. On a CPU, no step is prepared: the
# current phase needs the cores.
COMPILES = {"tpu": True, "gpu": False}


class PhaseSteps:
    """Train steps of the phases of a run.

    On a TPU, a thread compiles the step of the next phase while the current phase is trained. On a GPU, it only traces
    and lowers the step. On a CPU, no step is prepared.

    The thread only fills the caches of the function that `step` returns. Errors in the thread are ignored, because the
    first step of the phase raises them again. Python cannot end a thread that compiles, so a process that ends normally
    waits for the thread. A command that fails or is interrupted does not wait, because it ends with `os._exit`.
    """

    def __init__(self, programs: Programs):
        """Stores the programs of a run; their steps are prepared later."""
        self._programs = programs
        self._compiles = COMPILES.get(programs.first.mesh.devices.flat[0].platform)
        self._phase: Phase | None = None
        self._thread: threading.Thread | None = None
        self._train_step: Callable[..., Any] | None = None
        # JAX may drop what it has lowered or compiled if nothing refers to it.
        self._prepared: Any = None

    def step(self, phase: Phase) -> Callable[..., Any]:
        """Returns the step of a phase; if the preparation of the step has begun, waits until it is complete."""
        if self._thread is None or self._phase != phase:
            return self._programs.at(phase).phase_step(phase)
        self._thread.join()
        train_step, self._thread = self._train_step, None
        return train_step or self._programs.at(phase).phase_step(phase)

    def prepare_next(self, context: TrainingContext) -> None:
        """Begins to prepare the step of the next phase, if the run has one and the devices are not CPUs."""
        following = (phase for phase in self._programs.phases if phase.first_step >= context.phase.end_step)
        self._phase = next((phase for phase in following if phase.end_step > phase.first_step), None)
        if self._compiles is None or self._phase is None or self._phase.first_step >= context.num_steps:
            return
        self._programs.at(self._phase)  # Programs are not built by several threads.
        self._thread = threading.Thread(target=self._prepare, args=(self._phase,), name="compile ahead")
        self._thread.start()

    def _prepare(self, phase: Phase) -> None:
        self._train_step = None
        with contextlib.suppress(Exception):
            train_step: Any = self._programs.at(phase).phase_step(phase)
            self._train_step = train_step
            self._prepared = train_step.lower(*step_inputs(self._programs, phase))
            if self._compiles:
                self._prepared = self._prepared.compile()


def step_inputs(programs: Programs, phase: Phase) -> tuple[Any, ...]:
    """Returns inputs from which the step of a phase can be compiled.

    Most of the inputs are only shapes, dtypes and shardings. The key and the learning rate are arrays, but their values
    do not matter.
    """
    run, program = programs.run, programs.at(phase)

    def placed(row):
        shape = (phase.batch_size, *row.shape[1:])
        return jax.ShapeDtypeStruct(shape, row.dtype, sharding=meshes.batch_sharding(program.mesh, shape[1:]))

    blank = blank_batch(config.reader_config(config.in_phase(run, phase)), phase.length)
    batch = {name: placed(row) for name, row in blank.items()}
    frozen = [program.reference_shapes] if program.references else []
    return (
        program.state_like(phase.batch_size),
        batch,
        keys.data(run.train.seed, run.train.prng),
        np.float32(0),
        *frozen,
    )
