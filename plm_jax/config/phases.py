"""Phases of a run, the sources that are read, and the mesh that each phase is trained on."""

import dataclasses
from collections.abc import Sequence

from plm_jax.common import trees
from plm_jax.common.phases import Phase
from plm_jax.config.run import Run
from plm_jax.config.training import PhaseConfig
from plm_jax.data.config import ReaderConfig
from plm_jax.data.sources.source import Source
from plm_jax.training.mesh import MeshConfig


def resolve_phases(run: Run) -> tuple[Phase, ...]:
    """Returns the phases of a run; a run without `train.phases` is one phase.

    The steps of the phases are computed from `train.steps`. If it is 0, because the run has `train.epochs` and its
    rows are not counted yet, the phases have no steps.
    """
    resolved: list[Phase] = []
    step, example = 0, 0
    for settings in _configured(run):
        rates = run.data.mixture if settings.mixture is None else settings.mixture
        phase = Phase(
            first_step=step,
            end_step=round(settings.until * run.train.steps),
            first_example=example,
            length=run.data.length if settings.length is None else settings.length,
            batch_size=run.train.batch_size if settings.batch_size is None else settings.batch_size,
            microbatches=run.train.microbatches if settings.microbatches is None else settings.microbatches,
            mixture={name: rates[name] for name in dict.fromkeys([*run.data.sources, *rates]) if name in rates},
            dropout=settings.dropout,
            objective=trees.to_dict(settings.objective),
        )
        resolved.append(phase)
        step, example = phase.end_step, phase.end_example
    return tuple(resolved)


def _configured(run: Run) -> tuple[PhaseConfig, ...]:
    return run.train.phases or (PhaseConfig(until=1.0),)


def in_phase(run: Run, phase: Phase) -> Run:
    """Returns the run with the objective of a phase.

    Raises:
      UserError: a field of the objective does not exist, has an invalid value, or belongs to the loss.
    """
    objective = run.objective.with_fields(phase.objective, "config.train.phases.objective")
    return dataclasses.replace(run, objective=objective)


def in_validation(run: Run) -> Run:
    """Returns the run with the objective of validation; raises the errors of `in_phase`."""
    objective = run.objective.with_fields(run.evaluation.objective, "config.evaluation.objective")
    return dataclasses.replace(run, objective=objective)


def mesh_of(run: Run, phase: Phase) -> MeshConfig:
    """Returns the mesh of the configured phase that contains the last step of `phase`.

    If `phase` ends after all configured phases, returns `run.mesh`.
    """
    for settings, resolved in zip(_configured(run), resolve_phases(run), strict=True):
        if phase.end_step <= resolved.end_step:
            return dataclasses.replace(run.mesh, **settings.mesh or {})
    return run.mesh


def read_sources(run: Run) -> dict[str, Source]:
    """Returns the sources with a rate above 0 in at least one phase; only these sources are prepared and read.

    A phase without rates reads all sources.
    """
    mixtures = [phase.mixture for phase in resolve_phases(run)]
    return {name: s for name, s in run.data.sources.items() if any(m.get(name, not m) > 0 for m in mixtures)}


def reader_config(run: Run, phases: Sequence[Phase] | None = None) -> ReaderConfig:
    """Returns the settings of a run's reader.

    Args:
      phases: phases to read; None: the phases of the config. For a run whose config has changed, pass the phases that
        it has already trained, followed by the remaining phases of its config.
    """
    return ReaderConfig(
        data=run.data,
        vocabulary=run.vocabulary,
        objective=run.objective,
        validation_objective=in_validation(run).objective,
        phases=resolve_phases(run) if phases is None else tuple(phases),
        sources=tuple(read_sources(run)),
        seed=run.train.seed,
        vocab_size=run.model.vocab_size,
        max_characters=run.model.max_characters,
    )


def target_length(run: Run, length: int) -> int:
    """Returns the number of slots for targets in a row of `length`.

    For an encoder-decoder, this is the length of the decoder's row.
    """
    configured = run.data.inputs_targets.target_length
    if run.data.has_inputs_targets and configured and run.model.has_decoder:
        return configured
    return run.data.layout.target_length(run.objective, length)
