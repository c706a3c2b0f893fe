"""An optimizer of one's own: the sign of a momentum (Bernstein et al. 2018)."""

from dataclasses import dataclass, replace

import optax

from plm_jax import config
from plm_jax.configs import demo


@dataclass(frozen=True)
class SignSgd(config.OptimizerConfig):
    """Every element moves by the learning rate alone."""

    kind = "sign_sgd"
    momentum: float = 0.9

    def transformations(self):
        """A direction of clipped gradients; the learning rate scales it."""
        return optax.trace(self.momentum), optax.scale_by_sign()


def get_config():
    """The demo's GPT-2, at a third of its rate."""
    run = demo.gpt2()
    schedule = replace(run.schedule, learning_rate=run.schedule.learning_rate / 3)
    return config.to_config_dict(replace(run, optimizer=SignSgd(), schedule=schedule))
