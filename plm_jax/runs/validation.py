"""Validation of a run while it trains: each source by itself, and all of them as the mixture weighs them."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from plm_jax import config, objectives
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.labelled import metrics
from plm_jax.data.mixtures import Mixture
from plm_jax.data.reader import Reader
from plm_jax.losses import means
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK
from plm_jax.training import mesh as meshes
from plm_jax.training import step as steps
from plm_jax.training.program import Program

Means = dict[str, float]


class Validation:
    """The losses of what a run's sources hold out: the same rows in the same order each time.

    A batch is of one source. Of `evaluation.max_batches` each source takes its share by the rates of the stage, at
    least one batch, and no more than it has.
    """

    def __init__(self, program: Program, reader: Reader):
        self._program, self._reader, self._run = program, reader, program.run
        self._batch_size = -(-self._run.evaluation.batch_size // program.batch_shards) * program.batch_shards
        self._step = functools.cache(_step)

    def __call__(self, params, stage: config.Phase) -> Means:
        """What `metrics.jsonl` has of a stage under `validation/`; nothing if no source holds out a row.

        Returns:
          In rows of the stage's length: by `loss` and the loss's own metrics the whole; by SOURCE/loss, … each source.
          Where the last stage's LENGTH is another, the same in such rows, by LENGTH/loss, LENGTH/SOURCE/loss, ….

          A source's are means over all of its targets, rows or tokens, as each is counted in, the loss in nats. The
          whole is their mean by the stage's rates, which are of rows as in training, of the sources that hold out some.
          Of labelled examples there are also the figures that `evaluate` gives, in their places where names are alike.
        """
        found = {}
        for length in self._lengths(stage):
            shares = self._shares(stage, length)
            program = self._program.at(stage)
            of_sources = {
                name: self._means(program, params, name, length, number) for name, (_, number) in shares.items()
            }
            weights = {name: share for name, (share, _) in shares.items()}
            prefix = "" if length == stage.length else f"{length}/"
            found |= {f"{prefix}{metric}": value for metric, value in _whole(of_sources, weights).items()}
            for name, of_source in of_sources.items():
                found |= {f"{prefix}{name}/{metric}": value for metric, value in of_source.items()}
        return found

    def notes(self) -> list[str]:
        """Lines that say which sources hold out nothing, or less than their rates ask for."""
        places = ((stage, length) for stage in self._program.stages for length in self._lengths(stage))
        lines = [line for place in places for line in self._notes(*place)] if self._run.evaluation.every else []
        return list(dict.fromkeys(lines))

    def _notes(self, stage: config.Phase, length: int) -> list[str]:
        rates, shares, found = self._reader.rates(stage), self._shares(stage, length), []
        if missing := [name for name in rates if name not in shares]:
            rest = "validation is of the others" if shares else "there is no validation"
            found.append(f"nothing is held out of {', '.join(missing)}: {rest}")
        wanted = self._wanted({name: rates[name] for name in shares})
        few = [
            f"of {name} {number} batches of {wanted[name]}"
            for name, (_, number) in shares.items()
            if number < wanted.get(name, 0)
        ]
        if few:
            found.append(f"less is held out than validation would read by the rates: {', '.join(few)}")
        return found

    def _lengths(self, stage: config.Phase) -> list[int]:
        """That of the stage and that of the last one."""
        return list(dict.fromkeys([stage.length, self._program.stages[-1].length]))

    def _wanted(self, rates: dict[str, float]) -> dict[str, int]:
        """How many batches of each source to take; nothing: all."""
        most = self._run.evaluation.max_batches
        if self._is_labelled or not (most and rates):
            return {}
        return {name: max(1, number) for name, number in Mixture(rates).counts(most).items()}

    def _shares(self, stage: config.Phase, length: int) -> dict[str, tuple[float, int]]:
        """Of each source that holds out a row its share of the whole, and how many batches of it are read."""
        rates, held = self._reader.rates(stage), {}
        for name in rates:
            if number := self._reader.num_batches("validation", self._batch_size, name, length):
                held[name] = number
        total, wanted = sum(rates[name] for name in held), self._wanted({name: rates[name] for name in held})
        return {name: (rates[name] / total, min(number, wanted.get(name, number))) for name, number in held.items()}

    def _means(self, program: Program, params, name: str, length: int, number: int) -> Means:
        """The means of the loss over so many batches of a source; nothing of a term for which they count nothing."""
        rows = functools.partial(meshes.local_rows, meshes.batch_sharding(program.mesh))
        total, outputs = None, []
        carry = program.new_carry(self._batch_size)
        for local in self._reader.in_order("validation", self._batch_size, rows, name, length, number):
            batch = meshes.to_global(local, rows(self._batch_size), self._batch_size, program.mesh)
            of_batch, carry, output = self._step(program)(params, batch, carry)
            total = means.add(total, jax.device_get(of_batch))
            outputs.append(jax.device_get(output))
        found = means.of_total(program.loss(), total)
        if self._is_labelled:
            labelled = self._reader.rows("validation", name, length)
            found |= metrics.of_outputs(labelled, np.concatenate(outputs), self._labels)
        return found

    @property
    def _is_labelled(self) -> bool:
        return isinstance(self._run.objective, objectives.LabelledObjective)

    @property
    def _labels(self) -> Sequence[str]:
        return getattr(self._run.model.named_heads[TASK], "labels", ())

    def check_select(self) -> None:
        """Refuses a metric to select by that is not computed, as far as that is known before it would be.

        Raises:
          UserError: as it says.
        """
        select, last = self._run.evaluation.select, self._program.stages[-1]
        if not select:
            return
        if (every := self._run.evaluation.every) > last.end_step:
            raise UserError(
                f"config.evaluation.select is '{select}', and nothing is validated: the run has {last.end_step} steps, "
                f"config.evaluation.every is {every}: set it to at most the steps"
            )
        source, _, metric = select.partition("/")
        shares = self._shares(last, last.length)
        if source in self._reader.rates(last) and source not in shares:
            raise UserError(
                f"config.evaluation.select is '{select}', and nothing is held out of '{source}': give it validation "
                "rows, raise config.data.validation_fraction, or set config.evaluation.select to ''"
            )
        if source not in shares:
            raise UserError(
                f"config.evaluation.select is '{select}', as SOURCE/METRIC: of sources that hold out rows "
                f"{nearest(source, shares)}"
            )
        known = ["loss", *metrics.names(self._run.objective, self._labels)] if self._is_labelled else [metric]
        if metric not in known:
            raise UserError(f"config.evaluation.select is '{select}', which is not computed: {nearest(metric, known)}")
        if not _sign(select):
            raise UserError(
                f"config.evaluation.select is '{select}', whose direction is not declared: declare '{metric}' with "
                "plm_jax.common.metrics.declare"
            )

    def selected(self, found: Means) -> float:
        """Returns the value of `evaluation.select` among the metrics of a validation.

        Raises:
          UserError: the metric is not computed.
        """
        select = self._run.evaluation.select
        if select not in found:
            raise UserError(f"config.evaluation.select is '{select}', which is not computed: {nearest(select, found)}")
        return found[select]

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value of `evaluation.select` is better than another."""
        return _sign(self._run.evaluation.select) * (value - than) > 0


