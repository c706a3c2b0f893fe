"""An objective of one's own: spans of a few tokens are masked, and asked for in a random order."""

from dataclasses import dataclass, replace

import numpy as np

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.configs import demo


@dataclass(frozen=True)
class SpanOrder(objectives.Objective):
    """Predict spans of `span` tokens, about `rate` of a row, from the others; all of their tokens become the mask."""

    kind = "span_order"
    architectures = ("encoder",)
    loss = "masked_lm"
    inputs = ("text", "row")
    targets = "the masked spans"
    rate: float = 0.15
    span: int = 3

    def __post_init__(self):
        if not (0 < self.rate <= 1 and self.span >= 1):
            raise UserError("config.objective.rate must be above 0 and at most 1, and config.objective.span at least 1")

    def target_length(self, length):
        """Whole spans."""
        return max(1, round(length * self.rate / self.span)) * self.span

    def apply(self, example, special, rng):
        """`tokens` [L], some masked, `mask` [L], and `targets`, `target_positions`, `target_weights` [P]."""
        tokens = np.array(example["tokens"], np.int32)
        mask = np.asarray(example.get("mask", np.ones(len(tokens))), np.int32)
        slots, num_real = self.target_length(len(tokens)), np.count_nonzero(mask)
        starts = rng.permutation(num_real // self.span)[: slots // self.span] * self.span
        positions = (starts[:, None] + np.arange(self.span)).reshape(-1)
        made = {"target_positions": positions, "targets": tokens[positions], "target_weights": positions * 0 + 1}
        made = {name: np.pad(values, (0, slots - len(values))).astype(np.int32) for name, values in made.items()}
        tokens[positions] = special.mask
        return made | {"tokens": tokens, "mask": mask, "target_weights": made["target_weights"].astype(np.float32)}


def get_config():
    """The demo's BERT with this objective."""
    return config.to_config_dict(replace(demo.bert(), objective=SpanOrder()))
