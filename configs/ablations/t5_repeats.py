"""Repetitions of the text that a T5 reads (Raffel et al. 2020 §3.4.2, table 9).

    python -m plm_jax sweep --sweep=ablations/t5_repeats --workdir=runs/t5-repeats
    python -m plm_jax sweep --sweep=ablations/t5_repeats:demo --workdir=runs/t5-repeats-demo --seeds=0,1,2

Steps and batches are the same in all runs, so a run with less text reads it more often: with 2^29 of 2^35 tokens, 64
times. The number of documents assumes 450 tokens in a document of C4; `prepare` reports the number of tokens. The demo
takes the first speeches, each of about 16,000 tokens; a run reads 1.1 million.
"""

import itertools
import json
import os

from plm_jax import config
from plm_jax.configs.ablations import t5_paper
from plm_jax.configs.ablations.labeled_sets import vendored

LOG_TOKENS = (29, 27, 25, 23)
TOKENS_PER_DOCUMENT = 450
SPEECHES = (64, 16, 4)
FOLDER = ".cache/ablations"
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    yield from t5_paper.arm("full", {}, size)
    if size == "demo":
        for number in SPEECHES:
            source = {"sotu": config.TextTable(_first(number))}
            # The vocabulary is that of all speeches, which exists once `full` is trained.
            changes = {"train.init_from": "full", "train.init_names": (), "data.sources": source}
            changes |= {"data.cache_dir": f"../{FOLDER}/speeches-{number}"}
            yield from t5_paper.arm(f"speeches_{number}", changes, size)
        return
    for power in LOG_TOKENS:
        documents = 2**power // TOKENS_PER_DOCUMENT
        source = {"c4": config.Tfds("c4/en", train=f"train[:{documents}]")}
        changes = {"data.sources": source, "data.cache_dir": f"../.cache/t5-{power}"}
        yield from t5_paper.arm(f"tokens_2_{power}", changes, size)


evaluations = t5_paper.evaluations(overrides)
published = t5_paper.published(
    9,
    {
        "full": t5_paper.BASELINE,
        "tokens_2_29": "82.87 19.19 80.97 72.03 26.83 39.74 27.63",
        "tokens_2_27": "82.62 19.20 79.78 69.97 27.02 39.71 27.33",
        "tokens_2_25": "79.55 18.57 76.27 64.76 26.38 39.56 26.80",
        "tokens_2_23": "76.34 18.33 70.92 59.29 26.37 38.84 25.81",
    },
)


def _first(number: int) -> str:
    """Writes the first `number` speeches to a file in the working directory; returns its path."""
    path = os.path.abspath(os.path.join(FOLDER, f"speeches-{number}.jsonl"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rows = itertools.islice(vendored("sotu.jsonl.gz")(), number)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": row["text"]}) + "\n" for row in rows)
    return path
