"""Rates of false verdicts and of detected effects on simulated pages of sweeps.

    python benchmarks/verdicts.py > benchmarks/results/verdicts.json

The rows of each page are drawn from one distribution, and the function that computes the verdicts of a sweep's tables
is applied to it. Counted verdicts have a direction: better or worse, agrees or disagrees with a paper. An effect shifts
one row by 8 standard deviations of its seeds.
"""

import numpy as np

from plm_jax.experiments import comparison

VERDICTS = (comparison.AGREES, comparison.DISAGREES, comparison.BETTER, comparison.WORSE)
# Relative standard deviations of the first rows, the reference first; 1 for all other rows.
SPREADS = {"equal": (), "reference 1/10": (0.1,), "reference 10": (10.0,)}


def page(values: np.ndarray, test_rows: int | None = None) -> list[str]:
    """Returns the verdicts of a page.

    Args:
      values: accuracies or losses of the runs, [rows, seeds].
      test_rows: number of test rows of an accuracy; None if `values` are losses.
    """
    name = "task/loss" if test_rows is None else "task/accuracy"
    counts = {} if test_rows is None else {"task/examples": float(test_rows)}
    results = [
        {"name": f"row{row}", "seed": seed, "error": None, "minutes": 1.0, "metrics": {name: float(value)} | counts}
        for row, seeds in enumerate(values)
        for seed, value in enumerate(seeds)
    ]
    # A paper's figures that alternate, so that half of the verdicts would agree with it.
    published = [comparison.Published(f"row{row}", {"figure": 50.0 + row % 2}, "") for row in range(len(values))]
    return [row.verdict for row in comparison.compare_with_paper(results, published, "figure", name)]


def shows(verdicts: list[str]) -> bool:
    """Whether a page has a verdict with a direction."""
    return any(verdict.startswith(VERDICTS) for verdict in verdicts)


def normal(rng: np.random.Generator, rows: int, seeds: int, spreads: tuple[float, ...] = ()) -> np.ndarray:
    """Draws losses with equal means, [rows, seeds]; `spreads` scale the standard deviations of the first rows."""
    scale = np.ones((rows, 1))
    scale[: len(spreads), 0] = spreads
    return 5 + 0.05 * scale * rng.normal(size=(rows, seeds))


def binomial(rng: np.random.Generator, rows: int, seeds: int, test_rows: int, chance: float) -> np.ndarray:
    """Draws accuracies of rows with equal chances, [rows, seeds]."""
    return rng.binomial(test_rows, chance, (rows, seeds)) / test_rows


def shared_test_set(rng: np.random.Generator, rows: int, seeds: int, test_rows: int, chance: float) -> np.ndarray:
    """Draws accuracies of runs whose seeds agree on most of a common test set, [rows, seeds], which have little spread.

    Each seed answers one test row in ten independently, and the others like every seed of its run.
    """
    of_runs = rng.random((rows, 1, test_rows)) < chance
    of_seeds = rng.random((rows, seeds, test_rows)) < chance
    return np.where(rng.random((rows, seeds, test_rows)) < 0.1, of_seeds, of_runs).mean(-1)


# Numbers of test rows of binomial metrics, and the chance of a correct answer.
TEST_SETS = {binomial: ((40, 0.02), (40, 0.5), (300, 0.3), (1000, 0.8)), shared_test_set: ((40, 0.5), (300, 0.3))}


def size(pages: int, seed: int) -> list[dict]:
    """Returns the number of `pages` that show a verdict although no row differs, for each kind of page."""
    results = []
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
                results.append({"rows": rows, "seeds": seeds, "kind": name, "pages": pages, "with_verdict": count})
    return results


def power(pages: int, seed: int, pages_of=((10, 3), (10, 5), (11, 3), (17, 3), (17, 5))) -> list[dict]:
    """Returns the number of `pages` on which an effect on one row is found, for each kind of page."""
    results = []
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
            results.append({"rows": rows, "seeds": seeds, "kind": name, "pages": pages, "with_effect_found": count})
    return results


def run(pages: int = 2000, seed: int = 0) -> dict:
    """Counts the pages with verdicts.

    Args:
      pages: number of pages of each kind.
    """
    return {"size": size(pages, seed), "power": power(pages, seed)}


if __name__ == "__main__":
    import bench

    bench.main(run)
