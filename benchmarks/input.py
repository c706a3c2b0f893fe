"""The input pipeline: tokens per second in batches, and memory by corpus size. Prints one JSON object.

    python benchmarks/input.py                 # causal, length 512, batch 256
    python benchmarks/input.py --objective=masked_lm         # and Hugging Face's collator on the same blocks in turn
    python benchmarks/input.py --objective=sentence_pairs    # masked LM over sentence pairs
    python benchmarks/input.py --objective=all               # every objective and layout
    python benchmarks/input.py --processes=0                 # batches made by threads of the reading process
    python benchmarks/input.py --memory        # also anonymous memory after 2,000 batches at 50e6 and at 1e9 tokens

Two processes make the batches, as in Hugging Face's loader (`config.data.processes`; the reader's default is none).
Tokens are those of the rows that a model reads, without padding, of encoder and decoder or of both directions. CPU
seconds count all threads and workers, and depend less on other load on the machine. The cache is synthetic (random
tokens, sentences and documents of random lengths), written by the cache's writer. Memory is RssAnon of a fresh process,
without memory maps.
"""

import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import bench
import collator
import numpy as np

from plm_jax import config, models, objectives
from plm_jax.common import storage
from plm_jax.data import cache, layouts
from plm_jax.data.cache import columns
from plm_jax.data.reader import Reader
from plm_jax.objectives import denoising

VOCAB_SIZE, SENTINELS = 50_257, 100
TEXT_IDS = VOCAB_SIZE - SENTINELS - len(config.SPECIALS)
IDS = {name: TEXT_IDS + number for number, name in enumerate(config.SPECIALS)}
VOCABULARY = config.VocabularyConfig("words:words.txt", **IDS, sentinels=SENTINELS)
WORDS = [f"word{number}" for number in range(VOCAB_SIZE)]
OBJECTIVES = {
    kind: (make(), config.Blocks())
    for kind, make in objectives.Objective.choices.items()
    if not issubclass(make, objectives.LabeledObjective) and "record" not in make.inputs
}
NOISES = denoising.TokenMasking(), denoising.TokenDeletion(), denoising.TextInfilling()
OBJECTIVES |= {
    "bidirectional_lm": (objectives.BidirectionalLM(), config.Streams()),
    "causal_apart": (objectives.Causal(), config.Blocks(attend_across_documents=False)),
    "static_masks": (objectives.MaskedLM(duplicates=10), config.Blocks()),
    "whole_words": (objectives.MaskedLM(whole_words=1), config.Blocks()),
    "ngrams": (objectives.MaskedLM(whole_words=3), config.Blocks()),
    "rate_0.4": (objectives.MaskedLM(rate=0.4), config.Blocks()),
    **{f"denoising_{noise.kind}": (objectives.Denoising(0.0, noise), config.Blocks()) for noise in NOISES},
    "denoising_composed": (objectives.Denoising(insert=0.1, rotate=0.5, random_share=0.1), config.Blocks()),
    "blank_infilling_mixed": (
        objectives.BlankInfilling(0.15, 3.0, 39, 0.3, 0.2, 0.25, 0.5, 0.1, 0.02),
        config.Blocks(),
    ),
    "sentence_pairs": (objectives.MaskedLM(), config.SentencePairs()),
    "sentence_order": (objectives.MaskedLM(whole_words=3), config.SentencePairs(task="sentence_order")),
    "single_sentences": (objectives.MaskedLM(), config.SentencePairs(parts="sentences")),
    "full_sentences": (objectives.MaskedLM(), config.FullSentences()),
    "doc_sentences": (objectives.MaskedLM(), config.FullSentences(cross_documents=False)),
}
LENGTH, BATCH = 512, 256
PEER = "DataCollatorForLanguageModeling"
MEAN_DOCUMENT, MEAN_SENTENCE, WORDS_A_TOKEN = 1000, 25, 0.75
CHUNK = 2**22


