"""Tokens a second of `generate` on a CPU in float32, in turn with that of Hugging Face's transformers.

    python benchmarks/generate.py [--models=gpt2,t5-small,bart-base] [--output=F.json]

The same random weights, 8 prompts of 32 tokens, 128 new tokens to each, greedy and with 4 beams, on two cores; each
library's best of three, after one that compiles. Prints JSON: tokens of one answer a prompt over seconds, the ratio
of ours to theirs, and whether the answers are the same; and how many programs 19 batches of GPT-2 compile whose longest
prompts have 33 to 63 tokens, after a first one.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CORES, BATCH, PROMPT, NEW, REPEATS = 2, 8, 32, 128, 3
WAYS = {"greedy": {}, "beams": {"num_beams": 4}}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2,t5-small,bart-base", help="of those there are, with commas between")
    parser.add_argument("--ways", default="greedy,beams", help="of these, with commas between")
    parser.add_argument("--new", type=int, default=NEW, help="new tokens to each prompt")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # XLA takes as many threads as there are cores.
    import machine

    ways, found = given.ways.split(","), {}
    for name in given.models.split(","):
        theirs, ours = models(name)
        found[name] = {way: compared(theirs, ours, given.new, WAYS[way]) for way in ways}
        if name == "gpt2":
            found["compiled_after_the_first_batch"] = compiled(ours)
    print(json.dumps(machine.describe() | {"tokens_per_second": found}, indent=2))


def models(name: str) -> tuple[Any, Any]:
    """A model with random weights of a published size, in both libraries."""
    import torch
    import transformers

    import plm_jax

    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    config = {
        "gpt2": lambda: transformers.GPT2Config(),
        "t5-small": lambda: transformers.T5Config(decoder_start_token_id=0),
        "bart-base": lambda: transformers.BartConfig(
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
    }[name]()
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    theirs = auto.from_config(config).eval()
    theirs.generation_config.forced_eos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, plm_jax.load(folder)


def compared(theirs: Any, ours: Any, new: int, options: dict[str, Any]) -> dict[str, Any]:
    """Both libraries on the same prompts, one after the other."""
    import torch

    prompts = np.random.default_rng(0).integers(3, 30_000, (BATCH, PROMPT))
    options = options | {"max_new_tokens": new, "min_new_tokens": new}
    tokens, end = torch.tensor(prompts), theirs.config.eos_token_id
    first = 1 if theirs.config.is_encoder_decoder else PROMPT

    def by_theirs() -> list[list[int]]:
        with torch.no_grad():
            found = theirs.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, pad_token_id=end, **options
            )
        return found[:, first:].tolist()

    libraries = {"transformers": by_theirs, "plm_jax": lambda: ours.generate(prompts, **options)}
    answers = {library: run() for library, run in libraries.items()}
    seconds: dict[str, list[float]] = {library: [] for library in libraries}
    for _ in range(REPEATS):
        for library, run in libraries.items():
            seconds[library].append(timed(run))
            print(f"{library} {options}: {seconds[library][-1]:.2f} s", file=sys.stderr, flush=True)
    rates = {library: round(BATCH * new / min(of), 1) for library, of in seconds.items()}
    ratio = round(rates["plm_jax"] / rates["transformers"], 3)
    return rates | {"ratio": ratio, "same": answers["plm_jax"] == answers["transformers"]}


def timed(run: Callable[[], Any]) -> float:
    """Wall seconds of a call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compiled(ours: Any) -> int:
    """Programs that 19 batches compile after a first one."""
    import jax

    events: list[str] = []
    rng = np.random.default_rng(0)
    for number, longest in enumerate(np.linspace(33, 63, 20).astype(int)):
        rows = [rng.integers(3, 30_000, size).tolist() for size in [longest, *rng.integers(1, longest + 1, BATCH - 1)]]
        if number == 1:
            jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: events.append(event))
        ours.generate(rows, max_new_tokens=4)
    return sum("backend_compile" in event for event in events)


if __name__ == "__main__":
    main()
