"""Cycles of the TPU's attention kernels, from the schedules that the compiler makes: no TPU needed, but libtpu.

    python benchmarks/kernel_bundles.py > benchmarks/results/kernel_bundles.json

Compiles a kernel for one tile of one row and counts the instruction bundles of its schedule; a core starts about one
per cycle. Waiting for memory and stalls of the hardware are not included. A program with masks has two branches, with
and without them: subtract the bundles of a program without masks to get the first. Splash attention of jax, for
comparison, computes one head at a time and has neither dropout nor bias. Prints JSON: the bundles of a tile, and per
1,024 scores of a head, by chip.
"""

import glob
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import bench

CHIPS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}
# v4 and v5p have the matrix units of v5e. Measured are tiles of each head_dim, and each further feature with 64.
HEAD_DIMS = (64, 80, 96, 128, 256)
FEATURES = {
    "plain": {},
    "dropout": {"dropout": 0.1},
    "broadcast": {"dropout": 0.1, "broadcast": True},
    "bias": {"bias": True},
    "causal": {"causal": True},
    "segments": {"segments": True},
    "relative": {"relative": ("key_vectors", "query_vectors")},
    "key_vectors": {"relative": ("key_vectors",)},
}


def run(chips: tuple[str, ...] = tuple(CHIPS), tiny: bool = False) -> dict:
    """Measures each chip in a new process, because libtpu fixes its dump folder when it is loaded.

    Args:
      tiny: one chip and one tile.
    """
    results = {}
    for chip in chips[: 1 if tiny else None]:
        with tempfile.TemporaryDirectory() as folder:
            flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
            environment = {"LIBTPU_INIT_ARGS": flags, "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "DUMP": folder}
            environment |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
            results[chip] = bench.fresh(of_chip, chip, tiny, env=os.environ | environment)
    return {"chips": results}


def of_chip(chip: str, tiny: bool) -> list[dict]:
    """Returns the figures of a chip."""
    cases = [(512, head_dim, "plain") for head_dim in HEAD_DIMS]
    cases += [(512, 64, feature) for feature in list(FEATURES)[1:]]
    cases += [(length, 64, "plain") for length in (128, 256, 1024)] + [(128, 64, "dropout")]
    cases = [(128, 128, "plain")] if tiny else cases
    rows = []
    for case in cases:
        rows.append(ours(chip, *case))
        bench.log(f"{chip}: {rows[-1]}")
    if not tiny:
        rows += [splash(chip, length, 64) for length in (512, 128)]
    return rows


def ours(chip: str, length: int, head_dim: int, feature: str) -> dict:
    """Returns the figures of one tile of this package's kernels."""
    import jax.numpy as jnp

    from plm_jax.models.kernels import tiles, tpu
    from plm_jax.models.kernels.context import RelativeScores

    options = FEATURES[feature]
    together = tiles.choose(64, 1, head_dim, length, length, biased=False).groups
    ids = jnp.zeros((1, length), jnp.int32) if "segments" in options else None

    def attention(query, key, value, bias, *vectors):
        names = options.get("relative", ())
        return tpu.flash(
            query,
            key,
            value,
            causal=options.get("causal", False),
            rate=options.get("dropout", 0.0),
            broadcast=options.get("broadcast", False),
            interpret=False,
            seed=jnp.zeros(2, jnp.uint32) if "dropout" in options else None,
            distance_bias=bias,
            relative=RelativeScores(**dict(zip(names, vectors, strict=True))) if names else None,
            query_ids=ids,
            key_ids=ids,
            offsets=jnp.zeros(4, jnp.int32),
            tile=tiles.Tile(length, length, together),
        )

    arrays: list[Any] = [((1, together, length, head_dim), jnp.bfloat16)] * 3
    arrays.append(((together, 2 * length - 1), jnp.float32) if "bias" in options else None)
    arrays += [((together, 2 * length - 1, head_dim), jnp.bfloat16)] * len(options.get("relative", ()))
    return described("flash", chip, length, head_dim, feature, together, compiled(chip, attention, arrays))


def splash(chip: str, length: int, head_dim: int) -> dict:
    """Returns the figures of one tile of jax's Splash attention."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu import splash_attention

    names = ("block_q", "block_q_dkv", "block_q_dq", "block_kv", "block_kv_compute", "block_kv_dkv")
    names += ("block_kv_dkv_compute", "block_kv_dq")
    mask = splash_attention.MultiHeadMask([splash_attention.FullMask((length, length))])
    sizes = splash_attention.BlockSizes(**dict.fromkeys(names, length))
    kernel = splash_attention.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)

    def attention(query, key, value, _):
        return kernel(query[0], key[0], value[0])[None]

    arrays = [*[((1, 1, length, head_dim), jnp.bfloat16)] * 3, None]
    return described("splash", chip, length, head_dim, "plain", 1, compiled(chip, attention, arrays))


def compiled(chip: str, attention, arrays) -> dict[str, int]:
    """Returns the bundles of each kernel of an attention and its gradients, by the kernels' names."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from plm_jax.planning.plan import slice_devices

    mesh = Mesh(np.array(slice_devices(CHIPS[chip])[:1]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec())
    shapes = [None if a is None else jax.ShapeDtypeStruct(*a, sharding=sharding) for a in arrays]

    def gradients(*arrays):
        out, back = jax.vjp(attention, *arrays)
        return out, back(out)

    folder = os.environ["DUMP"]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with jax.set_mesh(mesh):
        jax.jit(gradients).lower(*shapes).compile()
    bundles = {}
    for path in glob.glob(f"{folder}/*schedule-analysis_final_bundles.txt"):
        if name := re.search(r"flash_[a-z]+|splash_mha_[a-z]+", os.path.basename(path)):
            text = pathlib.Path(path).read_text()
            bundles[name[0]] = int(re.search(r"total scheduled bundles:\s+(\d+)", text)[1])
    return bundles


def described(kernel: str, chip: str, length: int, head_dim: int, feature: str, heads: int, bundles: dict) -> dict:
    """Returns a row of the result."""
    registers = heads * length * length / 1024
    return {
        "kernel": kernel,
        "chip": chip,
        "tile": length,
        "head_dim": head_dim,
        "feature": feature,
        "heads": heads,
        "bundles": bundles,
        "bundles_per_1024_scores": {name: round(count / registers, 2) for name, count in bundles.items()},
    }


if __name__ == "__main__":
    bench.main(run, chips=tuple(CHIPS))
