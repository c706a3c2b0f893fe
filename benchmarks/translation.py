"""An English BART that learns to read Spanish in two stages: changed parameters, and whether it uses its sources.

    python benchmarks/translation.py --checkpoint=BART [--seeds 0 1 2] [--workdir=runs/translation]

Trains both stages of `configs/tasks/translation.py` from a BART that was pretrained here, such as the demo's, for each
seed. Prints JSON: the parameters that each stage changed, and the loss of held-out pairs in nats per token with the
correct sources and with shuffled ones (each row has the source of another row), with the p-value of a paired t-test
over seeds that the correct ones are better.
"""

import os
from typing import Any

import bench
import numpy as np

PAGE = "tasks/translation"


def run(checkpoint: str, seeds: tuple[int, ...] = (0, 1, 2), workdir: str = "runs/translation", steps: int = 0) -> dict:
    """Trains both stages for each seed.

    Args:
      checkpoint: a BART that was pretrained here.
      steps: steps of each stage; 0 for the epochs of the config.
    """
    results = {str(seed): trained(checkpoint, workdir, seed, steps) for seed in seeds}
    return {"seeds": results} | verdict(list(results.values()))


def trained(checkpoint: str, folder: str, seed: int, steps: int) -> dict[str, Any]:
    """Returns the changed parameters and the losses of both stages of a seed."""
    import plm_jax

    stages = {}
    for stage in ("1", "2"):
        workdir = os.path.abspath(os.path.join(folder, f"seed-{seed}-stage-{stage}"))
        flags = [f"--config.train.steps={steps}", "--config.train.epochs=None"] if steps else []
        flags += [f"--config={PAGE}:{stage}", f"--checkpoint={checkpoint}", f"--workdir={workdir}"]
        bench.verb("finetune", *flags, f"--config.train.seed={seed}")
        before, after = plm_jax.load(checkpoint), plm_jax.load(workdir)
        stages[f"stage_{stage}"] = {"changed": changed(before.params, after.params)} | losses(after)
        checkpoint = workdir
    return stages


def changed(before: Any, after: Any) -> list[str] | str:
    """Returns the names of the parameters that differ, by layer, or "all"; new parameters do not count."""
    from plm_jax.training import trainable

    old, names, count = dict(trainable.named(before)), [], 0
    for name, leaf in trainable.named(after):
        if name not in old:
            continue
        layers = trainable.layers(name, leaf)
        pairs = [*zip(layers, old[name], leaf, strict=True)] if layers else [(name, old[name], leaf)]
        names += [layer for layer, one, other in pairs if not np.array_equal(np.asarray(one), np.asarray(other))]
        count += len(pairs)
    return names if len(names) < count else "all"


def losses(lm: Any, batch_size: int = 64) -> dict[str, float]:
    """Returns the loss of the held-out pairs with the correct and with shuffled sources."""
    import jax
    import optax

    from plm_jax import config
    from plm_jax.data.reader import Reader

    reader = Reader(config.reader_config(lm.run))
    batches = [dict(batch) for batch in reader.in_order("validation", batch_size, name="tatoeba")]
    rows = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0] if key != "digest"}
    real = rows["target_weights"].any(1)
    rows = {key: values[real] for key, values in rows.items()}
    # Each row gets the source of the next one.
    shuffled = rows | {key: np.roll(rows[key], 1, axis=0) for key in ("tokens", "mask")}

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

    return {"pairs": int(real.sum()), "loss": mean(rows), "loss_of_other_sources": mean(shuffled)}


def verdict(seeds: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the p-value of each stage that correct sources are no better than shuffled ones."""
    from scipy import stats

    p_values = {}
    for stage in seeds[0] if len(seeds) > 1 else ():
        pairs = [(seed[stage]["loss"], seed[stage]["loss_of_other_sources"]) for seed in seeds]
        p_values[f"p_value_{stage}"] = float(stats.ttest_rel(*zip(*pairs, strict=True), alternative="less").pvalue)
    return p_values


if __name__ == "__main__":
    bench.main(run)
