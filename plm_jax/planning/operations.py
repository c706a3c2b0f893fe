"""Time of each instruction of a compiled TPU program, from the compiler's cycle count and the bytes moved.

At best, an instruction takes the longest of three times:

- the time of its matrix products, padded to the size of the matrix unit, at the rate that large products reach
  according to the compiler's cycle counts;
- the time of its vector operations and stores, at the full rate;
- the time of its traffic with HBM.

A Pallas kernel takes the longer of two times: the time of its schedule, and the time of its traffic with HBM. The
compiler's own cycle count of an instruction is the worst case. This count is right for large products, and too large if
the instruction contains vector code.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.planning import hlo, kernels, products
from plm_jax.training import flops

KINDS = ("matmuls", "attention", "norms", "copies", "collectives", "head", "optimizer", "other")


class Core(NamedTuple):
    """Rates of the cores of a device.

    Attributes:
      flops_per_cycle: FLOPs of matrix products per cycle at the peak. The clock rate is the peak in FLOP/s divided by
        this number.
      vector_operations: 32-bit vector operations per cycle. Each core has four vector units of 8 × 128 lanes.
      product_share: share of the peak that a bfloat16 product of two 8192 × 8192 matrices reaches, according to the
        compiler's cycle count.
      links: number of links between a chip and other chips of its slice.
      unit: number of rows, and of columns, of a matrix unit.
    """

    flops_per_cycle: int
    vector_operations: int
    product_share: float
    links: int
    unit: int


# Keys are substrings of JAX's device_kind; the first match counts. v4 and TPU7x are missing because no published run on
# them was compared; the compiler's cycles give their products 93 % of 262,144 FLOPs per cycle and 81 % of 524,288.
CORES = {
    "v5 lite": Core(131_072, 4096, 0.88, 4, 128),
    "v5": Core(262_144, 8192, 0.90, 6, 128),
    "v6": Core(524_288, 4096, 0.70, 4, 256),
}
# Share of the nominal bandwidth of the network that collectives reach, and seconds until the first byte arrives:
# 45 of 50 GB/s per link of v5e, 90 of 100 of v5p, and about 1 µs per hop (Austin et al. 2025, "How to Scale Your
# Model", part 2).
NETWORK_SHARE, LATENCY = 0.9, 1e-6

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COST = re.compile(r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"(\d+)"')
_SOURCE = re.compile(r'op_name="([^"]*)"')
# Last part of the source of instructions that only move data.
_MOVES = re.compile(r"(^|/)(dynamic_\w+|squeeze|transpose|reshape|broadcast_in_dim|concatenate|slice|pad|copy)$")
_MOVING = {
    "copy",
    "copy-start",
    "slice-start",
    "slice",
    "dynamic-slice",
    "dynamic-update-slice",
    "transpose",
    "reshape",
}
_ARITHMETIC = {"add", "subtract", "multiply", "maximum", "minimum", "compare", "select", "and", "or", "xor", "negate"}
_ARITHMETIC |= {"shift-left", "shift-right-logical", "convert", "abs", "clamp", "reduce", "not"}
# Functions that take about this many operations of the vector units.
_FUNCTIONS = {"exponential", "tanh", "logistic", "log", "rsqrt", "sqrt", "divide", "power", "erf", "cosine", "sine"}
_OPERATIONS_OF_FUNCTION = 12


class OperationCost(NamedTuple):
    """Seconds for which an instruction occupies each unit of a device; different units work at the same time.

    Attributes:
      kind: one of KINDS.
      core: seconds of the core at best.
      core_at_worst: seconds of the core by the compiler's cycle count, but at least `core`.
      memory: seconds of traffic with HBM.
      network: seconds of transfers within the slice.
      slices: seconds of transfers between slices.
      product_flops: FLOPs of matrix products outside of Pallas kernels.
      is_kernel: whether the instruction is a Pallas kernel.
      is_asynchronous: whether the core continues with the next instruction meanwhile.
    """

    kind: str
    core: float = 0.0
    core_at_worst: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    slices: float = 0.0
    product_flops: float = 0.0
    is_kernel: bool = False
    is_asynchronous: bool = False


def core_of(device_kind: str) -> Core | None:
    """Returns the rates of a kind of device, or None if instructions of this kind of device cannot be timed."""
    return next((core for part, core in CORES.items() if part in device_kind), None)


class CostModel:
    """Costs of the instructions of a program on one device."""

    def __init__(
        self,
        module: hlo.HloModule,
        device_kind: str,
        slice_of: Sequence[int],
        *,
        drops: bool = False,
        rings: bool = True,
    ):
        """Prepares to time the instructions of a program.

        Args:
          module: compiled program.
          device_kind: name of a device with an entry in CORES.
          slice_of: index of each device's slice, in the order of the mesh.
          drops: whether attention weights are dropped.
          rings: whether, along each dimension of a slice, the last chip is linked to the first chip. If not,
            collectives other than permutes have half of the bandwidth.
        """
        chip, core = flops.chip(device_kind), core_of(device_kind)
        assert chip is not None and core is not None
        self.module, self.chip, self.core = module, chip, core
        self._device_kind, self._slice_of, self._drops, self._rings = device_kind, slice_of, drops, rings
        self._clock = chip.flops / core.flops_per_cycle
        self.costs: dict[tuple[str, str], OperationCost] = {}
        self._fusions: dict[str, tuple[float, float, float]] = {}

    def cost(self, step: hlo.Step) -> OperationCost:
        """Returns the cost of one run of an instruction that is not in a fusion."""
        key = step.computation, step.instruction.name
        if key not in self.costs:
            self.costs[key] = self._cost(step)
        return self.costs[key]

    def _cost(self, step: hlo.Step) -> OperationCost:
        instruction = step.instruction
        network, slices = self._transfers(step)
        memory = self.module.traffic(step) / self.chip.hbm_bandwidth
        if slices or instruction.opcode.endswith("-start") or instruction.name.startswith(hlo.STARTS):
            if network or slices:
                return OperationCost("collectives", network=network, slices=slices, is_asynchronous=True)
            return OperationCost("copies", memory=memory, is_asynchronous=True)
        product_flops, padded_flops, operations = self._arithmetic(step)
        kind = _kind(instruction, bool(product_flops))
        if instruction.target == "tpu_custom_call":
            seconds = self._kernel(instruction)
            return OperationCost(kind, seconds, seconds, memory, is_kernel=True)
        match = _CYCLES.search(instruction.rest)
        cycles = int(match[1]) if match else 0
        stored = sum(array.nbytes for array in instruction.arrays) if cycles else 0
        at_best = max(operations, stored) / self.core.vector_operations / self._clock
        at_best = max(at_best, padded_flops / (self.core.product_share * self.chip.flops))
        at_worst = max(cycles / self._clock, at_best)
        return OperationCost(kind, at_best, at_worst, memory, network, product_flops=product_flops)

    def _transfers(self, step: hlo.Step) -> tuple[float, float]:
        """Returns the seconds of the collectives that an instruction starts: within a slice, and between slices."""
        within = between = 0.0
        for collective in self.module.started(step):
            if hlo.crosses_slices(collective, self._slice_of):
                between += collective.sent / self.chip.slice_bandwidth
                continue
            bandwidth = self.chip.network_bandwidth * NETWORK_SHARE
            if step.instruction.opcode.startswith("collective-permute"):
                bandwidth /= self.core.links
            elif not self._rings:
                bandwidth /= 2
            within += LATENCY + collective.sent / bandwidth
        return within, between

    def _kernel(self, instruction: hlo.Instruction) -> float:
        cost = _COST.search(instruction.rest)
        product_flops, scores = (float(cost[1]), float(cost[2])) if cost else (0.0, 0.0)
        name = re.sub(r"\.\d+$", "", instruction.name)
        return kernels.flops_at_peak(self._device_kind, name, product_flops, scores, self._drops) / self.chip.flops

    def _arithmetic(self, step: hlo.Step) -> tuple[float, float, float]:
        """Counts the arithmetic of an instruction.

        Returns:
          Three counts: the FLOPs of matrix products; the FLOPs of the same products with padding to the size of the
          matrix unit; and the vector operations.
        """
        if step.instruction.opcode == "fusion":
            return self._fused(step.instruction.called[0])
        return self._count(step.instruction, self.module.instructions(step.computation))

    def _fused(self, computation: str) -> tuple[float, float, float]:
        if computation not in self._fusions:
            instructions = self.module.instructions(computation)
            counts = [
                self._fused(inner.called[0]) if inner.opcode == "fusion" else self._count(inner, instructions)
                for inner in instructions.values()
            ]
            product_flops, padded_flops, operations = map(sum, zip(*counts, strict=True))
            self._fusions[computation] = product_flops, padded_flops, operations
        return self._fusions[computation]

    def _count(
        self, instruction: hlo.Instruction, instructions: dict[str, hlo.Instruction]
    ) -> tuple[float, float, float]:
        if instruction.opcode == "convolution":
            product_flops = products.convolution_flops(instruction, instructions)
            return product_flops, product_flops / products.filled_share(instruction, instructions, self.core.unit), 0.0
        if instruction.opcode not in _ARITHMETIC | _FUNCTIONS:
            return 0.0, 0.0, 0.0
        operands = instruction.operands[:1] if instruction.opcode == "reduce" else []
        arrays = [array for name in operands if name in instructions for array in instructions[name].arrays]
        size = sum(array.size for array in arrays or instruction.arrays[:1])
        return 0.0, 0.0, float(size * (_OPERATIONS_OF_FUNCTION if instruction.opcode in _FUNCTIONS else 1))


def _kind(instruction: hlo.Instruction, is_product: bool) -> str:
    """Returns the kind of a synchronous instruction, based on its source in the traced program."""
    match = _SOURCE.search(instruction.rest)
    source = match[1] if match else ""
    in_stack = "/stack/" in source
    if instruction.target == "tpu_custom_call":
        return "attention"
    if instruction.opcode in hlo.COLLECTIVES:
        return "collectives"
    if not is_product and (not source or instruction.opcode in _MOVING or _MOVES.search(source)):
        return "copies"
    if in_stack and "/attention/" in source and not re.search("/attention/(query|key|value|out)/", source):
        return "attention"
    if re.search(r"norm/", source):
        return "norms"
    if not in_stack and "jvp(" not in source:
        return "optimizer"
    if not in_stack and "embed" not in source:
        return "head"
    return "matmuls" if is_product else "other"
