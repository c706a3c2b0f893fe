"""Metrics of lm-eval for one model, by its own `hf` model and by ours, each in its own environment.

    python benchmarks/harness.py [--rows=40] [--theirs=PYTHON] [--ours=PYTHON]

Saves a GPT-2 with random weights over the package's byte-level vocabulary for Hugging Face. The tasks are local, over
rows that come with the package: film reviews and QuaRTz as choices, the reviews with two examples, speeches as whole
texts of 1 to 3.5 contexts, and their continuations. Compares every request's log-likelihood, whether it is greedy,
every generated text and every metric; and acc, acc_norm, acc_bytes and acc_mutual_info with `evaluate --shots=0` by
sum, character, byte and unconditional.
"""

import gzip
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import bench

CORPORA = bench.ROOT / "plm_jax/data/corpora"
CONTEXT = 128
CHOICES = """
output_type: multiple_choice
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}, {metric: acc_mutual_info}]
"""
TASKS = {
    "sentiment": CHOICES
    + r"""
doc_to_text: "Review: {{sentence}}\nSentiment:"
doc_to_choice: [negative, positive]
doc_to_target: sentiment
""",
    "quartz": CHOICES
    + r"""
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{choices.index(answer)}}"
""",
    "speeches": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "written": r"""
output_type: generate_until
doc_to_text: "{{text[:200]}}"
doc_to_target: "{{text[200:400]}}"
generation_kwargs: {until: ["\n", "the"], max_gen_toks: 24}
metric_list: [{metric: exact_match}]
""",
}
# One choice is the model's own continuation.
TASKS["greedy"] = r"""
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc}]
"""
TASKS["sentiment_shots"] = TASKS["sentiment"] + "num_fewshot: 2\nfewshot_config: {sampler: first_n}\n"
ROWS = {"sentiment_shots": "sentiment", "written": "speeches"}
# Metrics of lm-eval by our `--normalize`.
OURS = {"sum": "acc", "character": "acc_norm", "byte": "acc_bytes", "unconditional": "acc_mutual_info"}
PAGE = """
from plm_jax import config, objectives
from plm_jax import models

def get_config():
    reviews = config.LabeledTable(
        "sentiment_train.jsonl",
        config.ClassForm(("negative", "positive"), text="sentence", label="sentiment"),
        validation="sentiment.jsonl",
        prompt=config.PromptConfig("Review: {sentence}\\nSentiment:"),
    )
    quartz = config.LabeledTable(
        "quartz_train.jsonl",
        config.ChoiceForm(2, label="answer"),
        validation="quartz.jsonl",
        prompt=config.PromptConfig("Question: {question}\\nAnswer:"),
    )
    run = config.Run(
        model=models.FromCheckpointConfig(),
        vocabulary=config.VocabularyConfig(),
        objective=objectives.Causal(),
        data=config.DataConfig(cache_dir="cache", length=64, sources={"sentiment": reviews, "quartz": quartz}),
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=1, batch_size=1),
    )
    return config.to_config_dict(run)
"""


def run(rows: int = 40, theirs: str = sys.executable, ours: str = "") -> dict[str, Any]:
    """Evaluates both on all tasks.

    Args:
      rows: number of rows of each task.
      theirs: Python with torch, transformers, accelerate and lm-eval.
      ours: Python with lm-eval and without torch; by default it is installed into a temporary folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours = ours or environment(pathlib.Path(folder) / "environment")
        write_tasks(pathlib.Path(folder), rows)
        # Without access to a hub, and without the caches of other sessions.
        offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
        offline["PYTHONPATH"] = str(bench.ROOT)
        for name, (python, functions) in {
            "ours-model": (ours, [refuse_torch, make_model]),
            "theirs": (theirs, [evaluate_theirs]),
            "ours": (ours, [evaluate_ours, evaluate_prompts]),
        }.items():
            variables = os.environ | offline | {"HF_HOME": f"{folder}/home-{name}"}
            for function in functions:
                bench.fresh(function, folder, python=python, env=variables, cwd=folder)
        dumps = {name: json.loads((pathlib.Path(folder) / f"{name}.json").read_text()) for name in SIDES}
    return compared(**dumps)


def refuse_torch(folder: str) -> None:
    """Checks that torch and transformers are missing, as in our own environment."""
    installed = [name for name in ("torch", "transformers") if importlib.util.find_spec(name)]
    assert not installed, f"{sys.executable} has {installed}"


def environment(folder: pathlib.Path) -> str:
    """Installs this package and lm-eval into a new environment; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"{bench.ROOT}[harness]"], check=True, stdout=sys.stderr)
    return python


