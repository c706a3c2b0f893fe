"""Phases of a training run. Settings that a phase does not change are filled in."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Phase:
    """A phase of a training run: steps [first_step, end_step). These steps read examples from `first_example` on.

    Attributes:
      mixture: rate of each source, in the order of the sources; empty if the rates follow from the sizes of the
        sources.
      dropout: rate of every dropout layer; None keeps the rates of the model.
      objective: values of the objective's fields by name, as in JSON; other fields keep the values of the config.
    """

    first_step: int
    end_step: int
    first_example: int
    length: int
    batch_size: int
    microbatches: int
    mixture: dict[str, float]
    dropout: float | None
    objective: dict[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.end_step - self.first_step

    @property
    def end_example(self) -> int:
        """Exclusive end of the range of examples that the phase reads."""
        return self.first_example + self.num_steps * self.batch_size
