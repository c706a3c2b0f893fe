"""Commands that a finished run suggests."""

import pytest

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.experiments import seeds, summary


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


@pytest.mark.parametrize(
    ("metric", "values", "baseline", "is_better"),
    [
        ("nll", [3.0, 3.2], 3.5, True),
        ("nll", [3.6, 3.6], 3.5, False),
        ("accuracy", [0.6, 0.7], 0.5, True),
        ("accuracy", [0.2, 0.7], 0.5, False),
    ],
)
def test_results_are_compared_with_the_baseline_in_the_direction_of_the_metric(metric, values, baseline, is_better):
    line = seeds._line(f"validation/{metric}", values, baseline)
    assert f", {'better' if is_better else 'not better'} than the trivial baseline" in line