def write_cache(folder: str, num_tokens: int) -> None:
    """Writes a source `synthetic` of `num_tokens` random tokens."""
    rng = np.random.default_rng(0)
    temporary = os.path.join(folder, ".tmp")
    writer = cache.SplitWriter(os.path.join(temporary, "train"), VOCAB_SIZE)
    for start in range(0, num_tokens, CHUNK):
        tokens = rng.integers(0, TEXT_IDS, min(CHUNK, num_tokens - start), np.uint16)
        sentences = np.unique(np.append(rng.integers(0, len(tokens), len(tokens) // MEAN_SENTENCE), 0))
        documents = np.unique(np.append(rng.choice(sentences, len(tokens) // MEAN_DOCUMENT), 0))
        sizes, first = np.diff(documents, append=len(tokens)), sentences.searchsorted(documents)
        counts = np.diff(first, append=len(sentences))
        values = {
            "tokens": cache.Values(tokens, sizes),
            "sentence_starts": cache.Values(sentences - np.repeat(documents, counts), counts),
            "first_bytes": cache.Values(np.full(len(documents), 4)),
        }
        writer.add(values, 4 * len(tokens))
    counts = {"train": writer.close()}
    word_initial = rng.random(VOCAB_SIZE) < WORDS_A_TOKEN
    described = cache.describe(VOCAB_SIZE, (columns.SENTENCE_STARTS, columns.FIRST_BYTES), word_initial, temporary)
    specials = config.to_dict(VOCABULARY)
    words = os.path.join(folder, "vocabulary", "words.txt")
    os.makedirs(os.path.dirname(words))
    storage.write(words, "\n".join(WORDS).encode())
    files = {"words.txt": storage.sha256(words)}
    vocabulary = {"id": "synthetic", "size": VOCAB_SIZE, "kind": "words", "files": files, **specials}
    manifest = {"identity": "synthetic", "vocabulary": vocabulary, "splits": counts, **described}
    cache.publish(temporary, os.path.join(folder, "synthetic"), manifest)


def make_run(folder: str, objective: str, steps: int, processes: int = 0) -> config.Run:
    """Returns a run over the synthetic cache."""
    chosen, layout = OBJECTIVES[objective]
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(VOCAB_SIZE, 8),
        attention=models.AttentionConfig(1, 8, models.NoPositions()),
        feed_forward=models.FeedForwardConfig(8),
        stack=models.StackConfig(1),
    )
    if isinstance(layout, config.Streams):
        model = models.ElmoConfig(embedding=models.CharacterCNNConfig(VOCAB_SIZE))
    return config.Run(
        model=model,
        objective=chosen,
        data=config.DataConfig(
            folder, LENGTH, {"synthetic": config.TextFiles("-")}, layout=layout, processes=processes
        ),
        vocabulary=VOCABULARY,
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=steps, batch_size=BATCH),
    )


def rss_anon() -> int:
    """Returns the anonymous resident memory of this process in bytes (Linux)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and its workers (Linux)."""
    total = time.process_time()
    for worker in multiprocessing.active_children():
        with open(f"/proc/{worker.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total


def num_tokens(batch: dict[str, np.ndarray]) -> float:
    """Returns the number of tokens that a model reads, without padding; targets with positions are in the inputs."""
    encoder = batch["mask"].sum() if "mask" in batch else 0
    if "block_positions" in batch:
        return float(batch["prefix_lengths"].sum() + batch["target_weights"].sum())
    return float(encoder if "target_positions" in batch else encoder + batch["target_weights"].sum())


def ours(folder: str, objective: str, batches: int, processes: int) -> Iterator[float]:
    """Yields the number of tokens in each batch of an objective."""
    yield from map(num_tokens, Reader(config.reader_config(make_run(folder, objective, batches, processes))).batches(0))


def theirs(folder: str, batches: int) -> Iterator[float]:
    """Yields those of Hugging Face's collator for masked language modeling, over the same blocks."""
    source = cache.open_source(folder, "synthetic")
    stream = layouts.Stream(source.splits["train"], IDS["eos"], IDS["pad"])
    tokens, _ = stream.read(0, min(batches * BATCH, stream.num_tokens // LENGTH) * LENGTH)
    tokenizer = collator.make_tokenizer(WORDS, IDS["pad"], IDS["mask"])
    yield from collator.batches(tokens.reshape(-1, LENGTH), list(IDS.values()), tokenizer, BATCH)


def measure(folder: str, objective: str, batches: int, processes: int) -> dict[str, float]:
    """Returns the speed of reading batches; the clocks start after the first eleven."""
    first, tokens, begin, cpu = min(10, batches // 2), 0.0, 0.0, 0.0
    counts = theirs(folder, batches) if objective == PEER else ours(folder, objective, batches, processes)
    for step, count in enumerate(counts):
        if step == first:
            tokens, begin, cpu = 0.0, time.perf_counter(), cpu_seconds()
            continue
        tokens += count
        end, cpu_end = time.perf_counter(), cpu_seconds()
    return {
        "tokens_per_second": round(tokens / (end - begin)),
        "tokens_per_cpu_second": round(tokens / (cpu_end - cpu)),
        "tokens_per_row": round(tokens / ((step - first) * BATCH)),
        "rss_anon_bytes": rss_anon(),
    }


def measure_apart(folder: str, objective: str, batches: int, processes: int, repeats: int) -> dict[str, float]:
    """Returns the medians of measurements in fresh processes."""
    return medians([bench.fresh(measure, folder, objective, batches, processes) for _ in range(repeats)])


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each figure."""
    return {key: round(statistics.median(run[key] for run in runs)) for key in runs[0]}


def compare(folder: str, batches: int, processes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the medians of ours and Hugging Face's, measured in turn, and the ratios of ours to theirs."""
    runs: dict[str, list] = {"masked_lm": [], PEER: []}
    for _ in range(repeats):
        for name, figures in runs.items():
            figures.append(measure_apart(folder, name, batches, processes, 1))
    results = {name: medians(figures) for name, figures in runs.items()}
    ours, theirs = results.values()
    results["ratio"] = {key: round(ours[key] / theirs[key], 2) for key in ours if key.endswith("second")}
    return results


def measure_all(num_tokens: int, names: list[str], batches: int, processes: int, repeats: int) -> dict[str, Any]:
    """Writes a cache and measures objectives on it; for masked LM the peer, too, if it is installed."""
    results, has_peer = {}, all(map(importlib.util.find_spec, ("torch", "transformers")))
    with tempfile.TemporaryDirectory() as folder:
        write_cache(folder, num_tokens)
        for name in names:
            if name == "masked_lm" and has_peer:
                results |= compare(folder, batches, processes, max(3, repeats))
            else:
                results[name] = measure_apart(folder, name, batches, processes, repeats)
    return results | ({"peer": "not installed"} if "masked_lm" in names and not has_peer else {})


def run(
    objective: str = "causal",
    tokens: int = 50_000_000,
    batches: int = 200,
    processes: int = 2,
    repeats: int = 1,
    memory: bool = False,
) -> dict[str, Any]:
    """Measures an objective, or all.

    Args:
      tokens: number of tokens in the cache.
      processes: number of processes that make our batches; 0 for threads of the reading process.
      repeats: number of fresh processes, whose median counts.
      memory: compare the memory with caches of 50e6 and 1e9 tokens, too.
    """
    names = list(OBJECTIVES) if objective == "all" else [objective]
    result: dict[str, Any] = {"length": LENGTH, "batch": BATCH}
    result["speed"] = measure_all(tokens, names, batches, processes, repeats)
    if memory:
        small, large = (measure_all(int(size), names[:1], 2000, 0, 1)[names[0]] for size in (50e6, 1e9))
        growth = round(large["rss_anon_bytes"] / small["rss_anon_bytes"] - 1, 4)
        result["memory"] = {"small": small, "large": large, "growth": growth}
    return result


if __name__ == "__main__":
    bench.main(run, objective=(*OBJECTIVES, PEER, "all"))
