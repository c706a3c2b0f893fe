"""lm-eval's metrics of one model by its own `hf` model and by ours, in an environment each: are they the same?

    python benchmarks/harness.py [--rows=40] [--theirs=PYTHON] [--ours=PYTHON]

A GPT-2 of random weights over the package's byte-level vocabulary is saved for Hugging Face. Local tasks over rows that
come with the package, without a network: film reviews and QuaRTz as choices, the reviews after two examples too,
speeches as whole texts of 1 to 3.5 contexts, and their continuations. Compared are every request's log-likelihood,
whether it is greedy, every written text, every metric; and acc, acc_norm, acc_bytes and acc_mutual_info with
`evaluate --shots=0` by sum, character, byte and unconditional.

`--theirs` is a Python with torch, transformers, accelerate and lm-eval, by default this one. `--ours` is one with
lm-eval and neither torch nor transformers; by default one is made in a temporary folder.
"""

import argparse
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

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORPORA = ROOT / "plm_jax/data/corpora"
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
# One choice is what the model writes.
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
# By `--normalise` of ours.
OURS = {"sum": "acc", "character": "acc_norm", "byte": "acc_bytes", "unconditional": "acc_mutual_info"}
PAGE = """
from plm_jax import config, objectives
from plm_jax import models

def get_config():
    reviews = config.LabelledJsonLines(
        "sentiment_train.jsonl",
        config.ClassForm(("negative", "positive"), text="sentence", label="sentiment"),
        validation="sentiment.jsonl",
        prompt=config.PromptConfig("Review: {sentence}\\nSentiment:"),
    )
    quartz = config.LabelledJsonLines(
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


def main() -> None:
    """Prints what differs, by task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--theirs", default=sys.executable)
    parser.add_argument("--ours", default="")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        found = [name for name in ("torch", "transformers") if args.side != "theirs" and importlib.util.find_spec(name)]
        assert not found, f"{sys.executable} has {found}"
        SIDES[args.side](pathlib.Path(args.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        ours = args.ours or environment(pathlib.Path(folder) / "environment")
        write_tasks(pathlib.Path(folder), args.rows)
        # No hub is asked, and what another session left is not read.
        offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        for side, python in (("model", ours), ("theirs", args.theirs), ("ours", ours), ("prompts", ours)):
            print(f"{side} …", file=sys.stderr, flush=True)
            command = [python, __file__, f"--side={side}", f"--folder={folder}"]
            own = os.environ | offline | {"HF_HOME": f"{folder}/home-{side}"}
            subprocess.run(command, check=True, stdout=sys.stderr, env=own, cwd=folder)
        dumps = {
            side: json.loads((pathlib.Path(folder) / f"{side}.json").read_text()) for side in SIDES if side != "model"
        }
    print(json.dumps(compared(**dumps), indent=2))


def environment(folder: pathlib.Path) -> str:
    """The Python of a new environment with this package, lm-eval and what they need."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[harness]"], check=True, stdout=sys.stderr)
    return python


def write_tasks(folder: pathlib.Path, rows: int) -> None:
    """The tasks' files, each with so many rows and as many to draw examples from."""
    for name, file in {"sentiment": "movie_sentiment", "quartz": "quartz", "speeches": "sotu"}.items():
        with gzip.open(CORPORA / f"{file}.jsonl.gz", "rt") as lines:
            found = [json.loads(line) for line in itertools.islice(lines, 2 * rows)]
        if name == "speeches":  # Up to 3.5 contexts of some 4.5 characters a token.
            found = [{"text": row["text"][: 500 + 1500 * i // len(found)]} for i, row in enumerate(found)]
        for split, of in (("", found[:rows]), ("_train", found[rows:])):
            text = "".join(json.dumps(row) + "\n" for row in of)
            (folder / f"{name}{split}.jsonl").write_text(text)
    for name, yaml in TASKS.items():
        paths = {"test": f"{ROWS.get(name, name)}.jsonl", "train": f"{ROWS.get(name, name)}_train.jsonl"}
        files = "".join(f"    {split}: {folder / path}\n" for split, path in paths.items())
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n{files}"
        (folder / f"{name}.yaml").write_text(f"{head}test_split: test\nfewshot_split: train\n{yaml}")
    (folder / "page.py").write_text(PAGE)


def make_model(folder: pathlib.Path, model: Any = None, **special_ids: int) -> None:
    """A model of random weights, large enough for probabilities that differ; by default a GPT-2.

    Args:
      model: its settings.
      special_ids: besides the end of a text.
    """
    import dataclasses

    import flax.linen as nn
    import jax

    from plm_jax import models
    from plm_jax.configs import gpt2
    from plm_jax.inference.language_model import LanguageModel
    from plm_jax.models import registry

    model = model or gpt2.model(layers=2, width=64, heads=4, length=CONTEXT)
    model = dataclasses.replace(model, initializer=models.InitializerConfig(std=0.3))
    params = nn.unbox(registry.build(model).init(jax.random.key(0), **model.init_inputs())["params"])
    files = ",".join(str(ROOT / "plm_jax/data/gpt2" / name) for name in ("vocab.json", "merges.txt"))
    special_ids = {"eos_token_id": 50256} | (special_ids or {"bos_token_id": 50256})
    lm = LanguageModel(model, params, vocabulary_spec=f"bpe:{files}", special_ids=special_ids)
    lm.save(folder / "model")
    questions = [json.loads(line)["question"] for line in (folder / "quartz.jsonl").read_text().splitlines()]
    written = zip(questions, lm.generate(questions, max_new_tokens=3), strict=True)
    rows = [{"question": question, "choices": [answer, " the other"]} for question, answer in written if answer.strip()]
    for name in ("greedy", "greedy_train"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def dump(folder: pathlib.Path, name: str, model: Any, tasks: Iterable[str]) -> None:
    """Writes what lm-eval asks a model, what that answers, and the metrics."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    told = lm_eval.simple_evaluate(model, tasks=list(tasks), task_manager=manager, bootstrap_iters=0)
    samples = {
        task: [[sample["doc_id"], sample["arguments"], sample["resps"]] for sample in rows]
        for task, rows in told["samples"].items()
    }
    metrics = {
        task: {key.removesuffix(",none"): value for key, value in of.items() if isinstance(value, float)}
        for task, of in told["results"].items()
    }
    (folder / f"{name}.json").write_text(json.dumps({"samples": samples, "metrics": metrics}, default=str))


def theirs(folder: pathlib.Path, tasks: Iterable[str] = tuple(TASKS)) -> None:
    """By lm-eval's `hf` model."""
    from lm_eval.models.huggingface import HFLM

    dump(folder, "theirs", HFLM(pretrained=str(folder / "model"), device="cpu", dtype="float32", batch_size=4), tasks)


def ours(folder: pathlib.Path, tasks: Iterable[str] = tuple(TASKS)) -> None:
    """By `plm_jax.evaluation.harness`, where there is no torch."""
    import plm_jax
    from plm_jax.evaluation import harness

    dump(folder, "ours", harness.HarnessModel(plm_jax.load(folder / "model"), show_progress=False), tasks)


def prompts(folder: pathlib.Path) -> None:
    """By `evaluate --shots=0`, each normalisation."""
    found = {}
    for normalise in OURS:
        output = folder / f"{normalise}.json"
        flags = [f"--checkpoint={folder}/model", f"--config={folder}/page.py", "--shots=0", f"--normalise={normalise}"]
        command = [sys.executable, "-m", "plm_jax", "evaluate", *flags, f"--output={output}"]
        subprocess.run(command, check=True)
        found[normalise] = json.loads(output.read_text())
    (folder / "prompts.json").write_text(json.dumps(found))


SIDES = {"model": make_model, "theirs": theirs, "ours": ours, "prompts": prompts}


def compared(theirs: dict, ours: dict, prompts: dict) -> dict:
    """By task the largest differences of answers, how many requests there were, and what metrics differ."""
    found = {}
    for task, rows in theirs["samples"].items():
        pairs = list(zip(sorted(rows, key=str), sorted(ours["samples"][task], key=str), strict=True))
        assert all(one[1] == other[1] for one, other in pairs), f"{task} asked them otherwise"
        answers = [[flat(side[2]) for side in pair] for pair in pairs]
        numbers = [(a, b) for one, other in answers for a, b in zip(one, other, strict=True) if isinstance(a, float)]
        others = [(a, b) for one, other in answers for a, b in zip(one, other, strict=True) if not isinstance(a, float)]
        found[task] = {
            "requests": len(numbers) or len(others),
            "largest_difference": max((abs(a - b) for a, b in numbers), default=0.0),
            "largest_relative_difference": max((abs(a / b - 1) for a, b in numbers if b), default=0.0),
            "greedy_or_text_differs": sum(a != b for a, b in others),
            "greedy": sum(a in (True, "True") for a, _ in others),
            "metrics": theirs["metrics"][task],
            "metrics_differ": {
                key: [value, ours["metrics"][task].get(key)]
                for key, value in theirs["metrics"][task].items()
                if not abs(value - ours["metrics"][task].get(key, float("nan"))) <= 1e-4 * abs(value)
            },
        }
    for normalise, of in prompts.items():
        for task, metrics in of.items():
            own, lm_eval = metrics["0_shots/accuracy"], theirs["metrics"][task][OURS[normalise]]
            found[task].setdefault("own_prompts_differ", {})
            if abs(own - lm_eval) > 1e-9:
                found[task]["own_prompts_differ"][normalise] = [own, lm_eval]
    return found


def flat(value):
    """The numbers and texts of nested lists; numbers that were written as texts are numbers again."""
    if isinstance(value, list | tuple):
        return [one for part in value for one in flat(part)]
    try:
        return [value if isinstance(value, bool) else float(value)]
    except (TypeError, ValueError):
        return [value]


if __name__ == "__main__":
    main()
