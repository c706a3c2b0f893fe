"""Validation during training: metrics of each source, and their means weighted by the rates of the mixture."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from typing_extensions import override

from plm_jax import config, losses, objectives
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.labeled import metrics
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.mixtures import Mixture
from plm_jax.data.reader import Reader
from plm_jax.losses import means
from plm_jax.models import ModelConfig, task_heads
from plm_jax.models.heads import TASK
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.runs.metrics_logger import MetricsLogger
from plm_jax.runs.programs import Programs, build_loss
from plm_jax.training import mesh as meshes
from plm_jax.training.program import Program

Means = dict[str, float]
# Prefix of the metrics of the moving average of the parameters.
AVERAGE = "average_of_weights"


class Validation:
    """Metrics on the held-out rows of a run's sources.

    All validations in a phase read the same rows in the same order. A batch has rows of one source.
    `evaluation.max_batches` is divided among the sources in proportion to the rates of the phase; each source with
    held-out rows has at least one batch. If `evaluation.max_batches` is 0, or if the examples are labeled, all held-out
    rows are read.
    """

    def __init__(
        self,
        settings: config.EvaluationConfig,
        objective: objectives.Objective,
        model: ModelConfig,
        programs: Programs,
        reader: Reader,
    ):
        self._settings, self._objective, self._model = settings, objective, model
        self._programs, self._reader = programs, reader
        self._labels: Sequence[str] = ()
        self._is_labeled = isinstance(objective, objectives.LabeledObjective)
        if self._is_labeled:
            self._labels = getattr(model.named_heads[TASK], "labels", ())
        self._batch_size = -(-self._settings.batch_size // programs.batch_shards) * programs.batch_shards
        self._step = functools.cache(self._compile)

    def __call__(self, params: Any, phase: config.Phase) -> Means:
        """Returns the metrics of a phase that are logged as `validation/…`; empty if there are no held-out rows.

        Returns:
          A dict from name to value. `loss`, in nats, and the other metrics of the loss are computed over all sources,
          for rows of the phase's length. Names such as SOURCE/loss are the same metrics of a single source. If the last
          phase has another row LENGTH, names such as LENGTH/loss and LENGTH/SOURCE/loss are the same metrics for rows
          of that length.

          A metric of a source is a mean over the targets, rows or tokens that are read, depending on the metric. A
          metric over all sources is the mean over the sources that have this metric, weighted by the rates of the
          phase. For labeled examples, the metrics of `evaluate` are added; they replace metrics of the same name.
        """
        all_means: Means = {}
        for length in self._lengths(phase):
            shares = self._shares(phase, length)
            program = self._programs.at(phase)
            by_source = {
                name: self._means(program, params, name, length, num_batches)
                for name, (_, num_batches) in shares.items()
            }
            weights = {name: share for name, (share, _) in shares.items()}
            prefix = "" if length == phase.length else f"{length}/"
            all_means |= {f"{prefix}{metric}": value for metric, value in _weighted_means(by_source, weights).items()}
            for name, of_source in by_source.items():
                all_means |= {f"{prefix}{name}/{metric}": value for metric, value in of_source.items()}
        return all_means

    def notes(self) -> list[str]:
        """Returns lines that report sources with no held-out rows, or with fewer rows than their rates require.

        There are no lines if the run is never validated.
        """
        if not self._settings.every:
            return []
        pairs = ((phase, length) for phase in self._programs.phases for length in self._lengths(phase))
        return list(dict.fromkeys(line for pair in pairs for line in self._notes(*pair)))

    def _notes(self, phase: config.Phase, length: int) -> list[str]:
        rates, shares, lines = self._reader.rates(phase), self._shares(phase, length), []
        if missing := [name for name in rates if name not in shares]:
            rest = "only the other sources are validated" if shares else "the run is not validated"
            if not shares and len(self._programs.phases) > 1:
                rest = "phases that read no other source are not validated"
            lines.append(f"no held-out rows in {', '.join(missing)}: {rest}")
        limits = self._limits({name: rates[name] for name in shares})
        few = [
            f"{num_batches} of {limits[name]} batches of {name}"
            for name, (_, num_batches) in shares.items()
            if num_batches < limits.get(name, 0)
        ]
        if few:
            lines.append(f"fewer rows are held out than the rates require: {', '.join(few)}")
        return lines

    def _lengths(self, phase: config.Phase) -> list[int]:
        """Returns the row lengths of the phase and of the last phase, without duplicates."""
        return list(dict.fromkeys([phase.length, self._programs.phases[-1].length]))

    def _limits(self, rates: dict[str, float]) -> dict[str, int]:
        """Returns the maximum number of batches of each source; empty if there is no limit."""
        max_batches = self._settings.max_batches
        if self._is_labeled or not (max_batches and rates):
            return {}
        return {name: max(1, number) for name, number in Mixture(rates).counts(max_batches).items()}

    def _shares(self, phase: config.Phase, length: int) -> dict[str, tuple[float, int]]:
        """Returns, for each source with held-out rows, its share of the rates and its number of batches."""
        rates = self._reader.rates(phase)
        available: dict[str, int] = {}
        for name in rates:
            if number := self._reader.num_batches("validation", self._batch_size, name, length):
                available[name] = number
        total, limits = sum(rates[name] for name in available), self._limits({name: rates[name] for name in available})
        return {
            name: (rates[name] / total, min(number, limits.get(name, number))) for name, number in available.items()
        }

    def _means(self, program: Program, params: Any, name: str, length: int, num_batches: int) -> Means:
        """Returns the metrics of a source over `num_batches` batches, without loss terms whose weight is zero."""
        rows = meshes.local_rows(meshes.batch_sharding(program.mesh), self._batch_size)
        total, outputs = None, []
        carry = program.new_carry(self._batch_size)
        for local in self._reader.in_order(
            "validation", self._batch_size, lambda _: rows.tolist(), name, length, num_batches
        ):
            batch = meshes.to_global(local, rows, self._batch_size, program.mesh)
            sums, carry, output = self._step(program)(params, batch, carry)
            total = means.add(total, jax.device_get(sums))
            outputs.append(jax.device_get(output))
        result = means.of_total(self._loss(program), total)
        if self._is_labeled:
            labeled = self._reader.rows("validation", name, length)
            assert isinstance(labeled, LabeledRows)
            result |= metrics.compute_metrics(labeled, list(np.concatenate(outputs)), self._labels)
        return result

    def _loss(self, program: Program) -> losses.Loss:
        """Returns the loss of the objective, without label smoothing, z-loss and other settings of training."""
        return build_loss(self._objective, self._model, program.mesh)

    def _compile(self, program: Program) -> Callable:
        """Returns the jitted function `(params, batch, carry) → (sums, carry, output)` of a program.

        The results are the sums of the loss, the carry to the next batch, and the output of the task head (empty
        without labeled examples).
        """
        loss, model = self._loss(program), program.module()
        published = program.published_state.params

        def step(params, batch, carry):
            params = meshes.fitted(params, published)
            sums, carry = means.sums(loss, model, params, batch, carry)
            if not self._is_labeled:
                return sums, carry, ()
            # XLA removes the repeated computation. Every process gets all rows.
            output, _ = task_heads.output(model, params, batch)
            return sums, carry, jax.lax.with_sharding_constraint(output, meshes.replicated(program.mesh))

        return program.jit(step)

    def check_select(self) -> None:
        """Checks `evaluation.select`, if it is set.

        For examples without labels, it is not checked whether the metric is computed; `selected` checks this later.

        Raises:
          UserError: the run is never validated, the source has no held-out rows, the metric is not computed for labeled
            examples, or it is not declared whether larger or smaller values are better.
        """
        select, last = self._settings.select, self._programs.phases[-1]
        if not select:
            return
        if (every := self._settings.every) > last.end_step:
            raise UserError(
                f"config.evaluation.select is '{select}', but the run has {last.end_step} steps and is never validated "
                f"(config.evaluation.every is {every}): set config.evaluation.every to at most {last.end_step}"
            )
        source, _, metric = select.partition("/")
        shares = self._shares(last, last.length)
        if source in self._reader.rates(last) and source not in shares:
            raise UserError(
                f"config.evaluation.select is '{select}', but '{source}' has no held-out rows: add validation "
                "rows, increase config.data.validation_fraction, or set config.evaluation.select to ''"
            )
        if source not in shares:
            raise UserError(
                f"config.evaluation.select is '{select}': expected SOURCE/METRIC, where SOURCE has held-out rows; "
                f"{nearest(source, shares)}"
            )
        known = [metric]
        if isinstance(self._objective, objectives.LabeledObjective):
            known = ["loss", *metrics.names(self._objective, self._labels)]
        if metric not in known:
            raise UserError(f"config.evaluation.select is '{select}', which is not computed: {nearest(metric, known)}")
        if not _sign(select):
            raise UserError(
                f"config.evaluation.select is '{select}', whose direction is not declared: declare '{metric}' with "
                "plm_jax.common.metrics.declare"
            )

    def selected(self, values: Mapping[str, float]) -> float:
        """Returns the value of `evaluation.select` among the metrics of a validation.

        Raises:
          UserError: the metric is not computed.
        """
        select = self._settings.select
        if select not in values:
            raise UserError(f"config.evaluation.select is '{select}', which is not computed: {nearest(select, values)}")
        return values[select]

    def is_better(self, value: float, than: float) -> bool:
        """Whether the value `value` of `evaluation.select` is better than the value `than`."""
        return _sign(self._settings.select) * (value - than) > 0


class Validate(Callback):
    """Callback that validates a run every `evaluation.every` steps and after its last step.

    It does nothing if `evaluation.every` is 0.
    """

    def __init__(self, validation: Validation, every: int, logger: MetricsLogger):
        """Prepares to validate; `logger` writes the results into the step's row of metrics."""
        self._validation, self._every, self._logger = validation, every, logger

    @override
    def after_step(self, context: TrainingContext) -> None:
        context.validation = None
        if self._every and (context.is_last_step or context.step % self._every == 0):
            context.validation = self._logger.flush(functools.partial(self._validate, context))

    def _validate(self, context: TrainingContext) -> Means:
        """Returns the metrics of the parameters, and the metrics of their moving average with the prefix `AVERAGE`."""
        means = self._validation(context.state.params, context.phase)
        if context.program.average:
            of_average = self._validation(context.state.average, context.phase)
            means |= {f"{AVERAGE}/{name}": value for name, value in of_average.items()}
        return means


def _sign(metric: str) -> int:
    """Returns 1 if larger values of a metric are better, -1 if smaller values are better, 0 if neither is declared."""
    declared = declarations.declared(metric)
    return declared.sign if declared else 0


def _weighted_means(means: dict[str, Means], weights: dict[str, float]) -> Means:
    """Returns the weighted mean of each metric over the sources that have it."""
    result = {}
    for metric in dict.fromkeys(metric for of_source in means.values() for metric in of_source):
        names = [name for name, of_source in means.items() if metric in of_source]
        total = sum(weights[name] for name in names)
        result[metric] = sum(weights[name] * means[name][metric] for name in names) / total
    return result
