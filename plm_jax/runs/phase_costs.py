"""Tokens and model FLOPs of the training steps of a phase."""

from typing import NamedTuple

from plm_jax import config
from plm_jax.common.phases import Phase
from plm_jax.training import flops


class PhaseCosts(NamedTuple):
    """Costs of one training step of a phase.

    Attributes:
      tokens: number of tokens of a batch, including padding.
      flops: model FLOPs, counted as in `training.flops.per_step`.
    """

    tokens: int
    flops: int


def count(run: config.Run, phase: Phase) -> PhaseCosts:
    """Returns the costs of one training step."""
    return PhaseCosts(num_tokens(run, phase), model_flops(run, phase))


def model_flops(run: config.Run, phase: Phase) -> int:
    """Returns the FLOPs of one training step, counted as in `training.flops.per_step`."""
    tokens, targets, decoder_length = row_lengths(run, phase)
    rows, samples = phase.batch_size * run.objective.rows_per_example, run.objective.negative_samples
    return flops.per_step(run.model, rows, tokens - decoder_length, targets, decoder_length, samples)


def num_tokens(run: config.Run, phase: Phase) -> int:
    """Returns the number of tokens of a batch, including padding."""
    return phase.batch_size * run.objective.rows_per_example * row_lengths(run, phase)[0]


def row_lengths(run: config.Run, phase: Phase) -> tuple[int, int, int]:
    """Returns three lengths of a row.

    Returns:
      A tuple: number of tokens, including the tokens of a decoder; number of target positions; number of decoder
      tokens, 0 if the model has no decoder.
    """
    run = config.in_phase(run, phase)
    targets = config.target_length(run, phase.length)
    decoder_length = targets if run.model.has_decoder else 0
    return run.objective.row_length(phase.length) + decoder_length, targets, decoder_length
