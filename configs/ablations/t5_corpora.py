"""What a T5 reads before it is tuned (Raffel et al. 2020 §3.4.1, table 8).

    python -m plm_jax.sweep --sweep=ablations/t5_corpora --workdir=runs/t5-corpora
    python -m plm_jax.sweep --sweep=ablations/t5_corpora:demo --workdir=runs/t5-corpora-demo --seeds=0,1,2

The paper's Toronto Books Corpus is not to be had: put books as `corpora.CORPORA["books"]` says. In the demo speeches
stand beside a novel and, as the paper's text of the tasks' own kind does, film reviews that are read without labels;
all have the vocabulary of the speeches, for which the others wait.
"""

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


def published(size="paper"):
    """What the paper reports."""
    if size == "demo":
        return [Published(name, {}, "nothing is published of these corpora") for name in DEMO]
    return t5_paper.published(
        8,
        {
            "c4": t5_paper.BASELINE,
            "unfiltered": "81.46 19.14 78.78 68.04 26.55 39.34 27.21",
            "news": "",
            "webtext": "",
            "wikipedia": "",
            "wikipedia_books": "83.65 19.28 82.08 73.24 26.77 39.63 27.57",
        },
    )
