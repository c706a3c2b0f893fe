"""Corpora that a T5 reads before it is tuned (Raffel et al. 2020 §3.4.1, table 8).

    python -m plm_jax sweep --sweep=ablations/t5_corpora --workdir=runs/t5-corpora
    python -m plm_jax sweep --sweep=ablations/t5_corpora:demo --workdir=runs/t5-corpora-demo --seeds=0,1,2

The paper's Toronto Books Corpus is not available: store books at the path of `corpora.CORPORA["books"]`. The demo
compares speeches with a novel and with film reviews read without labels, which replace the paper's in-domain text. All
runs use the vocabulary of the speeches, so the other runs wait for that run.
"""

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.configs.ablations import t5_paper
from plm_jax.configs.ablations.skeleton import unpublished
from plm_jax.data.sources import corpora

CORPORA = {"c4": ("c4",), "unfiltered": ("c4_noclean",), "news": ("realnewslike",), "webtext": ("webtextlike",)}
CORPORA |= {"wikipedia": ("wikipedia",), "wikipedia_books": ("wikipedia", "books")}
DEMO = {
    "speeches": config.TextTable(f"{demo.CORPORA}/sotu.jsonl.gz"),
    "novel": config.TextTable(f"{demo.CORPORA}/moby_dick.jsonl.gz"),
    "film_reviews": config.TextTable(f"{demo.CORPORA}/movie_sentiment.jsonl.gz", field="sentence"),
}
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    if size == "demo":
        for name, source in DEMO.items():
            changes = {"data.sources": {name: source}, "data.cache_dir": f"../.cache/ablations/t5-{name}"}
            if name != "speeches":
                changes |= {"train.init_from": "speeches", "train.init_names": ()}
            yield from t5_paper.arm(name, changes, size)
        return
    changes = {name: {"data.sources": corpora.sources(*parts)} for name, parts in CORPORA.items()}
    yield from t5_paper.arms(changes, size, **{"data.mixture": {}, "data.cache_dir": "../.cache/t5"})


evaluations = t5_paper.evaluations(overrides)


def published(size="paper"):
    """Returns the paper's figures."""
    if size == "demo":
        return unpublished(DEMO, "nothing is published of these corpora")()
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
        {
            "c4": {"sources": ["c4"]},
            "unfiltered": {"sources": ["c4_noclean"]},
            "news": {"sources": ["realnewslike"]},
            "webtext": {"sources": ["webtextlike"]},
            "wikipedia": {"sources": ["wikipedia"]},
            "wikipedia_books": {"sources": ["wikipedia", "books"]},
        },
    )()