def _sign(metric: str) -> int:
    """Returns 1 if larger values of a metric are better, -1 if smaller ones are, 0 if no direction is declared."""
    declared = declarations.declared(metric)
    return declared.sign if declared else 0


def _step(program: Program):
    """The sums of a batch over the program's mesh, what it carries on, and the output of a task's head."""
    loss, model, published = program.loss(), program.model(), program.published_state.params
    is_labelled = isinstance(program.run.objective, objectives.LabelledObjective)

    def step(params, batch, carry):
        params = meshes.fitted(params, published)
        sums, carry = means.sums(loss, model, params, batch, carry)
        if not is_labelled:
            return sums, carry, ()
        # What is computed again XLA computes once. Every process gets all rows.
        output, _ = task_heads.output(model, params, batch)
        return sums, carry, jax.lax.with_sharding_constraint(output, meshes.replicated(program.mesh))

    return steps.over_mesh(step, program.mesh, program.run.mesh.rules, program.options)


def _whole(means: dict[str, Means], weights: dict[str, float]) -> Means:
    """The mean of some sources' means by their weights, over those that have each."""
    found = {}
    for metric in dict.fromkeys(metric for of_source in means.values() for metric in of_source):
        having = [name for name, of_source in means.items() if metric in of_source]
        total = sum(weights[name] for name in having)
        found[metric] = sum(weights[name] * means[name][metric] for name in having) / total
    return found
