"""Samples of a model: answers to the first examples of a task, or continuations of its first documents."""

import json
import os

from plm_jax import config
from plm_jax.common import storage
from plm_jax.data import cache
from plm_jax.evaluation import perplexity, task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs.telemetry import read_lines

# Samples per task; tokens of a document that serve as the prompt, and tokens that are generated.
NUM_SAMPLES, _PROMPT_TOKENS, _NEW_TOKENS = 3, 16, 32


def sample_task(lm: LanguageModel, run: config.Run, task: str) -> list[dict[str, str]]:
    """Returns up to `NUM_SAMPLES` samples of a model, each with a `prompt`, an `answer` and a `target`.

    The list is empty for labeled examples. For documents, it is empty unless the model is a decoder with a vocabulary.
    """
    name, split = perplexity.parse_task(run, task)
    source = run.data.sources[name]
    if isinstance(source, config.InputsTargetsSource):
        return task_metrics.answer_examples(lm, run, task, NUM_SAMPLES)
    if isinstance(source, config.LabeledSource) or lm.config.kind != "decoder" or not lm.has_vocabulary:
        return []
    documents = cache.open_source(run.data.cache_dir, name).splits[split]
    samples = []
    for number in range(min(NUM_SAMPLES, documents.num_documents)):
        start, end = (int(offset) for offset in documents.documents[number : number + 2])
        tokens = documents.tokens(start, min(end, start + _PROMPT_TOKENS + _NEW_TOKENS)).tolist()
        prompt, target = (lm.tokenizer.decode(ids) for ids in (tokens[:_PROMPT_TOKENS], tokens[_PROMPT_TOKENS:]))
        samples.append({"prompt": prompt, "target": target})
    answers = (
        lm.generate([sample["prompt"] for sample in samples], max_new_tokens=_NEW_TOKENS, num_return_sequences=1)
        if samples
        else []
    )
    return [sample | {"answer": answer} for sample, answer in zip(samples, answers, strict=True)]


def write(workdir: str, step: int, samples: dict[str, list[dict[str, str]]]) -> None:
    """Writes the samples of a checkpoint to samples.jsonl. Replaces earlier samples of the same step and task.

    Args:
      samples: samples by task, as returned by `sample_task`.
    """
    path = os.path.join(workdir, "samples.jsonl")
    rows = [row for row in read_lines(path) if row["step"] != step or row["task"] not in samples]
    rows += [
        {"step": step, "task": task, **{name: sample[name] for name in ("prompt", "answer", "target")}}
        for task, task_samples in samples.items()
        for sample in task_samples
    ]
    storage.write(path, "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8"))
