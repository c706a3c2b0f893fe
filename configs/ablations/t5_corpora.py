"""What a T5 reads before it is tuned (Raffel et al. 2020 §3.4.1, table 8).

    python -m plm_jax sweep --sweep=ablations/t5_corpora --workdir=runs/t5-corpora
    python -m plm_jax sweep --sweep=ablations/t5_corpora:demo --workdir=runs/t5-corpora-demo --seeds=0,1,2

The paper's Toronto Books Corpus is not to be had: put books as `corpora.CORPORA["books"]` says. In the demo speeches
stand beside a novel and, as the paper's text of the tasks' own kind does, film reviews that are read without labels;
all have the vocabulary of the speeches, for which the others wait.
"""

import dataclasses

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.configs.ablations import t5_paper
from plm_jax.data.sources import corpora
from plm_jax.experiments.comparison import Published

CORPORA = {"c4": ("c4",), "unfiltered": ("c4_noclean",), "news": ("realnewslike",), "webtext": ("webtextlike",)}
CORPORA |= {"wikipedia": ("wikipedia",), "wikipedia_books": ("wikipedia", "books")}
DEMO = {
    "speeches": config.JsonLines(f"{demo.CORPORA}/sotu.jsonl.gz"),
    "novel": config.JsonLines(f"{demo.CORPORA}/moby_dick.jsonl.gz"),
    "film_reviews": config.JsonLines(f"{demo.CORPORA}/movie_sentiment.jsonl.gz", field="sentence"),
}
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """(name, changes) of each run."""
    if size == "demo":
        for name, source in DEMO.items():
            changes = {"data.sources": {name: source}, "data.cache_dir": f"../.cache/ablations/t5-{name}"}
            if name != "speeches":
                changes |= {"train.init_from": "speeches", "train.init_names": ()}
            yield from t5_paper.arm(name, changes, size)
        return
    for name, parts in CORPORA.items():
        changes = {"data.sources": corpora.sources(*parts), "data.mixture": {}, "data.cache_dir": "../.cache/t5"}
        yield from t5_paper.arm(name, changes, size)


evaluations = t5_paper.evaluations(overrides)


def published(size="paper"):
    """What the paper reports."""
    if size == "demo":
        return [Published(name, {}, "nothing is published of these corpora") for name in DEMO]
    corpora_of = {
        "c4": ["c4"],
        "unfiltered": ["c4_noclean"],
        "news": ["realnewslike"],
        "webtext": ["webtextlike"],
        "wikipedia": ["wikipedia"],
        "wikipedia_books": ["wikipedia", "books"],
    }
    setups = {name: dataclasses.replace(t5_paper.PRETRAINING, sources=read) for name, read in corpora_of.items()}
    return t5_paper.published(
        8,
        {
            "c4": t5_paper.BASELINE,
            "unfiltered": "81.46 19.14 78.78 68.04 26.55 39.34 27.21",
            "news": "83.83 19.23 80.39 72.38 26.75 39.90 27.48",
            "webtext": "84.03 19.31 81.42 71.40 26.80 39.74 27.59",
            "wikipedia": "81.85 19.31 81.29 68.01 26.94 39.69 27.67",
            "wikipedia_books": "83.65 19.28 82.08 73.24 26.77 39.63 27.57",
        },
        setups,
    )
