"""The input pipeline: tokens a second as ready batches, and memory against corpus size. Prints one JSON object.

    python benchmarks/input.py                 # causal, length 512, batch 256
    python benchmarks/input.py --objective=masked_lm         # and Hugging Face's collator on the same blocks in turn
    python benchmarks/input.py --objective=sentence_pairs    # masked LM over sentence pairs
    python benchmarks/input.py --objective=all               # every objective and layout
    python benchmarks/input.py --processes=0                 # made by threads of the process that reads them
    python benchmarks/input.py --memory        # also anonymous memory after 2,000 batches at 50e6 and at 1e9 tokens

Two processes make the batches, as in Hugging Face's loader (`config.data.processes`; by itself the reader has none).
Tokens are the real ones of the rows that a model reads, an encoder's and a decoder's, or both directions'; a second of
the processor's is one of all threads and workers together, on which other load on the machine bears less.
It reads a synthetic cache (random tokens, sentences and documents of random lengths), written with the cache's own
writer into a temporary folder. Memory is RssAnon of a fresh process: memory maps do not count.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import collator
import machine
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
    if not issubclass(make, objectives.LabelledObjective)
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
    """A source `synthetic` of `num_tokens` random tokens."""
    rng = np.random.default_rng(0)
    temporary = os.path.join(folder, ".tmp")
    writer = cache.SplitWriter(os.path.join(temporary, "train"), VOCAB_SIZE)
    for start in range(0, num_tokens, CHUNK):
        tokens = rng.integers(0, TEXT_IDS, min(CHUNK, num_tokens - start), np.uint16)
        sentences = np.unique(np.append(rng.integers(0, len(tokens), len(tokens) // MEAN_SENTENCE), 0))
        documents = np.unique(np.append(rng.choice(sentences, len(tokens) // MEAN_DOCUMENT), 0))
        sizes, first = np.diff(documents, append=len(tokens)), sentences.searchsorted(documents)
        counts = np.diff(first, append=len(sentences))
        found = {
            "tokens": cache.Values(tokens, sizes),
            "sentence_starts": cache.Values(sentences - np.repeat(documents, counts), counts),
            "first_bytes": cache.Values(np.full(len(documents), 4)),
        }
        writer.add(found, 4 * len(tokens))
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
    """A run over the synthetic cache."""
    made, layout = OBJECTIVES[objective]
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
        objective=made,
        data=config.DataConfig(
            folder, LENGTH, {"synthetic": config.TextFiles("-")}, layout=layout, processes=processes
        ),
        vocabulary=VOCABULARY,
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=steps, batch_size=BATCH),
    )


def rss_anon() -> int:
    """Anonymous resident memory of this process, bytes (Linux)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def cpu_seconds() -> float:
    """What this process and its workers have computed (Linux)."""
    total = time.process_time()
    for worker in multiprocessing.active_children():
        with open(f"/proc/{worker.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total


def num_tokens(batch: dict[str, np.ndarray]) -> float:
    """Real tokens of all rows that a model reads; where targets have positions of their own they are in the first."""
    encoder = batch["mask"].sum() if "mask" in batch else 0
    if "block_positions" in batch:
        return float(batch["prefix_lengths"].sum() + batch["target_weights"].sum())
    return float(encoder if "target_positions" in batch else encoder + batch["target_weights"].sum())


def ours(folder: str, objective: str, batches: int, processes: int) -> Iterator[float]:
    """The tokens of each batch of an objective."""
    yield from map(num_tokens, Reader(config.reader_config(make_run(folder, objective, batches, processes))).batches(0))


def theirs(folder: str, batches: int) -> Iterator[float]:
    """Those of Hugging Face's collator for masked language modelling, over the same blocks."""
    source = cache.open_source(folder, "synthetic")
    stream = layouts.Stream(source.splits["train"], IDS["eos"], IDS["pad"])
    tokens, _ = stream.read(0, min(batches * BATCH, stream.num_tokens // LENGTH) * LENGTH)
    tokenizer = collator.make_tokenizer(WORDS, IDS["pad"], IDS["mask"])
    yield from collator.batches(tokens.reshape(-1, LENGTH), list(IDS.values()), tokenizer, BATCH)


def measure(folder: str, objective: str, batches: int, processes: int) -> dict[str, float]:
    """Reads `batches` batches; the clocks start after the first eleven."""
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


def measure_apart(folder: str, objective: str, options: list[str], repeats: int) -> dict[str, float]:
    """Medians of measurements in fresh processes, which get these options of the command line."""
    command = [sys.executable, __file__, f"--folder={folder}", f"--objective={objective}", *options]
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
        print(objective, runs[-1], file=sys.stderr)
    return {key: round(statistics.median(run[key] for run in runs)) for key in runs[0]}


def compare(folder: str, options: list[str], repeats: int) -> dict[str, dict[str, float]]:
    """Ours and Hugging Face's in turn, medians, and how often as many tokens ours gives as theirs."""
    turns = [{name: measure_apart(folder, name, options, 1) for name in ("masked_lm", PEER)} for _ in range(repeats)]
    found = {
        name: {key: round(statistics.median(turn[name][key] for turn in turns)) for key in turns[0][name]}
        for name in turns[0]
    }
    both = found["masked_lm"], found[PEER]
    found["ratio"] = {key: round(both[0][key] / both[1][key], 2) for key in both[0] if key.endswith("second")}
    return found


def measure_all(num_tokens: int, names: list[str], options: list[str], repeats: int) -> dict[str, Any]:
    """Writes a cache and measures objectives on it; with masked LM, the peer too, or that it is not installed."""
    found, has_peer = {}, all(map(importlib.util.find_spec, ("torch", "transformers")))
    with tempfile.TemporaryDirectory() as folder:
        write_cache(folder, num_tokens)
        for name in names:
            if name == "masked_lm" and has_peer:
                found |= compare(folder, options, max(3, repeats))
            else:
                found[name] = measure_apart(folder, name, options, repeats)
    if "masked_lm" in names and not has_peer:
        found["peer"] = "not installed"
    return found


def main() -> None:
    """Parses the flags and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", choices=[*OBJECTIVES, PEER, "all"], default="causal")
    parser.add_argument("--tokens", type=float, default=50e6, help="of the cache")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2, help="that make ours; 0: threads of the reading one do")
    parser.add_argument("--repeats", type=int, default=1, help="fresh processes, of which the median counts")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.folder:
        print(json.dumps(measure(flags.folder, flags.objective, flags.batches, flags.processes)))
        return
    names = list(OBJECTIVES) if flags.objective == "all" else [flags.objective]
    options = [f"--batches={flags.batches}", f"--processes={flags.processes}"]
    result = {
        "benchmark": "input",
        "machine": machine.describe(),
        "settings": {
            "length": LENGTH,
            "batch": BATCH,
            "batches": flags.batches,
            "tokens": int(flags.tokens),
            "processes": flags.processes,
        },
        "speed": measure_all(int(flags.tokens), names, options, flags.repeats),
    }
    if flags.memory:
        options = ["--batches=2000", "--processes=0"]
        small, large = (measure_all(int(tokens), names[:1], options, 1)[names[0]] for tokens in (50e6, 1e9))
        growth = round(large["rss_anon_bytes"] / small["rss_anon_bytes"] - 1, 4)
        result["memory"] = {"small": small, "large": large, "growth": growth}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
