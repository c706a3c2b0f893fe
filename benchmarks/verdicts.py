"""How often a sweep's page shows a verdict where nothing is true, and how often it finds an effect that is there.

    python benchmarks/verdicts.py --output=benchmarks/results/verdicts.json

Each page is drawn at random, its rows of one distribution, and goes through the function that gives a sweep's table its
verdicts.
A verdict is one of a direction: better or worse, agrees or disagrees with a paper. Effects are 8 standard deviations of
one row's seeds, on one row.
"""

import json

import numpy as np
from absl import app, flags

from plm_jax.experiments import comparison

_OUTPUT = flags.DEFINE_string("output", None, "a JSON file for the counts")
_PAGES = flags.DEFINE_integer("pages", 2000, "pages of each kind", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "of the random numbers")
VERDICTS = (comparison.AGREES, comparison.DISAGREES, comparison.BETTER, comparison.WORSE)
# Standard deviations of rows, the first of which is the reference; 1 for all others.
SPREADS = {"equal": (), "reference 1/10": (0.1,), "reference 10": (10.0,)}


def page(values: np.ndarray, test_rows: int | None = None) -> list[str]:
    """Returns the verdicts of a page whose runs reach these accuracies or losses, [rows, seeds].

    Args:
      test_rows: how many rows the metric, then an accuracy, is a mean over; None: it is a loss.
    """
    name = "task/loss" if test_rows is None else "task/accuracy"
    counts = {} if test_rows is None else {"task/examples": float(test_rows)}
    results = [
        {"name": f"row{row}", "seed": seed, "error": None, "minutes": 1.0, "metrics": {name: float(value)} | counts}
        for row, seeds in enumerate(values)
        for seed, value in enumerate(seeds)
    ]
    # A paper's figures that rise and fall by turns, so that half of the verdicts would agree with it.
    published = [comparison.Published(f"row{row}", {"figure": 50.0 + row % 2}, "") for row in range(len(values))]
    return [row.verdict for row in comparison.beside_paper(results, published, "figure", name)]


def shows(verdicts: list[str]) -> bool:
    """Whether a page has a verdict of a direction."""
    return any(verdict.startswith(VERDICTS) for verdict in verdicts)


def normal(rng: np.random.Generator, rows: int, seeds: int, spreads: tuple[float, ...] = ()) -> np.ndarray:
    """Losses of rows that are all alike but for the spread of the first ones, [rows, seeds]."""
    scale = np.ones((rows, 1))
    scale[: len(spreads), 0] = spreads
    return 5 + 0.05 * scale * rng.normal(size=(rows, seeds))


def binomial(rng: np.random.Generator, rows: int, seeds: int, test_rows: int, chance: float) -> np.ndarray:
    """Accuracies of rows that are all alike, [rows, seeds]."""
    return rng.binomial(test_rows, chance, (rows, seeds)) / test_rows


def shared_test_set(rng: np.random.Generator, rows: int, seeds: int, test_rows: int, chance: float) -> np.ndarray:
    """Accuracies of runs that answer most of a common test set alike, whatever their seed: there is little spread.

    Each run answers one test row in ten by its own chance, with each seed, and the others as its kind does.
    """
    of_runs = rng.random((rows, 1, test_rows)) < chance
    of_seeds = rng.random((rows, seeds, test_rows)) < chance
    return np.where(rng.random((rows, seeds, test_rows)) < 0.1, of_seeds, of_runs).mean(-1)


# Test rows of binomial metrics, and the chance of being right.
TEST_SETS = {binomial: ((40, 0.02), (40, 0.5), (300, 0.3), (1000, 0.8)), shared_test_set: ((40, 0.5), (300, 0.3))}


def size(pages: int, seed: int) -> list[dict]:
    """Returns by kind of page how many of `pages` show a verdict where nothing is true."""
    found = []
    for rows in (10, 17):
        for seeds in (3, 5):
            drawn = {f"normal, {name}": (normal, (spreads,), None) for name, spreads in SPREADS.items()}
            for draw, test_sets in TEST_SETS.items():
                for test_rows, chance in test_sets:
                    name = f"{draw.__name__}, {test_rows} test rows, chance {chance}"
                    drawn[name] = (draw, (test_rows, chance), test_rows)
            for name, (draw, arguments, test_rows) in drawn.items():
                rng = np.random.default_rng(seed)
                count = sum(shows(page(draw(rng, rows, seeds, *arguments), test_rows)) for _ in range(pages))
                found.append({"rows": rows, "seeds": seeds, "kind": name, "pages": pages, "with_verdict": count})
    return found


def power(pages: int, seed: int, pages_of=((10, 3), (10, 5), (11, 3), (17, 3), (17, 5))) -> list[dict]:
    """Returns by kind of page, of rows and seeds, on how many of `pages` an effect on one row is found."""
    found = []
    for rows, seeds in pages_of:
        rng, counts = np.random.default_rng(seed), {"normal": 0, "binomial, 1000 test rows": 0}
        deviation = (0.5 * 0.5 / 1000) ** 0.5
        for _ in range(pages):
            values = normal(rng, rows, seeds)
            values[1] -= 8 * 0.05
            counts["normal"] += page(values)[1].startswith(VERDICTS)
            values = binomial(rng, rows, seeds, 1000, 0.5)
            values[1] = rng.binomial(1000, 0.5 + 8 * deviation, seeds) / 1000
            counts["binomial, 1000 test rows"] += page(values, 1000)[1].startswith(VERDICTS)
        for name, count in counts.items():
            found.append({"rows": rows, "seeds": seeds, "kind": name, "pages": pages, "with_effect_found": count})
    return found


def main(argv) -> None:
    """Prints, and writes, what was counted."""
    del argv
    made = {"seed": _SEED.value, "size": size(_PAGES.value, _SEED.value), "power": power(_PAGES.value, _SEED.value)}
    worst = max(made["size"], key=lambda row: row["with_verdict"])
    print(f"most verdicts where nothing is true: {worst}")
    for row in made["power"]:
        print(row)
    if _OUTPUT.value:
        with open(_OUTPUT.value, "w", encoding="utf-8") as file:
            file.write(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
