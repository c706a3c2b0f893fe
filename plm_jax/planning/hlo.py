"""Reads a compiled program's HLO text: its collectives and the bytes it moves, loops counted as often as they run."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
# A ring of permutes around the pieces of a matrix product is a collective that XLA hid in it; it names the loop so.
_RINGS = {"windowed_dot_general_body_ag": "all-gather", "windowed_dot_general_body_rs": "reduce-scatter"}
_CALLS = {"call", "call-start"}
_NO_TRAFFIC = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", *_CALLS}
_NO_TRAFFIC |= {"after-all", "opt-barrier", "partition-id", "replica-id"}
_BITS = {"pred": 8, "s4": 4, "u4": 4}

_COMPUTATION = re.compile(r"^(ENTRY )?%?(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(?P<name>\S+) = (?P<shape>.+?) (?P<opcode>[a-z][a-z0-9-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"\b(?:calls|body|\w+_computations?)=\{?((?:%[^\s,}]+,? ?)+)")


class Array(NamedTuple):
    """An array of a shape's text; `in_hbm` is false where its layout names another memory space."""

    dtype: str
    dimensions: tuple[int, ...]
    in_hbm: bool

    @property
    def nbytes(self) -> int:
        """Without the padding of tiles."""
        bits = _BITS.get(self.dtype) or int(re.search(r"\d+", self.dtype)[0])
        return math.prod(self.dimensions) * bits // 8


def _arrays(text: str) -> list[Array]:
    return [
        Array(m[1], tuple(int(d) for d in m[3].split(",") if d), not re.search(r"S\([1-9]\d*\)", m[4] or ""))
        for m in _ARRAY.finditer(text)
    ]


@dataclass(frozen=True)
class Instruction:
    """One line: `%name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return re.findall(r"%([^\s,()]+)", self.rest.partition(")")[0])

    @property
    def number(self) -> int:
        """The value of a constant, the place of a parameter."""
        return int(self.rest.partition(")")[0])

    @property
    def called(self) -> list[str]:
        """The computations that this one runs, a `while`'s condition left out."""
        names = [name for names in _CALLED.findall(self.rest) for name in re.findall(r"%([^\s,]+)", names)]
        # Of other instructions `to_apply` is a sum or a comparison of two numbers.
        return [*names, self.attribute("to_apply").removeprefix("%")] if self.opcode in _CALLS else names

    def attribute(self, name: str) -> str | None:
        """The value of `name=value`, up to the next comma."""
        found = re.search(rf"\b{name}=([^,\s]+)", self.rest)
        return found and found[1]


class Step(NamedTuple):
    """An instruction, the computation it stands in, how often it runs, and whether that is inside a fusion."""

    instruction: Instruction
    computation: str
    times: int
    fused: bool


class Collective(NamedTuple):
    """A collective of a program.

    Attributes:
      kind: one of COLLECTIVES; a ring of permutes counts as the collective that it stands for.
      arrays: what it yields on each device.
      sent: bytes that a device sends each time.
      times: how often it runs in a step.
      source: the operation of the traced program that it came from, with its loops (`…/stack/while/body/…`).
    """

    kind: str
    arrays: tuple[Array, ...]
    sent: float
    times: int
    source: str


