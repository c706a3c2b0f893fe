"""An optimizer of one's own: Lion (Chen et al. 2023), the sign of a momentum."""

from dataclasses import dataclass, replace

import optax

from plm_jax import config
from plm_jax.configs import demo


@dataclass(frozen=True)
class Lion(config.OptimizerConfig):
    """Every element moves by the learning rate alone."""

    kind = "lion"
    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.1

    def transformations(self):
        """A direction of clipped gradients; the learning rate scales it."""
        return optax.scale_by_lion(self.b1, self.b2), optax.add_decayed_weights(self.weight_decay)


def get_config():
    """The demo's GPT-2, at a third of its rate."""
    run = demo.gpt2()
    schedule = replace(run.schedule, learning_rate=run.schedule.learning_rate / 3)
    return config.to_config_dict(replace(run, optimizer=Lion(), schedule=schedule))
