"""What a run reads and trains from which step on."""

import dataclasses

from plm_jax.config.run import Run
from plm_jax.config.sources import InputsTargetsSource, Source
from plm_jax.config.training import Phase, PhaseConfig


def stages(run: Run) -> tuple[Phase, ...]:
    """The phases of a run, resolved; a run without phases is one stage."""
    found, step, example = [], 0, 0
    for phase in run.train.phases or (PhaseConfig(until=1.0),):
        end = round(phase.until * run.train.steps)
        rates = run.data.mixture if phase.mixture is None else phase.mixture
        stage = Phase(
            first_step=step,
            end_step=end,
            first_example=example,
            length=run.data.length if phase.length is None else phase.length,
            batch_size=run.train.batch_size if phase.batch_size is None else phase.batch_size,
            microbatches=run.train.microbatches if phase.microbatches is None else phase.microbatches,
            mixture={name: rates[name] for name in dict.fromkeys([*run.data.sources, *rates]) if name in rates},
            dropout=phase.dropout,
            mesh=dataclasses.replace(run.mesh, **phase.mesh or {}),
        )
        found.append(stage)
        step, example = end, example + (end - step) * stage.batch_size
    return tuple(found)


def read_sources(run: Run) -> dict[str, Source]:
    """The sources of a run with a rate above 0 in some stage: what is prepared and read."""
    mixtures = [stage.mixture for stage in stages(run)]
    return {name: s for name, s in run.data.sources.items() if any(m.get(name, not m) > 0 for m in mixtures)}


def has_inputs_targets(run: Run) -> bool:
    """Whether a source has examples with inputs and targets."""
    return any(isinstance(source, InputsTargetsSource) for source in run.data.sources.values())


def target_length(run: Run, length: int) -> int:
    """Slots for targets in a row of `length`; in an encoder-decoder the length of the decoder's row."""
    given = run.data.inputs_targets.target_length
    if has_inputs_targets(run) and given and run.model.has_decoder:
        return given
    return run.objective.target_length(length)
