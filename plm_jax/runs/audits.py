"""Callbacks that check a run for silent data corruption: audits of the devices, and a comparison of replicas."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from typing_extensions import override

from plm_jax import config
from plm_jax.common.errors import UserError, one_line
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.runs.metrics_logger import MetricsLogger
from plm_jax.runs.programs import Programs
from plm_jax.runs.telemetry import Telemetry
from plm_jax.training import audit, compiler, spikes
from plm_jax.training.audit import DeviceCheck, ReplicaCheck, Vote


class Audit(Callback):
    """Callback that checks the devices every `audits.every` steps and, with `audits.at_incidents`, after incidents.

    It does not change the state. An incident is not audited if the last audit was fewer than `incidents.window` steps
    earlier. An incident is noticed only after the next step was dispatched, or at the end of the phase. The audit then
    computes the gradients of the incident's batch at the current parameters.
    """

    def __init__(
        self, settings: config.TrainConfig, programs: Programs, logger: MetricsLogger, telemetry: Telemetry | None
    ):
        """Prepares to audit.

        Args:
          logger: accounts for the time of audits.
          telemetry: receives reports; None in every process except the first.
        """
        self._settings, self._programs = settings, programs
        self._logger, self._telemetry = logger, telemetry
        self._pending: tuple[int, Mapping[str, Any], Mapping[str, Any]] | None = None
        self._audited: int | None = None
        self._compiled: tuple[Callable[..., Mapping[str, jax.Array]], DeviceCheck] | None = None

    @override
    def begin_phase(self, context: TrainingContext) -> None:
        self._compiled = None

    @override
    def after_step(self, context: TrainingContext) -> None:
        """Audits the devices if the previous step was an incident, or if an audit is due at this step.

        If gradients differ between two computations, this is only reported. If memory is too small for the audit, the
        audit is skipped.

        Raises:
          UserError: the devices computed different results from the same inputs.
        """
        self._audit_incident(context)
        if self._settings.audits.at_incidents:
            self._pending = context.step, context.metrics, context.batch
        if (every := self._settings.audits.every) and context.step % every == 0:
            self._audit(context, context.step, context.batch)

    @override
    def end_phase(self, context: TrainingContext) -> None:
        self._audit_incident(context)

    def _audit_incident(self, context: TrainingContext) -> None:
        if self._pending is None:
            return
        (step, metrics, batch), self._pending = self._pending, None
        if int(metrics["incident"]) == spikes.NONE:
            return
        is_recent = self._audited is not None and step - self._audited < self._settings.incidents.window
        if not is_recent:
            self._audit(context, step, batch, is_incident=True)

    def _audit(self, context: TrainingContext, step: int, batch: Mapping[str, Any], is_incident: bool = False) -> None:
        self._audited = step
        # Programs of several devices must not run at once on CPUs, and their temporary memory adds up elsewhere.
        jax.block_until_ready(context.state)
        try:
            with self._logger.auditing(compiles=self._compiled is None):
                compute, check_devices = self._compiled = self._compiled or self._build(context)
                differing = self._repeat(compute, context, step, batch)
                vote = audit.count_votes(check_devices())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            if self._telemetry:
                self._telemetry.say(
                    f"step {step} is not audited, which needs more memory than is free: {one_line(error)}"
                )
            return
        names = context.program.tensor_names()
        line = describe_audit(differing, names, vote, list(context.program.mesh.devices.flat), is_incident)
        if line and self._telemetry:
            self._telemetry.say(f"audit after step {step}: {line}")
        if len(differing) or vote != Vote():
            self._record(step, line)
        if vote != Vote():
            raise UserError(
                f"the audit after step {step} found a device that computes wrongly: {line}. Checkpoints since the last "
                "audit without a finding may be wrong too. Run the same command again, without this device if possible"
            )

    def _build(self, context: TrainingContext) -> tuple[Callable[..., Mapping[str, jax.Array]], DeviceCheck]:
        """Returns a pair: the function that computes the checksums of gradients, and the check of the devices."""
        program, audits = context.program, self._settings.audits
        options = compiler.audit_options(program.mesh.devices.flat[0].device_kind, audits.libtpu_checker)
        return program.phase_gradients(context.phase, options), DeviceCheck(program.mesh, program.precision.compute)

    def _repeat(self, compute: Callable, context: TrainingContext, step: int, batch: Mapping[str, Any]) -> np.ndarray:
        """Returns the indices of the tensors whose gradients differ between two computations."""
        key, _, *frozen = self._programs.inputs(step - 1)
        first, second = (jax.device_get(compute(context.state, batch, key, *frozen)["checksums"]) for _ in range(2))
        return np.flatnonzero(first != second)

    def _record(self, step: int, line: str) -> None:
        if self._telemetry:
            self._telemetry.write({"step": step, "audit": line})


class CheckReplicas(Callback):
    """Callback that compares the replicas of the parameters before each checkpoint, except `best`.

    It must precede the callback that saves.
    """

    def __init__(self, settings: config.CheckpointConfig, telemetry: Telemetry | None):
        """Prepares to compare; `telemetry` receives the report and is None in every process except the first."""
        self._settings, self._telemetry = settings, telemetry
        self._check: ReplicaCheck | None = None

    @override
    def begin_phase(self, context: TrainingContext) -> None:
        self._check = None

    @override
    def after_step(self, context: TrainingContext) -> None:
        """Compares the replicas if a checkpoint of this step is due.

        Raises:
          UserError: the replicas differ.
        """
        is_due = context.is_last_step or context.decision.save or context.step % self._settings.save_every == 0
        if not is_due or context.program.mesh.size == 1:
            return
        if self._check is None:
            self._check = ReplicaCheck(context.program.mesh, context.state.params)
        if not self._check.has_replicas:
            return
        # Programs of several devices must not run at once on CPUs.
        jax.block_until_ready(context.state)
        votes = self._check(context.state.params)
        if not votes:
            return
        line = describe_replicas(votes, list(context.program.mesh.devices.flat))
        if self._telemetry:
            self._telemetry.write({"step": context.step, "audit": line})
        raise UserError(
            f"step {context.step} is not saved: {line}. Run the same command again to resume from the last checkpoint, "
            "without this host if it happens again"
        )


def describe_audit(
    differing: Sequence[int] | np.ndarray, names: Sequence[str], vote: Vote, devices: Sequence[Any], is_incident: bool
) -> str:
    """Returns the findings of an audit as one line.

    Without findings, returns "" or, if an incident caused the audit, a line that says that the incident was not
    reproduced.

    Args:
      differing: indices of the tensors whose gradients differed between two computations.
      names: names of the tensors.
      vote: comparison of the results of the devices, each of which computed the same block of a transformer.
      devices: devices of the mesh, in the order of `mesh.devices.flat`.
      is_incident: whether an incident caused the audit.
    """
    lines = []
    if len(differing):
        lines.append(
            f"the gradients of a batch, computed twice, differ in {len(differing)} of {len(names)} tensors, such as "
            f"{names[differing[0]]}: the hardware made a transient error"
        )
    if vote.differing:
        lines.append(
            f"{_name_devices(devices, vote.differing)} computes a fixed block differently from the majority of the "
            f"{len(devices)} devices: take it out of service"
        )
    if vote.undecided:
        lines.append(
            f"the {len(devices)} devices compute a fixed block differently, and no result is that of a majority: test "
            "each of them"
        )
    if not lines and is_incident:
        devices_agree = ", and so do all devices about a fixed block" if len(devices) > 1 else ""
        lines.append(
            f"not reproduced: two computations of the gradients of its batch agree{devices_agree}; the data are likely "
            "the cause"
        )
    return "; ".join(lines)


def describe_replicas(votes: Mapping[str, Vote], devices: Sequence[Any]) -> str:
    """Returns one line that names a parameter whose replicas differ, and the devices that differ from the majority.

    If no parameter has a majority, the line names all devices that hold different values.

    Args:
      votes: result of a `ReplicaCheck`, with at least one parameter.
      devices: devices of the mesh, in the order of `mesh.devices.flat`.
    """
    named = sorted({index for vote in votes.values() for index in vote.differing})
    undecided = sorted({index for vote in votes.values() for index in vote.undecided} - set(named))
    line = f"the replicas of {len(votes)} parameters differ, such as {next(iter(votes))}"
    if named:
        return f"{line}: {_name_devices(devices, named)} holds other values than the majority"
    return f"{line}: {_name_devices(devices, undecided)} hold different values, and there is no majority"


def _name_devices(devices: Sequence[Any], indices: Sequence[int]) -> str:
    """Returns the names of devices with their processes, such as `device 5 of process 1 (TPU v5e)`."""
    return ", ".join(
        f"device {devices[index].id} of process {devices[index].process_index} ({devices[index].device_kind})"
        for index in indices
    )