def write_tasks(folder: pathlib.Path, rows: int) -> None:
    """Writes the files of the tasks, with `rows` test rows and as many training rows for examples."""
    for name, file in {"sentiment": "movie_sentiment", "quartz": "quartz", "speeches": "sotu"}.items():
        with gzip.open(CORPORA / f"{file}.jsonl.gz", "rt") as lines:
            texts = [json.loads(line) for line in itertools.islice(lines, 2 * rows)]
        if name == "speeches":  # Up to 3.5 contexts of about 4.5 characters per token.
            texts = [{"text": row["text"][: 500 + 1500 * i // len(texts)]} for i, row in enumerate(texts)]
        for split, chosen in (("", texts[:rows]), ("_train", texts[rows:])):
            text = "".join(json.dumps(row) + "\n" for row in chosen)
            (folder / f"{name}{split}.jsonl").write_text(text)
    for name, yaml in TASKS.items():
        paths = {"test": f"{ROWS.get(name, name)}.jsonl", "train": f"{ROWS.get(name, name)}_train.jsonl"}
        files = "".join(f"    {split}: {folder / path}\n" for split, path in paths.items())
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n{files}"
        (folder / f"{name}.yaml").write_text(f"{head}test_split: test\nfewshot_split: train\n{yaml}")
    (folder / "page.py").write_text(PAGE)


def make_model(folder: str | pathlib.Path, model: Any = None, **special_ids: int) -> None:
    """Writes a model with random weights, large enough for distinct probabilities; by default a GPT-2.

    Args:
      folder: folder of the model and the tasks.
      model: settings of the model.
      special_ids: special ids besides the end of a text.
    """
    import dataclasses

    import flax.linen as nn
    import jax

    from plm_jax import models
    from plm_jax.configs import gpt2
    from plm_jax.inference.language_model import LanguageModel
    from plm_jax.models import registry

    folder = pathlib.Path(folder)
    model = model or gpt2.model(layers=2, width=64, heads=4, length=CONTEXT)
    model = dataclasses.replace(model, initializer=models.InitializerConfig(std=0.3))
    params = nn.unbox(registry.build(model).init(jax.random.key(0), **model.init_inputs())["params"])
    files = ",".join(str(bench.ROOT / "plm_jax/data/gpt2" / name) for name in ("vocab.json", "merges.txt"))
    special_ids = {"eos_token_id": 50256} | (special_ids or {"bos_token_id": 50256})
    lm = LanguageModel(model, params, vocabulary_spec=f"bpe:{files}", special_ids=special_ids)
    lm.save(folder / "model")
    questions = [json.loads(line)["question"] for line in (folder / "quartz.jsonl").read_text().splitlines()]
    written = zip(questions, lm.generate(questions, max_new_tokens=3), strict=True)
    rows = [{"question": question, "choices": [answer, " the other"]} for question, answer in written if answer.strip()]
    for name in ("greedy", "greedy_train"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def dump(folder: str | pathlib.Path, name: str, model: Any, tasks: Iterable[str]) -> None:
    """Writes the requests of lm-eval, the model's answers and the metrics."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = lm_eval.simple_evaluate(model, tasks=list(tasks), task_manager=manager, bootstrap_iters=0)
    samples = {
        task: [[sample["doc_id"], sample["arguments"], sample["resps"]] for sample in rows]
        for task, rows in results["samples"].items()
    }
    metrics = {
        task: {key.removesuffix(",none"): value for key, value in figures.items() if isinstance(value, float)}
        for task, figures in results["results"].items()
    }
    result = json.dumps({"samples": samples, "metrics": metrics}, default=str)
    (pathlib.Path(folder) / f"{name}.json").write_text(result)


def evaluate_theirs(folder: str | pathlib.Path, tasks: Iterable[str] = tuple(TASKS)) -> None:
    """Evaluates lm-eval's `hf` model."""
    from lm_eval.models.huggingface import HFLM

    dump(folder, "theirs", HFLM(pretrained=f"{folder}/model", device="cpu", dtype="float32", batch_size=4), tasks)


def evaluate_ours(folder: str | pathlib.Path, tasks: Iterable[str] = tuple(TASKS)) -> None:
    """Evaluates `plm_jax.evaluation.harness`, which needs no torch."""
    import plm_jax
    from plm_jax.evaluation import harness

    dump(folder, "ours", harness.HarnessModel(plm_jax.load(f"{folder}/model"), show_progress=False), tasks)


def evaluate_prompts(folder: str) -> None:
    """Evaluates by `evaluate --shots=0`, with each normalization."""
    results = {}
    for normalize in OURS:
        output = pathlib.Path(folder) / f"{normalize}.json"
        flags = [f"--checkpoint={folder}/model", f"--config={folder}/page.py", "--shots=0", f"--normalize={normalize}"]
        subprocess.run([sys.executable, "-m", "plm_jax", "evaluate", *flags, f"--output={output}"], check=True)
        results[normalize] = json.loads(output.read_text())
    (pathlib.Path(folder) / "prompts.json").write_text(json.dumps(results))


# Results of `compared`, each a JSON file.
SIDES = ("theirs", "ours", "prompts")


def compared(theirs: dict, ours: dict, prompts: dict) -> dict:
    """Returns the largest differences of the answers, the number of requests, and metrics that differ, by task."""
    results = {}
    for task, rows in theirs["samples"].items():
        pairs = list(zip(sorted(rows, key=str), sorted(ours["samples"][task], key=str), strict=True))
        assert all(one[1] == other[1] for one, other in pairs), f"the requests of {task} differ"
        answers = [[flat(side[2]) for side in pair] for pair in pairs]
        values = [(a, b) for one, other in answers for a, b in zip(one, other, strict=True)]
        numbers = [pair for pair in values if isinstance(pair[0], float)]
        texts = [pair for pair in values if not isinstance(pair[0], float)]
        results[task] = {
            "requests": len(numbers) or len(texts),
            "largest_difference": max((abs(a - b) for a, b in numbers), default=0.0),
            "largest_relative_difference": max((abs(a / b - 1) for a, b in numbers if b), default=0.0),
            "greedy_or_text_differs": sum(a != b for a, b in texts),
            "greedy": sum(a in (True, "True") for a, _ in texts),
            "metrics": theirs["metrics"][task],
            "metrics_differ": {
                key: [value, ours["metrics"][task].get(key)]
                for key, value in theirs["metrics"][task].items()
                if not abs(value - ours["metrics"][task].get(key, float("nan"))) <= 1e-4 * abs(value)
            },
        }
    for normalize, tasks in prompts.items():
        for task, metrics in tasks.items():
            accuracy, expected = metrics["0_shots/accuracy"], theirs["metrics"][task][OURS[normalize]]
            differences = results[task].setdefault("own_prompts_differ", {})
            if abs(accuracy - expected) > 1e-9:
                differences[normalize] = [accuracy, expected]
    return results


def flat(value):
    """Returns the numbers and texts of nested lists; texts of numbers become numbers."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    try:
        return [value if isinstance(value, bool) else float(value)]
    except (TypeError, ValueError):
        return [value]


if __name__ == "__main__":
    bench.main(run)
