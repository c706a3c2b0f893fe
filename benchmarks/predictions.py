"""Texts per second of `predict` and `embed`, compared with the same model in transformers on torch.

Both sides sort texts by length, in batches of the same size, in float32 on the same threads. They take turns in one
process, after a warm-up that compiles. Needs tests/peers.txt.
"""

import os
import pathlib
import statistics
import tempfile
from typing import Any

import bench
import numpy as np

BATCH, WORDS = 8, 512


def run(layers: int = 12, width: int = 768, texts: int = 8, rounds: int = 9, threads: int = 2) -> dict[str, Any]:
    """Compares the two on texts of 512 tokens and on eight times as many texts of mixed lengths.

    The speed is the median over the rounds of the seconds of torch divided by those of plm_jax in the same round.

    Args:
      layers: layers of the BERT.
      width: its width; heads have 64 dimensions.
      texts: number of texts in a set, a multiple of 8.
      rounds: number of turns.
      threads: threads of both sides.
    """
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true"
    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:threads]))
    import torch
    import transformers

    import plm_jax

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        _write(transformers, folder, layers, width)
        lm = plm_jax.load(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        results = {}
        for name, lengths in _lengths(texts).items():
            lines = [" ".join(f"w{i}" for i in _RNG.integers(0, WORDS, length)) for length in lengths]
            calls = {
                "predict": lambda lines=lines: lm.predict(lines, batch_size=BATCH),
                "predict_torch": lambda lines=lines: _torch(torch, tokenizer, model, lines, embeds=False),
                "embed": lambda lines=lines: lm.embed(lines, batch_size=BATCH),
                "embed_torch": lambda lines=lines: _torch(torch, tokenizer, model, lines, embeds=True),
            }
            outputs = {each: call() for each, call in calls.items()}  # Compiles.
            predicted = np.array([list(each.probabilities.values()) for each in outputs["predict"]])
            seconds = bench.in_turn(calls, rounds)
            ratios = {
                verb: [theirs / ours for ours, theirs in zip(seconds[verb], seconds[f"{verb}_torch"], strict=True)]
                for verb in ("predict", "embed")
            }
            results[name] = {
                "tokens": int(sum(lengths)),
                "seconds": seconds,
                "speed_predict": statistics.median(ratios["predict"]),
                "speed_embed": statistics.median(ratios["embed"]),
                "largest_difference": {
                    "probabilities": float(np.abs(predicted - outputs["predict_torch"]).max()),
                    "embeddings": float(np.abs(outputs["embed"] - outputs["embed_torch"]).max()),
                },
            }
            bench.log(f"{name}: {results[name]}")
        return {"speed relative to torch": results}


_RNG = np.random.default_rng(0)


def _lengths(texts: int) -> dict[str, list[int]]:
    """Returns the numbers of words of texts: rows of 512 tokens, and lengths from 8 to 510."""
    mixed = np.exp(_RNG.uniform(np.log(8), np.log(510), 8 * texts))
    return {"long": [510] * texts, "mixed": mixed.astype(int).tolist()}


def _write(transformers: Any, folder: str, layers: int, width: int) -> None:
    """Writes a random classifier with a vocabulary of whole words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS))]
    pathlib.Path(folder, "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(os.path.join(folder, "vocab.txt")).save_pretrained(folder)
    settings = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        num_labels=3,
    )
    transformers.BertForSequenceClassification(settings).save_pretrained(folder)
    pathlib.Path(folder, "vocab.txt").write_text("\n".join(words) + "\n")


def _torch(torch: Any, tokenizer: Any, model: Any, lines: list[str], embeds: bool) -> np.ndarray:
    """Returns probabilities or mean states of texts, in batches sorted by length."""
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    results: dict[int, np.ndarray] = {}
    with torch.inference_mode():
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            inputs = tokenizer([lines[i] for i in batch], padding=True, truncation=True, return_tensors="pt")
            if embeds:
                states = model.base_model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][..., None]
                rows = (states * mask).sum(1) / mask.sum(1)
            else:
                rows = model(**inputs).logits.softmax(-1)
            results |= zip(batch, rows.numpy(), strict=True)
    return np.stack([results[i] for i in range(len(lines))])


if __name__ == "__main__":
    bench.main(run)
