"""What a model writes: its answers to a task's first examples, and how it goes on with held-out documents."""

import json
import os

from plm_jax import config
from plm_jax.common import storage
from plm_jax.data import cache
from plm_jax.evaluation import perplexity, task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs.telemetry import read_lines

# Samples of a task; of a document the tokens that the model is given, and those that it writes.
NUMBER, _GIVEN, _WRITTEN = 3, 16, 32


def of_task(lm: LanguageModel, run: config.Run, task: str) -> list[dict[str, str]]:
    """`prompt`, `answer` and `target` of a few examples; none where the model writes no answers to such a source."""
    name, split = perplexity.split_of(run, task)
    source = run.data.sources[name]
    if isinstance(source, config.InputsTargetsSource):
        return task_metrics.answered(lm, run, task, NUMBER)
    if isinstance(source, config.LabelledSource) or lm.config.kind != "decoder" or not lm.has_vocabulary:
        return []
    documents = cache.open_source(run.data.cache_dir, name).splits[split]
    found = []
    for number in range(min(NUMBER, documents.num_documents)):
        start, end = (int(place) for place in documents.documents[number : number + 2])
        tokens = documents.tokens(start, min(end, start + _GIVEN + _WRITTEN)).tolist()
        prompt, target = (lm.tokenizer.decode(part) for part in (tokens[:_GIVEN], tokens[_GIVEN:]))
        found.append({"prompt": prompt, "target": target})
    answers = (
        lm.generate([sample["prompt"] for sample in found], max_new_tokens=_WRITTEN, num_return_sequences=1)
        if found
        else []
    )
    return [sample | {"answer": answer} for sample, answer in zip(found, answers, strict=True)]


def record(workdir: str, step: int, samples: dict[str, list[dict[str, str]]]) -> None:
    """Puts the samples of a checkpoint's tasks into samples.jsonl, in the place of those that are there of its step."""
    path = os.path.join(workdir, "samples.jsonl")
    rows = [row for row in read_lines(path) if row["step"] != step or row["task"] not in samples]
    rows += [
        {"step": step, "task": task, **{name: sample[name] for name in ("prompt", "answer", "target")}}
        for task, found in samples.items()
        for sample in found
    ]
    storage.write(path, "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8"))
