"""Tokens per second of `generate` on a CPU in float32, in turn with Hugging Face's transformers.

    python benchmarks/generate.py [--models gpt2 t5-small bart-base]

The same random weights, 8 prompts of 32 tokens, 128 new tokens for each, greedy and with 4 beams, on two cores; the
best of three rounds after one that compiles. Prints JSON: tokens of one answer per prompt over seconds, the ratio of
ours to theirs, and whether the answers are the same; and the number of programs that 19 batches of GPT-2 compile, with
longest prompts of 33 to 63 tokens, after a first one.
"""

import os
import tempfile
from typing import Any

import bench
import numpy as np

CORES, BATCH, PROMPT, NEW, REPEATS = 2, 8, 32, 128, 3
WAYS = {"greedy": {}, "beams": {"num_beams": 4}}
MODELS = ("gpt2", "t5-small", "bart-base")


def run(models: tuple[str, ...] = MODELS, ways: tuple[str, ...] = tuple(WAYS), new: int = NEW) -> dict:
    """Measures each model in each way.

    Args:
      new: number of new tokens for each prompt.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # XLA uses as many threads as there are cores.
    rates: dict[str, Any] = {}
    for name in models:
        theirs, ours = load(name)
        rates[name] = {way: compared(theirs, ours, new, WAYS[way]) for way in ways}
        if name == "gpt2":
            rates["compiled_after_the_first_batch"] = compiled(ours)
    return {"tokens_per_second": rates}


def load(name: str) -> tuple[Any, Any]:
    """Returns a model of a published size with random weights in both libraries, theirs first."""
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
    """Returns the tokens per second of both libraries on the same prompts."""
    import torch

    prompts = np.random.default_rng(0).integers(3, 30_000, (BATCH, PROMPT))
    options = options | {"max_new_tokens": new, "min_new_tokens": new}
    tokens, end = torch.tensor(prompts), theirs.config.eos_token_id
    first = 1 if theirs.config.is_encoder_decoder else PROMPT

    def by_theirs() -> list[list[int]]:
        with torch.no_grad():
            tokens_out = theirs.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, pad_token_id=end, **options
            )
        return tokens_out[:, first:].tolist()

    libraries = {"transformers": by_theirs, "plm_jax": lambda: ours.generate(prompts, **options)}
    answers = {library: run() for library, run in libraries.items()}
    seconds = bench.in_turn(libraries, REPEATS)
    bench.log(f"{options}: {seconds}")
    rates = {library: round(BATCH * new / min(times), 1) for library, times in seconds.items()}
    ratio = round(rates["plm_jax"] / rates["transformers"], 3)
    return rates | {"ratio": ratio, "same": answers["plm_jax"] == answers["transformers"]}


def compiled(ours: Any) -> int:
    """Returns the number of programs that 19 batches compile after a first one."""
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
    bench.main(run, models=MODELS, ways=tuple(WAYS))
