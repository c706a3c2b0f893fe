"""A BART of English learns to read Spanish in two stages: what each stage changes, and whether sources are read.

    python benchmarks/translation.py --checkpoint=BART [--seeds=0,1,2] [--workdir=runs/translation]

Both stages of `configs/tasks/translation.py` from a BART that was pretrained here, such as the demo's, for each seed.
Prints JSON: which parameters each stage changed, and the loss of held-out pairs, nats a token,
given the right sources and given others' (each row has that of another row), with the p-value of a paired t-test over
seeds that the right ones are better.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import machine
import numpy as np

PAGE = "tasks/translation"


def main() -> None:
    """Trains both stages and prints what they did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="a BART that was pretrained here")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workdir", default="runs/translation")
    parser.add_argument("--steps", type=int, default=0, help="of each stage; 0: the page's epochs")
    given = parser.parse_args()
    seeds = {seed: trained(given, int(seed)) for seed in given.seeds.split(",")}
    print(json.dumps(machine.describe() | {"seeds": seeds} | verdict(list(seeds.values())), indent=2))


def trained(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What both stages of a seed change and reach."""
    import plm_jax

    source, found = given.checkpoint, {}
    for stage in ("1", "2"):
        workdir = os.path.join(given.workdir, f"seed-{seed}-stage-{stage}")
        flags = [f"--config.train.steps={given.steps}", "--config.train.epochs=None"] if given.steps else []
        command = [sys.executable, "-m", "plm_jax", "finetune", f"--config={PAGE}:{stage}", f"--checkpoint={source}"]
        subprocess.run([*command, f"--workdir={workdir}", f"--config.train.seed={seed}", *flags], check=True)
        before, after = plm_jax.load(source), plm_jax.load(workdir)
        found[f"stage_{stage}"] = {"changed": changed(before.params, after.params)} | losses(after)
        source = workdir
    return found


def changed(before: Any, after: Any) -> list[str] | str:
    """The names of the parameters that differ in a bit, of a layer each, or "all"; the new ones are not among them."""
    from plm_jax.training import trainable

    old, found, count = dict(trainable.named(before)), [], 0
    for name, leaf in trainable.named(after):
        if name not in old:
            continue
        layers = trainable.layers(name, leaf)
        pairs = [*zip(layers, old[name], leaf, strict=True)] if layers else [(name, old[name], leaf)]
        found += [own for own, one, other in pairs if not np.array_equal(np.asarray(one), np.asarray(other))]
        count += len(pairs)
    return found if len(found) < count else "all"


def losses(lm: Any, batch_size: int = 64) -> dict[str, float]:
    """The loss of the held-out pairs with the right sources and with others'."""
    import jax
    import optax

    from plm_jax import config
    from plm_jax.data.reader import Reader

    reader = Reader(config.reader_config(lm.run))
    batches = [dict(batch) for batch in reader.in_order("validation", batch_size, name="tatoeba")]
    rows = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0] if key != "digest"}
    real = rows["target_weights"].any(1)
    rows = {key: values[real] for key, values in rows.items()}
    # Each row has the source of the next: none keeps its own.
    others = rows | {key: np.roll(rows[key], 1, axis=0) for key in ("tokens", "mask")}

    @jax.jit
    def total(params, batch):
        logits = lm.model.apply({"params": params}, **lm.config.read(batch))
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (nll * batch["target_weights"]).sum()

    def mean(rows):
        parts = [
            {key: values[first : first + batch_size] for key, values in rows.items()}
            for first in range(0, len(rows["tokens"]), batch_size)
        ]
        return float(sum(total(lm.params, part) for part in parts) / rows["target_weights"].sum())

    return {"pairs": int(real.sum()), "loss": mean(rows), "loss_of_other_sources": mean(others)}


def verdict(seeds: list[dict[str, Any]]) -> dict[str, float]:
    """By stage the p-value that right sources are no better than others'."""
    from scipy import stats

    found = {}
    for stage in seeds[0] if len(seeds) > 1 else ():
        pairs = [(seed[stage]["loss"], seed[stage]["loss_of_other_sources"]) for seed in seeds]
        found[f"p_value_{stage}"] = float(stats.ttest_rel(*zip(*pairs, strict=True), alternative="less").pvalue)
    return found


if __name__ == "__main__":
    main()
