"""One training step of ours against a peer's: same shapes, same precision, in turn on the same machine.

    python benchmarks/train_step.py --model=gpt2_small --peer=torch

Each contestant is a process of its own that makes its model, warms up, and then does one step whenever it is told to,
so that no two run at once. Prints JSON: seconds a step (medians over the interleaved rounds) and ratios ours / peer.
The peers are Hugging Face's PyTorch model with its default loss and fused AdamW, eager and compiled. No dropout.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

# model: config file, size, rows, length
MODELS = {"gpt2_small": ("gpt2.py", "small", 4, 256), "gpt2_medium": ("gpt2.py", "medium", 2, 256)}
PEERS = {"torch": ("torch_eager", "torch_compile"), "none": ()}


def main() -> None:
    """Runs all contestants in turn, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2_small")
    parser.add_argument("--peer", choices=PEERS, default="torch")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=0, help="rows of the batch; 0: the model's own")
    parser.add_argument("--length", type=int, default=0, help="tokens a row; 0: the model's own")
    parser.add_argument("--layers", type=int, default=0, help="for a quick try; 0: the model's own")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        step = make_ours(arguments) if arguments.contestant == "plm_jax" else make_torch(arguments)
        serve(step)
    else:
        print(json.dumps(compare(arguments), indent=2))


def compare(arguments) -> dict:
    """The figures of all contestants."""
    names = ("plm_jax", *PEERS[arguments.peer])
    workers = {name: start(name) for name in names}
    seconds = {name: [] for name in names}
    for name, worker in workers.items():
        ask(name, worker)
    for number in range(arguments.pairs):
        for name, worker in workers.items():
            seconds[name].append(ask(name, worker))
        print(f"round {number + 1} of {arguments.pairs}", file=sys.stderr)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    rows, length = shape(arguments)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "model": arguments.model,
        "rows": rows,
        "length": length,
        "precision": "float32",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "median_seconds": medians,
        "all_seconds": seconds,
        "ratio": {name: medians["plm_jax"] / medians[name] for name in names[1:]},
        "median_of_paired_ratios": {
            name: statistics.median(a / b for a, b in zip(seconds["plm_jax"], seconds[name], strict=True))
            for name in names[1:]
        },
    }


def start(name: str) -> subprocess.Popen:
    """A contestant's process."""
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--contestant={name}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(name: str, worker: subprocess.Popen) -> float:
    """Has a contestant do a step; the seconds it took."""
    worker.stdin.write("step\n")
    worker.stdin.flush()
    reply = worker.stdout.readline()
    if not reply:
        sys.exit(f"contestant {name} died")
    return float(reply)


def serve(step) -> None:
    """Does a step for each line read and answers with its seconds; the first three, which compile, are its warm-up."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for _ in range(3):
        step()
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, file=replies, flush=True)


def shape(arguments) -> tuple[int, int]:
    """Rows and length of the batch."""
    _, _, rows, length = MODELS[arguments.model]
    return arguments.rows or rows, arguments.length or length


def model_settings(arguments):
    """The model of the config file, without dropout, unrolled, with its learned positions cut to the length."""
    import dataclasses

    from ml_collections import config_flags

    from plm_jax import config
    from plm_jax.models import settings

    file, size, _, _ = MODELS[arguments.model]
    path = os.path.join(os.path.dirname(__file__), "..", "configs", f"{file}:{size}")
    flag = config_flags.DEFINE_config_file("config", path, sys_argv=[])
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    model = config.from_dict(flag.value).model
    layers = arguments.layers or model.stack.layers
    stack = dataclasses.replace(model.stack, layers=layers)
    return dataclasses.replace(model, stack=stack, dropout=settings.Dropout(), scan_layers=False)


def make_ours(arguments):
    """A function that does one step of ours and waits for it."""
    import functools

    import flax.linen as nn
    import jax
    import numpy as np

    from plm_jax import cli, config
    from plm_jax.models.decoder import Decoder
    from plm_jax.training import losses, mesh, optimizers, schedules, state, step

    cli.keep_freed_memory()
    rows, length = shape(arguments)
    model = Decoder(model_settings(arguments))
    rate = schedules.learning_rate(config.Schedule("constant", 1e-4), 1)
    optimizer = optimizers.build(config.AdamW(weight_decay=0.1, clip_norm=0.0), rate)
    devices = mesh.build(config.Mesh(), jax.devices()[:1])
    root = state.key(0, "threefry")
    current = nn.unbox(jax.jit(lambda: state.new_state(state.init_params(model, root), optimizer))())
    loss = functools.partial(losses.causal, model)
    train_step = step.over_mesh(
        step.train_step(loss, optimizer, rate, root), devices, config.Mesh().rules, donate_argnums=0
    )
    tokens = np.random.default_rng(0).integers(0, model.model.embedding.vocab_size, (rows, length + 1), dtype=np.int32)
    batch = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "target_weights": np.ones((rows, length), np.float32),
        "digest": np.zeros((rows, 2), np.uint32),
    }

    def run():
        nonlocal current
        current, metrics = train_step(current, batch)
        float(metrics["loss"])

    return run


def make_torch(arguments):
    """A function that does one step of Hugging Face's model on torch."""
    import torch
    import transformers

    rows, length = shape(arguments)
    ours = model_settings(arguments)
    settings = transformers.GPT2Config(
        vocab_size=ours.embedding.vocab_size,
        n_embd=ours.embedding.width,
        n_layer=ours.stack.layers,
        n_head=ours.attention.heads,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if arguments.contestant == "torch_compile" else model
    tokens = torch.randint(0, settings.vocab_size, (rows, length))

    def run():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        loss.item()

    return run


if __name__ == "__main__":
    main()
