"""One training step of ours against a peer's: same shapes, same precision, in turn on the same machine.

    python benchmarks/train_step.py --model=gpt2_small --peer=torch

Each contestant is a process of its own that makes its model, warms up, and then does one step whenever it is told to,
so that no two run at once. Prints JSON: seconds a step (medians over the interleaved rounds) and ratios ours / peer.
The peers are Hugging Face's PyTorch models with fused AdamW, eager and compiled; BERT's twice: as they come, with the
head on every position (`torch_default`), and tuned, with the head on masked positions only. No dropout. Each runs as
its users run it: torch in the plain environment, ours with the memory settings of `launch/environment.sh` and
`pretrain`. `--same_memory` gives torch those settings too.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

# model: config file, size, rows, length, targets a row
MODELS = {
    "gpt2_small": ("gpt2.py", "small", 4, 256, 256),
    "gpt2_medium": ("gpt2.py", "medium", 2, 256, 256),
    "bert_base": ("bert.py", "base", 8, 128, 20),
    "bert_large": ("bert.py", "large", 4, 128, 20),
    "t5_base": ("t5.py", "base", 4, 256, 58),
    "t5_small": ("t5.py", "small", 8, 256, 58),
}
TUNED = ("torch_eager", "torch_compile")


def main() -> None:
    """Runs all contestants in turn, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2_small")
    parser.add_argument("--peer", choices=("torch", "none"), default="torch")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=0, help="rows of the batch; 0: the model's own")
    parser.add_argument("--length", type=int, default=0, help="tokens a row; 0: the model's own")
    parser.add_argument("--layers", type=int, default=0, help="for a quick try; 0: the model's own")
    parser.add_argument("--same_memory", action="store_true", help="torch with our memory settings")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        step = make_ours(arguments) if arguments.contestant == "plm_jax" else make_torch(arguments)
        serve(step)
    else:
        print(json.dumps(compare(arguments), indent=2))


def compare(arguments) -> dict:
    """The figures of all contestants."""
    peers = (*(["torch_default"] if arguments.model.startswith("bert") else []), *TUNED)
    names = ("plm_jax", *(peers if arguments.peer == "torch" else ()))
    workers = {name: start(name, name == "plm_jax" or arguments.same_memory) for name in names}
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
    rows, length, targets = shape(arguments)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "model": arguments.model,
        "rows": rows,
        "length": length,
        "targets": targets,
        "precision": "float32",
        "same_memory": arguments.same_memory,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "median_seconds": medians,
        "all_seconds": seconds,
        "ratio": {name: medians["plm_jax"] / medians[name] for name in names[1:]},
        "median_of_paired_ratios": {
            name: statistics.median(a / b for a, b in zip(seconds["plm_jax"], seconds[name], strict=True))
            for name in names[1:]
        },
    }


# What `launch/environment.sh` and `cli.keep_freed_memory` set.
MEMORY = ":".join(
    f"glibc.malloc.{setting}" for setting in ("hugetlb=1", "mmap_max=0", "trim_threshold=1000000000000", "arena_max=1")
)


def start(name: str, keeps_memory: bool) -> subprocess.Popen:
    """A contestant's process."""
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--contestant={name}"]
    environment = {**os.environ, "GLIBC_TUNABLES": MEMORY} if keeps_memory else None
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


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


def shape(arguments) -> tuple[int, int, int]:
    """Rows and length of the batch, targets a row."""
    _, _, rows, length, targets = MODELS[arguments.model]
    longer = arguments.length or length
    return arguments.rows or rows, longer, targets * longer // length


def run_settings(arguments):
    """The run of the config file; its model without dropout and pooler, unrolled."""
    import dataclasses

    from absl import flags
    from ml_collections import config_flags

    from plm_jax import config
    from plm_jax.models import settings

    file, size, *_ = MODELS[arguments.model]
    path = os.path.join(os.path.dirname(__file__), "..", "configs", f"{file}:{size}")
    flag = config_flags.DEFINE_config_file("config", path, sys_argv=[])
    flags.FLAGS(sys.argv[:1])
    run = config.from_dict(flag.value)
    fewer = settings.Stack(arguments.layers or run.model.stack.layers)
    changed = {"stack": fewer, "decoder_stack": fewer, "pooler": settings.NoHead()}
    changed = {name: value for name, value in changed.items() if hasattr(run.model, name)}
    model = dataclasses.replace(run.model, dropout=run.model.dropout.all_at(0.0), scan_layers=False, **changed)
    return dataclasses.replace(run, model=model)