class Module:
    """A program's text, taken apart."""

    def __init__(self, text: str):
        self._computations: dict[str, dict[str, Instruction]] = {}
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self._computations[header[2]] = {}
                self._entry = header[2] if header[1] else getattr(self, "_entry", None)
            elif found := _INSTRUCTION.match(line):
                current[found["name"]] = Instruction(**found.groupdict())

    def steps(self) -> Iterator[Step]:
        """Every instruction that the program reaches, in all the places it is reached from."""
        return self._walk(self._entry, 1, False)

    def _walk(self, name: str, times: int, fused: bool) -> Iterator[Step]:
        for instruction in self._computations[name].values():
            yield Step(instruction, name, times, fused)
            inner = times * self._trips(instruction) if instruction.opcode == "while" else times
            within = fused or instruction.opcode == "fusion"
            for called in instruction.called:
                yield from self._walk(called, inner, within)

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs that counts from 0 to a constant, by ones or (an unrolled ring) by another constant."""
        condition, body = (self._computations[loop.attribute(name).removeprefix("%")] for name in ("condition", "body"))
        compare = next(i for i in condition.values() if i.opcode == "compare" and i.attribute("direction") == "LT")
        counter, limit = (condition[name] for name in compare.operands)
        *_, results = (i for i in body.values() if i.opcode == "tuple")
        added = body[results.operands[int(counter.attribute("index"))]]
        increment = body[added.operands[1]]
        return -(-_constant(limit) // _constant(increment))

    def collectives(self) -> list[Collective]:
        """The program's collectives; the parts of an asynchronous one, which share a channel, are one."""
        found: dict[str, Collective] = {}
        for step in self.steps():
            kind = step.instruction.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            made = _collective(kind, step)
            channel = step.instruction.attribute("channel_id") or step.instruction.name
            if channel not in found or made.times > found[channel].times:
                found[channel] = made
        return list(found.values())

    def hbm_bytes(self) -> int:
        """Bytes that all instructions outside of fusions read from and write to a device's memory, an estimate."""
        return sum(s.times * self._traffic(s) for s in self.steps() if not s.fused)

    def _traffic(self, step: Step) -> int:
        instruction, here = step.instruction, self._computations[step.computation]
        if instruction.opcode in _NO_TRAFFIC or instruction.opcode.endswith("-done"):
            return 0
        operands = [here[name] for name in instruction.operands if name in here]
        if instruction.opcode.endswith("-start"):
            # To or from the fast memory: one side of it is in HBM.
            return sum(a.nbytes for operand in operands[:1] for a in _arrays(operand.shape))
        results = sum(a.nbytes for a in _arrays(instruction.shape) if a.in_hbm)
        if instruction.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * results
        inner = self._computations[instruction.called[0]] if instruction.opcode == "fusion" else {}
        sliced, updated = _slices(inner)
        read = 0
        for number, operand in enumerate(operands):
            for array in _arrays(operand.shape):
                if array.in_hbm:
                    read += sliced.get(number, array.nbytes)
        return read + (min(results, updated) if updated else results)


def _constant(instruction: Instruction) -> int:
    if instruction.opcode != "constant":
        raise ValueError(f"{instruction.name} was to be a constant: this compiler's loops are of another form")
    return instruction.number


def _slices(fusion: dict[str, Instruction]) -> tuple[dict[int, int], int]:
    """Of a fusion: the bytes of the parameters that are only sliced or updated in place, and those of the updates."""
    users: dict[str, list[Instruction]] = {}
    for instruction in fusion.values():
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)

    def size(instruction: Instruction) -> int:
        return sum(a.nbytes for a in _arrays(instruction.shape))

    sliced, updated = {}, 0
    for instruction in fusion.values():
        if instruction.opcode == "dynamic-update-slice":
            updated += size(fusion[instruction.operands[1]])
        if instruction.opcode != "parameter":
            continue
        of_parameter = users.get(instruction.name, [])
        if of_parameter and all(u.opcode == "dynamic-slice" for u in of_parameter):
            sliced[instruction.number] = sum(map(size, of_parameter))
        elif of_parameter and all(
            u.opcode == "dynamic-update-slice" and u.operands[0] == instruction.name for u in of_parameter
        ):
            sliced[instruction.number] = 0
    return sliced, updated


def _collective(kind: str, step: Step) -> Collective:
    instruction = step.instruction
    arrays = _arrays(instruction.shape)
    if instruction.opcode.endswith("-start"):
        arrays = arrays[1:2] if kind in ("all-gather", "collective-permute") else arrays
    group = _group_size(instruction.rest)
    nbytes = sum(array.nbytes for array in arrays)
    share = (group - 1) / group
    sent = {"all-reduce": 2 * share, "collective-permute": 1.0, "reduce-scatter": group - 1}.get(kind, share) * nbytes
    if kind == "collective-permute":
        kind = next((of for name, of in _RINGS.items() if name in step.computation), kind)
    elif kind == "all-reduce" and step.computation.startswith("all-reduce-scatter"):
        # The slice that follows it in this fusion makes it one.
        kind, sent = "reduce-scatter", share * nbytes
    source = re.search(r'op_name="([^"]*)"', instruction.rest)
    return Collective(kind, tuple(arrays), sent, step.times, source[1] if source else "")


def _group_size(text: str) -> int:
    """How many devices take part: `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['a'=2,'b'=2] {'b'}`."""
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(axis.split("=") for axis in named[1].split(","))
        return math.prod(int(sizes[axis]) for axis in named[2].split(","))
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return listed[1].count(",") + 1
    tiled = re.search(r"replica_groups=\[\d+,(\d+)\]", text)
    return int(tiled[1]) if tiled else 1
