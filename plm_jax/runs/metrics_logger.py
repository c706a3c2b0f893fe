"""Rows of metrics of a run: read from the devices one step late, and written to metrics.jsonl."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from typing_extensions import override

from plm_jax.common import metrics as declarations
from plm_jax.common.phases import Phase
from plm_jax.data.reader import digest_hex
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.runs.goodput import Goodput
from plm_jax.runs.incidents import Incidents
from plm_jax.runs.phase_costs import PhaseCosts
from plm_jax.runs.telemetry import Telemetry
from plm_jax.training import flops

# Metrics of a step that are not written to a row as single numbers.
_NOT_SCALAR = ("digest", "norms", "incident", "limits")


class MetricsLogger(Callback):
    """Callback that reads the metrics of a step after the next step was dispatched, and writes rows.

    In this way, the devices do not wait for the host. Before a validation or a checkpoint, and at the end of a phase,
    the metrics are read at once.
    """

    def __init__(
        self,
        log_every: int,
        count_costs: Callable[[Phase], PhaseCosts],
        telemetry: Telemetry | None,
        goodput: Goodput,
        incidents: Incidents,
    ):
        """Prepares to log every `log_every` steps.

        Args:
          count_costs: function from a phase to the costs of its steps, from which rates are computed.
          telemetry: files of metrics; None in every process except the first, because only the first process writes
            rows.
        """
        self._log_every, self._count_costs = log_every, count_costs
        self._telemetry, self._goodput, self._incidents = telemetry, goodput, incidents
        chip = flops.chip(jax.devices()[0].device_kind)
        self._peak_flops = chip.flops * jax.device_count() if chip else None
        self._pending: tuple[int, Mapping[str, Any], float] | None = None
        self._since: float | None = None
        self._waited, self._steps = 0.0, 0
        self._padding, self._tokens = 0, 0

    @override
    def begin_phase(self, context: TrainingContext) -> None:
        """Resets the rates for a phase.

        The rates leave out the first step of the phase, because it includes compilation.
        """
        self._costs, self._num_steps = self._count_costs(context.phase), context.num_steps
        self._since, self._waited, self._steps = None, 0.0, 0
        self._has_validated = False

    @override
    def after_step(self, context: TrainingContext) -> None:
        """Reads the metrics of the previous step, and stores the metrics of the step that was just dispatched."""
        self._goodput.add_dispatched(context.metrics["loss"])
        self.flush()
        self._pending = context.step, context.metrics, context.data_wait_seconds

    @override
    def end_phase(self, context: TrainingContext) -> None:
        self.flush()

    @contextlib.contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Context manager for a compilation, whose duration is measured and reported."""
        with self._goodput.measure("compile"), self._showing(f"compiling {name}", reports=True):
            yield

    @contextlib.contextmanager
    def auditing(self, compiles: bool) -> Iterator[None]:
        """Context manager for an audit; rates exclude its duration, which is reported if `compiles` is set."""
        began = time.perf_counter()
        with self._goodput.measure("audits"), self._showing("auditing the devices", reports=compiles):
            yield
        if self._since is not None:
            self._since += time.perf_counter() - began

    def flush(self, validate: Callable[[], dict[str, float]] | None = None) -> dict[str, float]:
        """Waits for the pending metrics, calls `validate`, and writes all metrics as a row if a row is due.

        If no metrics are pending, it does nothing. A row is due at multiples of `log_every`, after the last step, after
        a validation and after an incident. Rates in the row, such as tokens per second, do not include the time of
        validation.

        Returns:
          Result of `validate`; empty if `validate` is None or no metrics are pending.

        Raises:
          UserError: too many steps in a row had no update.
        """
        if self._pending is None:
            return {}
        step, metrics, waited = self._pending
        self._pending = None
        metrics = jax.device_get(metrics)
        self._goodput.finish_step(step)
        now = time.perf_counter()
        self._padding, self._tokens = self._padding + int(metrics["digest"][2]), self._tokens + self._costs.tokens
        rates: dict[str, float] = {}
        if self._since is None:
            self._since = now
        else:
            self._steps, self._waited = self._steps + 1, self._waited + waited
            rates = self._rates(now - self._since)
        incident = self._incidents.record(step, metrics, self._telemetry and self._telemetry.say)
        validation: dict[str, float] = {}
        if validate:
            with self._validating():
                validation = validate()
        if self._telemetry is None:
            return validation
        if validation:
            shown = ", ".join(
                f"{name} {declarations.shown(name, value)}" for name, value in validation.items() if "/" not in name
            )
            self._telemetry.say(f"validation after step {step}: {shown}")
        if non_finite := [name for name, value in validation.items() if not math.isfinite(value)]:
            names = ", ".join(non_finite)
            self._telemetry.say(f"validation after step {step}: {names} not finite, omitted from its row")
        self._telemetry.progress(step, float(metrics["loss"]), rates.get("train/tokens_per_second"))
        if step % self._log_every == 0 or step == self._num_steps or validation or incident:
            self._telemetry.write(self._row(step, metrics, rates, validation) | incident)
            self._since, self._waited, self._steps = time.perf_counter() if validate else now, 0.0, 0
            self._padding, self._tokens = 0, 0
        return validation

    @contextlib.contextmanager
    def _validating(self) -> Iterator[None]:
        """Context manager that accounts for the time of a validation; the first validation of a phase compiles."""
        name = "validating" if self._has_validated else "compiling validation, and validating"
        is_first, self._has_validated = not self._has_validated, True
        with self._goodput.measure("validation"), self._showing(name, reports=is_first):
            yield

    def _showing(self, name: str, reports: bool) -> contextlib.AbstractContextManager:
        return self._telemetry.doing(name, reports) if self._telemetry else contextlib.nullcontext()

    def _rates(self, seconds: float) -> dict[str, float]:
        step_seconds = seconds / self._steps
        rates = {
            "train/step_seconds": step_seconds,
            "train/tokens_per_second": self._costs.tokens / step_seconds,
            "train/data_wait_seconds": self._waited / self._steps,
        }
        if self._peak_flops:
            rates["train/mfu"] = self._costs.flops / step_seconds / self._peak_flops
            rates["train/real_mfu"] = rates["train/mfu"] * (1 - self._padding / self._tokens)
        return rates

    def _row(
        self, step: int, metrics: Mapping[str, Any], rates: Mapping[str, float], validation: Mapping[str, float]
    ) -> dict[str, Any]:
        scalars = {name: float(value) for name, value in metrics.items() if name not in _NOT_SCALAR}
        row: dict[str, Any] = {"step": step} | _finite("train", scalars) | self._incidents.norms(metrics)
        row |= {**rates, "train/padding_share": self._padding / self._tokens}
        row |= {"train/batch_digest": digest_hex(metrics["digest"])}
        return row | _finite("validation", validation)


def _finite(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Returns the finite numbers, which JSON can represent, under the names PREFIX/NAME."""
    return {f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