def make_batch(arguments, kind: str, vocab_size: int) -> dict:
    """Random tokens as an objective of this kind would give them."""
    import numpy as np

    rows, length, targets = shape(arguments)
    rng = np.random.default_rng(0)

    def tokens(*size):
        return rng.integers(0, vocab_size, size, dtype=np.int32)

    batch = {"tokens": tokens(rows, length), "targets": tokens(rows, targets)}
    batch["target_weights"] = np.ones((rows, targets), np.float32)
    if kind == "masked_lm":
        positions = [np.sort(rng.choice(length, targets, replace=False)) for _ in range(rows)]
        batch["target_positions"] = np.stack(positions).astype(np.int32)
    if kind == "span_corruption":
        batch["decoder_tokens"] = tokens(rows, targets)
    return batch


def make_ours(arguments):
    """A function that does one step of ours and waits for it."""
    import functools

    import flax.linen as nn
    import jax
    import numpy as np

    from plm_jax import config
    from plm_jax.models import registry
    from plm_jax.training import losses, mesh, optimizers, schedules, state, step

    run = run_settings(arguments)
    model = registry.build(run.model)
    rate = schedules.learning_rate(config.Schedule("constant", 1e-4), 1)
    optimizer = optimizers.build(config.AdamW(weight_decay=0.1, clip_norm=0.0), rate)
    devices = mesh.build(config.Mesh(), jax.devices()[:1])
    root = state.key(0, "threefry")

    def fresh():
        return nn.unbox(state.new_state(state.init_params(model, root), optimizer))

    shardings = mesh.replicated(devices)
    current = step.over_mesh(fresh, devices, config.Mesh().rules, out_shardings=shardings)()
    loss = functools.partial(losses.LOSSES[run.objective.kind], model)
    train_step = step.jit_step(step.train_step(loss, optimizer, rate, root), devices, config.Mesh().rules, shardings)
    batch = make_batch(arguments, run.objective.kind, run.model.embedding.vocab_size)
    batch["digest"] = np.zeros((len(batch["tokens"]), 2), np.uint32)

    def do():
        nonlocal current
        current, metrics = train_step(current, batch)
        float(metrics["loss"])

    return do


def make_torch(arguments):
    """A function that does one step of Hugging Face's model on torch."""
    import torch

    run = run_settings(arguments)
    model, loss = torch_model(arguments, run)
    batch = make_batch(arguments, run.objective.kind, run.model.embedding.vocab_size)
    batch = {name: torch.from_numpy(value).long() for name, value in batch.items()}
    optimizer = torch.optim.AdamW(
        model.train().parameters(), lr=1e-4, weight_decay=0.1, fused=arguments.contestant != "torch_default"
    )
    if arguments.contestant == "torch_compile":
        loss = torch.compile(loss)

    def do():
        optimizer.zero_grad(set_to_none=True)
        value = loss(batch)
        value.backward()
        optimizer.step()
        value.item()

    return do


def torch_model(arguments, run):
    """Hugging Face's model of these settings and its loss as a function of the batch."""
    import torch
    import transformers

    model = run.model
    width, heads, layers = model.embedding.width, model.attention.heads, model.stack.layers
    if run.objective.kind == "causal":
        rates = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        settings = transformers.GPT2Config(
            vocab_size=model.embedding.vocab_size, n_embd=width, n_layer=layers, n_head=heads, use_cache=False, **rates
        )
        peer = transformers.GPT2LMHeadModel(settings)
        return peer, lambda batch: peer(input_ids=batch["tokens"], labels=batch["tokens"]).loss
    if run.objective.kind == "span_corruption":
        settings = transformers.T5Config(
            vocab_size=model.embedding.vocab_size,
            d_model=width,
            d_kv=model.attention.head_dim,
            d_ff=model.feed_forward.width,
            num_layers=layers,
            num_heads=heads,
            dropout_rate=0.0,
            use_cache=False,
        )
        peer = transformers.T5ForConditionalGeneration(settings)
        return (
            peer,
            lambda batch: (
                peer(input_ids=batch["tokens"], decoder_input_ids=batch["decoder_tokens"], labels=batch["targets"]).loss
            ),
        )
    settings = transformers.BertConfig(
        vocab_size=model.embedding.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=model.feed_forward.width,
        hidden_act="gelu_pytorch_tanh",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    peer = transformers.BertForMaskedLM(settings)

    def dense(batch):
        labels = torch.full_like(batch["tokens"], -100).scatter(1, batch["target_positions"], batch["targets"])
        return peer(input_ids=batch["tokens"], labels=labels).loss

    def gathered(batch):
        features = peer.bert(input_ids=batch["tokens"]).last_hidden_state
        at = batch["target_positions"][..., None].expand(-1, -1, width)
        logits = peer.cls(features.gather(1, at))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    return peer, dense if arguments.contestant == "torch_default" else gathered


if __name__ == "__main__":
    main()
