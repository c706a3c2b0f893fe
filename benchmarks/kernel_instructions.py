"""Instructions of the GPU's attention kernels, from the programs that the compiler makes: no GPU needed.

    pip install '.[gpu-plan]' nvidia-cuda-nvdisasm
    python benchmarks/kernel_instructions.py > benchmarks/results/kernel_instructions.json

Compiles the kernels for an H100 and counts the instructions of the loop over tiles, masks excluded, per score of a
thread. A warp issues at most one per cycle; waiting for memory and stalls of the hardware are not included. Prints
JSON: instructions of a loop and per score, registers of a thread and bytes that are spilled from them, by kernel.
"""

import os
import pathlib
import re
import subprocess
import tempfile
from importlib import metadata

import bench

HEAD_DIMS = (64, 128)
RATES = {"plain": 0.0, "dropout": 0.1}
# Threads of a warp.
WARP = 32


def run(tiny: bool = False) -> dict:
    """Measures each case in a new process, because XLA fixes its dump folder when it is loaded.

    Args:
      tiny: one case.
    """
    rows = []
    for head_dim in HEAD_DIMS[: 1 if tiny else None]:
        for feature in list(RATES)[: 1 if tiny else None]:
            with tempfile.TemporaryDirectory() as folder:
                environment = {"XLA_FLAGS": f"--xla_dump_to={folder}", "JAX_PLATFORMS": "cpu", "DUMP": folder}
                environment |= {"CUDA_VISIBLE_DEVICES": "-1"}
                rows += bench.fresh(of_case, head_dim, feature, env=os.environ | environment)
    return {"kernels": rows}


def of_case(head_dim: int, feature: str) -> list[dict]:
    """Returns the figures of the three kernels of an attention and its gradients."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from plm_jax.models.kernels import gpu, tiles
    from plm_jax.planning.plan import slice_devices

    mesh = Mesh(np.array(slice_devices("gpu:h100:1")), ("data",))
    array = jax.ShapeDtypeStruct((1, 2, 1024, head_dim), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec()))
    seed, offsets = jnp.zeros(2, jnp.uint32), jnp.zeros(4, jnp.int32)
    options = {"causal": False, "rate": RATES[feature], "broadcast": False, "interpret": False}

    def gradients(query, key, value):
        def attention(query, key, value):
            return gpu.flash(query, key, value, **options, seed=seed, offsets=offsets)

        out, back = jax.vjp(attention, query, key, value)
        return out, back(out)

    with jax.set_mesh(mesh):
        jax.jit(gradients).lower(array, array, array).compile()
    rows = []
    for path in pathlib.Path(os.environ["DUMP"]).glob("*.ptx"):
        if name := re.search(r"\.entry (triton_\w+)", path.read_text()):
            tile = tiles.on_gpu(name[1], head_dim)
            scores = tile.queries * tile.keys / (WARP * tile.warps)
            figures = counted(path)
            per_score = round(figures["instructions"] / scores, 2)
            case = {"kernel": name[1], "head_dim": head_dim, "feature": feature, "tile": tile._asdict()}
            rows.append(case | figures | {"instructions_per_score": per_score})
    return sorted(rows, key=lambda row: row["kernel"])


def counted(path: pathlib.Path) -> dict[str, int]:
    """Returns the instructions of the longest loop of a program in PTX, and its registers."""
    program = path.with_suffix(".cubin")
    report = subprocess.run(
        [tool("nvidia-cuda-nvcc", "ptxas"), "-arch=sm_90a", "-v", path, "-o", program],
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    disassembler = tool("nvidia-cuda-nvdisasm", "nvdisasm")
    text = subprocess.run([disassembler, program], check=True, capture_output=True, text=True).stdout
    labels, instructions, longest = {}, 0, 0
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L\w+):", line):
            labels[label[1]] = instructions
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions += 1
            jump = re.search(r"\bBRA\b.*?(\.L\w+)", instruction[1])
            if jump and jump[1] in labels:
                longest = max(longest, instructions - labels[jump[1]])
    registers, spilled = (re.search(pattern, report) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill st"))
    return {"instructions": longest, "registers": int(registers[1]), "spilled_bytes": int(spilled[1])}


def tool(package: str, name: str) -> str:
    """Returns the path of a program of a package."""
    return str(next(file.locate() for file in metadata.files(package) or () if file.name == name))


if __name__ == "__main__":
    bench.main(run)
