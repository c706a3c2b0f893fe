"""Commands that a finished run suggests."""

import pytest

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.experiments import summary


@pytest.mark.parametrize(
    ("name", "prompt"),
    [("gpt2", "The"), ("t5", "The"), ("bert", "The [MASK] of"), ("deberta", "The [MASK] of"), ("xlnet", None)],
)
def test_prompts_fit_the_model(name, prompt):
    run = config.from_dict(config.to_dict(demo.RUNS[name]()))
    commands = summary._commands(run, "runs/a", "bilm")
    suggested = [command for command in commands if command.startswith("plm_jax generate")]
    assert commands[-1] == "plm_jax convert --source=runs/a --target=DIR --format=bilm"
    assert suggested == ([f'plm_jax generate --checkpoint=runs/a --prompt="{prompt}"'] if prompt else [])
