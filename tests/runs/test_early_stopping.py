"""Training that ends because validation has stopped improving."""

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from tests.support import moods, runs

# Without a learning rate, no validation is better than the first.
CONSTANT = (
    *("--config.schedule.learning_rate=0.0", "--config.evaluation.every=2", "--config.evaluation.patience=3"),
    "--config.checkpoint.keep_last=9",
)


@pytest.fixture(scope="module")
def finetune(verb, tmp_path_factory):
    """`finetune(workdir, …)` trains or resumes a run and returns its messages."""
    folder = tmp_path_factory.mktemp("moods")
    moods.write(folder)

    def finetune(workdir, *more):
        arguments = (f"--config={folder}/moods.py", f"--checkpoint={folder}/encoder", f"--workdir={workdir}")
        finished = verb("finetune", *arguments, *more)
        assert finished.status == 0, finished.err
        return finished.err

    return finetune


def test_training_stops_after_patience_and_stays_finished(finetune, tmp_path):
    # Best at 2, then three validations.
    assert "stopped at step 8: mood/loss has stopped improving" in finetune(tmp_path / "run", *CONSTANT)
    rows = runs.rows(tmp_path / "run")
    assert rows[-1]["step"] == 8
    assert "raise evaluation.patience to train further" in finetune(tmp_path / "run", *CONSTANT)
    assert runs.rows(tmp_path / "run") == rows
    # An interrupted run stops at the same step.
    runs.copy_at(tmp_path / "run", tmp_path / "interrupted", 4)
    assert "stopped at step 8: mood/loss has stopped improving" in finetune(tmp_path / "interrupted", *CONSTANT)
    assert [row["step"] for row in runs.rows(tmp_path / "interrupted")] == [row["step"] for row in rows]


def test_better_values_extend_training(finetune, tmp_path):
    finetune(tmp_path, "--config.evaluation.patience=10")
    losses = runs.column(tmp_path, "validation/mood/loss")
    last = runs.rows(tmp_path)[-1]["step"]
    assert last == min(24, min(losses, key=losses.get) + 10) and last > 11


def test_patience_needs_a_metric():
    with pytest.raises(UserError, match=r"patience is 2: set config\.evaluation\.select too"):
        config.EvaluationConfig(every=1, patience=2)
