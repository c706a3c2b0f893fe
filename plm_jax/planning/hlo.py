"""Parser of a compiled program's HLO text: collectives and bytes moved, multiplied by the trip counts of loops."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
# Form of a collective: concurrent with other work; in chunks, each sent while another is multiplied; or blocking.
FORMS = ("asynchronous", "ring", "synchronous")
# Names of loops in which XLA decomposed a collective into a ring of permutes between the chunks of a matrix product.
_RINGS = {"windowed_dot_general_body_ag": "all-gather", "windowed_dot_general_body_rs": "reduce-scatter"}
_CALLS = {"call", "call-start"}
# An asynchronous collective is a fusion that starts it, fusions of other work that continue it, and one that ends it.
STARTS, CONTINUES, ENDS = "async-collective-start", "async_collective_fusion", "async-collective-done"
_NO_TRAFFIC = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", *_CALLS}
_NO_TRAFFIC |= {"after-all", "opt-barrier", "partition-id", "replica-id", "async-start"}
# Custom calls that only annotate their operands or place an array.
_NO_TRAFFIC_TARGETS = {"AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast"}
_NO_TRAFFIC_TARGETS |= {"PrepareAsyncCallStart", "PrepareAsyncCallDone"}
_BITS = {"pred": 8, "s4": 4, "u4": 4}

_COMPUTATION = re.compile(r"^(ENTRY )?%?(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(?P<name>\S+) = (?P<shape>.+?) (?P<opcode>[a-z][a-z0-9-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"\b(?:calls|body|\w+_computations?)=\{?((?:%[^\s,}]+,? ?)+)")

_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(((?:[^()]|\([^()]*\))*)\))? \{([^}:]*)\}")


class Array(NamedTuple):
    """Array parsed from a shape.

    Attributes:
      dtype: HLO's name of the dtype.
      dimensions: length of each dimension.
      in_hbm: whether the array is in HBM; False if the layout names another memory space.
    """

    dtype: str
    dimensions: tuple[int, ...]
    in_hbm: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        """Number of bytes, without the padding of tiles."""
        bits = _BITS.get(self.dtype) or int(re.sub(r"\D*(\d+).*", r"\1", self.dtype))
        return math.prod(self.dimensions) * bits // 8


def _arrays(text: str) -> list[Array]:
    return [
        Array(m[1], tuple(int(d) for d in m[3].split(",") if d), not re.search(r"S\([1-9]\d*\)", m[4] or ""))
        for m in _ARRAY.finditer(text)
    ]


@dataclass(frozen=True)
class Instruction:
    """Instruction parsed from a line `%name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([^\s,()]+)", self.rest.partition(")")[0])

    @property
    def number(self) -> int:
        """Value if the instruction is a constant; index if the instruction is a parameter."""
        return int(self.rest.partition(")")[0])

    @property
    def elements(self) -> list[str]:
        """Shapes of the elements if the result is a tuple; otherwise only the shape of the result."""
        if not self.shape.startswith("("):
            return [self.shape]
        depth, elements = 0, [""]
        for letter in self.shape[1:-1]:
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                elements.append("")
            else:
                elements[-1] += letter
        return elements

    @property
    def arrays(self) -> list[Array]:
        """Arrays in the result."""
        return _arrays(self.shape)

    @property
    def target(self) -> str | None:
        """Target of a custom call; None for other instructions."""
        match = re.search(r'custom_call_target="([^"]*)"', self.rest)
        return match and match[1]

    @property
    def called(self) -> list[str]:
        """Computations that the instruction runs, except conditions of `while` and scalar functions of reductions."""
        names = [name for names in _CALLED.findall(self.rest) for name in re.findall(r"%([^\s,]+)", names)]
        # In other instructions `to_apply` is a sum or a comparison of two numbers.
        return [*names, str(self.attribute("to_apply")).removeprefix("%")] if self.opcode in _CALLS else names

    def attribute(self, name: str) -> str | None:
        """Returns the value of `name=value`, up to the next comma or space; None if there is no such attribute."""
        match = re.search(rf"\b{name}=([^,\s]+)", self.rest)
        return match and match[1]


class Step(NamedTuple):
    """Instruction that is reached through one call of its computation.

    Attributes:
      instruction: the instruction.
      computation: name of the computation that contains the instruction.
      times: number of times that the instruction runs.
      caller: instruction that calls the computation; None for the entry computation.
      fused: whether the instruction is in a fusion.
    """

    instruction: Instruction
    computation: str
    times: int
    caller: Instruction | None
    fused: bool


class Collective(NamedTuple):
    """Collective of a program.

    Attributes:
      kind: one of COLLECTIVES. A ring of permutes has the kind of the collective that it implements.
      form: one of FORMS.
      arrays: results of the collective on each device.
      sent: bytes that a device sends each time the collective runs.
      times: number of times that the collective starts in a step.
      groups: devices that communicate: the first group of devices or, for a permute, all pairs of devices. Empty for
        transfers between slices.
      source: operation of the traced program from which the collective was compiled, including the loops around the
        operation (`…/stack/while/body/…`); empty if unknown.
    """

    kind: str
    form: str
    arrays: tuple[Array, ...]
    sent: float
    times: int
    groups: tuple[tuple[int, ...], ...]
    source: str


class HloModule:
    """Parsed text of a program."""

    def __init__(self, text: str):
        self._computations: dict[str, dict[str, Instruction]] = {}
        # The header contains the number of devices if there are several.
        match = re.search(r"^HloModule .*\bnum_partitions=(\d+)", text, re.MULTILINE)
        self._devices = int(match[1]) if match else 1
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self._computations[header[2]] = {}
                self._entry = header[2] if header[1] else getattr(self, "_entry", "")
            elif match := _INSTRUCTION.match(line):
                current[match["name"]] = Instruction(**match.groupdict())

    @property
    def entry(self) -> str:
        """Name of the computation that the program begins with."""
        return self._entry

    def instructions(self, computation: str) -> dict[str, Instruction]:
        """Returns the instructions of a computation by name, in the order in which they run."""
        return self._computations[computation]

    def steps(self) -> Iterator[Step]:
        """Yields every instruction that the program reaches, once for each call of its computation."""
        return self._walk(self._entry, 1, None, False)

    def _walk(self, name: str, times: int, caller: Instruction | None, fused: bool) -> Iterator[Step]:
        for instruction in self._computations[name].values():
            yield Step(instruction, name, times, caller, fused)
            inner = times * self.trips(instruction) if instruction.opcode == "while" else times
            within = fused or instruction.opcode == "fusion"
            for called in instruction.called:
                yield from self._walk(called, inner, instruction, within)

    def trips(self, loop: Instruction) -> int:
        """Returns the trip count of a loop.

        This is the number that the compiler notes. Without such a note, the loop must count from 0 to a constant, with
        a constant increment.

        Raises:
          ValueError: there is no note, and the limit or the increment is not a constant.
        """
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(known[1])
        condition, body = (
            self._computations[str(loop.attribute(name)).removeprefix("%")] for name in ("condition", "body")
        )
        computed = (self._computed(condition, i) for i in condition.values())
        counter, limit = next(
            comparison for i, comparison in computed if i.opcode == "compare" and i.attribute("direction") == "LT"
        )
        *_, results = (i for i in body.values() if i.opcode == "tuple")
        _, (_, increment) = self._computed(body, body[results.operands[int(str(counter.attribute("index")))]])
        return -(-_constant(limit) // _constant(increment))

    def _computed(
        self, computation: dict[str, Instruction], instruction: Instruction
    ) -> tuple[Instruction, list[Instruction]]:
        """Returns the operation that computes the value of an instruction, and the operands of this operation.

        Copies are followed to the copied instruction. The operation of a fusion is the root of the fusion. On GPUs, the
        comparison and the increment of a loop are in fusions.
        """
        while instruction.opcode == "copy":
            instruction = computation[instruction.operands[0]]
        operands = [computation[name] for name in instruction.operands if name in computation]
        if instruction.opcode != "fusion":
            return instruction, operands
        inner = self._computations[instruction.called[0]]
        *_, root = inner.values()
        root_operands = [inner[name] for name in root.operands]
        return root, [operands[int(i.rest.partition(")")[0])] if i.opcode == "parameter" else i for i in root_operands]

    def collectives(self) -> list[Collective]:
        """Returns the collectives that the program reaches, including transfers between slices.

        The parts of an asynchronous collective share a channel. Only the part that starts the collective is returned.
        """
        parts: dict[str, list[Step]] = {}
        for step in self.steps():
            if step.instruction.opcode.removesuffix("-start") in COLLECTIVES or _between_slices(step.instruction):
                channel = step.instruction.attribute("channel_id") or step.instruction.name
                parts.setdefault(channel, []).append(step)
        collectives = []
        for steps in parts.values():
            starts = [step for step in steps if not _is_continuation(step)] or [max(steps, key=lambda step: step.times)]
            collectives += [
                _transfer(step) if _between_slices(step.instruction) else _collective(step, self._devices)
                for step in starts
            ]
        return collectives

    def started(self, step: Step) -> list[Collective]:
        """Returns the collectives that an instruction starts or performs each time the instruction runs.

        The instruction must not be in a fusion.
        """
        instruction = step.instruction
        steps = [step]
        if instruction.opcode in ("fusion", "call-start", "async-start"):
            steps = [s for called in instruction.called for s in self._walk(called, 1, instruction, True)]
        collectives = []
        for inner in steps:
            if _between_slices(inner.instruction):
                collectives.append(_transfer(inner))
            elif inner.instruction.opcode.removesuffix("-start") in COLLECTIVES and not _is_continuation(inner):
                collectives.append(_collective(inner, self._devices))
        return collectives

    def hbm_bytes(self) -> int:
        """Estimates the bytes that all instructions outside of fusions read from and write to a device's memory."""
        return sum(s.times * self.traffic(s) for s in self.steps() if not s.fused)

    def traffic(self, step: Step) -> int:
        """Estimates the bytes that one run of an instruction reads from and writes to a device's memory.

        The traffic of a loop, a branch or a call is 0; the instructions that it runs have their own traffic.
        """
        instruction = step.instruction
        if instruction.opcode in _NO_TRAFFIC or instruction.opcode.endswith("-done"):
            return 0
        if instruction.name.startswith(ENDS):
            return 0
        if instruction.opcode == "custom-call" and instruction.target in _NO_TRAFFIC_TARGETS:
            return 0
        if instruction.opcode.endswith("-start"):
            moved = _moved(instruction)
            return sum(min(array.nbytes, moved) for array in _in_hbm(" ".join(instruction.elements[:2])))
        if instruction.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * sum(array.nbytes for array in _in_hbm(instruction.shape))
        operands, results = self._touched(step)
        if instruction.opcode != "fusion":
            return sum(a.nbytes for operand in operands.values() for a in operand) + sum(a.nbytes for a in results)
        sliced, buffers, updates = self._slices(instruction.called[0])
        read = sum(sliced.get(number, a.nbytes) for number, operand in operands.items() for a in operand)
        return read + max(sum(a.nbytes for a in results) - buffers, 0) + updates

    def _touched(self, step: Step) -> tuple[dict[int, list[Array]], list[Array]]:
        """Returns a pair: the arrays in HBM of each operand, by index of the operand; and the result's arrays in HBM.

        A fusion that continues an asynchronous collective passes on the collective's arrays without reading them, so
        these arrays are left out.
        """
        instruction, here = step.instruction, self._computations[step.computation]
        operands = dict(enumerate(here[name].shape for name in instruction.operands if name in here))
        results = dict(enumerate(instruction.elements))
        if instruction.name.startswith(STARTS) or any(c.startswith(CONTINUES) for c in instruction.called):
            for result, operand in re.findall(r"\{(\d+)\}: \((\d+), \{\}\)", instruction.rest):
                results.pop(int(result))
                if not instruction.name.startswith(STARTS):  # The start reads the arrays to send.
                    operands.pop(int(operand), None)
        return {number: _in_hbm(shape) for number, shape in operands.items()}, _in_hbm(" ".join(results.values()))

    def _slices(self, name: str) -> tuple[dict[int, int], int, int]:
        """Returns the memory traffic of slices and in-place updates in a fusion.

        Returns:
          Three results. The first is a dict with the number of bytes read from each parameter, by index of the
          parameter; it contains only parameters that are sliced or updated in place, and never read as a whole. The
          second is the size in bytes of all arrays in HBM that are updated in place. The third is the size in bytes of
          all updates.
        """
        fusion = self._computations[name]
        users: dict[str, list[Instruction]] = {}
        for instruction in fusion.values():
            for operand in instruction.operands:
                users.setdefault(operand, []).append(instruction)

        def read(name: str) -> int | None:
            """Returns the number of bytes that instructions read from an array through slices.

            Returns None if an instruction reads the whole array, or if the array is an output of the computation.
            """
            total = 0
            if name not in users:
                return None
            for user in users[name]:
                if user.opcode in ("bitcast", "reshape"):
                    nbytes = read(user.name)
                elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                    nbytes = _nbytes(user)
                elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                    nbytes = 0
                elif user.opcode == "fusion":
                    inner, _, _ = self._slices(user.called[0])
                    nbytes = inner.get(user.operands.index(name))
                else:
                    nbytes = None
                if nbytes is None:
                    return None
                total += nbytes
            return total

        sliced, buffers, updates = {}, 0, 0
        for instruction in fusion.values():
            if instruction.opcode == "parameter":
                if (nbytes := read(instruction.name)) is not None:
                    sliced[instruction.number] = min(nbytes, _nbytes(instruction))
            elif instruction.opcode == "dynamic-update-slice":
                buffers += sum(array.nbytes for array in _in_hbm(instruction.shape))
                updates += min(_nbytes(fusion[instruction.operands[1]]), _nbytes(instruction))
            elif instruction.opcode == "fusion":
                _, more_buffers, more_updates = self._slices(instruction.called[0])
                buffers, updates = buffers + more_buffers, updates + more_updates
        return sliced, buffers, updates


def crosses_slices(collective: Collective, slice_of: Sequence[int]) -> bool:
    """Returns whether a collective involves devices of several slices.

    Args:
      slice_of: index of each device's slice, in the order of the mesh.
    """
    return not collective.groups or any(len({slice_of[device] for device in group}) > 1 for group in collective.groups)


def _constant(instruction: Instruction) -> int:
    if instruction.opcode != "constant":
        raise ValueError(f"{instruction.name} is not a constant: this compiler writes loops in another form")
    return instruction.number


def _nbytes(instruction: Instruction) -> int:
    return sum(array.nbytes for array in _arrays(instruction.shape))


def _in_hbm(shape: str) -> list[Array]:
    return [array for array in _arrays(shape) if array.in_hbm]


def _moved(start: Instruction) -> int:
    """Returns the number of bytes that an asynchronous copy, slice or permute moves.

    This is the size of the source or of the destination, whichever is smaller.
    """
    return min(sum(array.nbytes for array in _arrays(element)) for element in start.elements[:2])


def _is_continuation(step: Step) -> bool:
    """Returns whether a step continues or ends a collective that an earlier fusion started."""
    ends = step.caller is not None and step.caller.name.startswith(ENDS)
    return ends or step.computation.startswith(CONTINUES)


def _between_slices(instruction: Instruction) -> bool:
    """Returns whether an instruction passes an array to the host for an exchange with other TPU slices."""
    return instruction.opcode == "send" and "_xla_megascale_transfer_type" in instruction.rest


def _transfer(step: Step) -> Collective:
    """Returns the transfer between slices that a step starts.

    In `_xla_megascale_target="{1,2}x{0:7}"`, the first braces list the slices.
    """
    instruction = step.instruction
    (kind,) = re.findall(r'_xla_megascale_transfer_type="(\w+)"', instruction.rest)
    (targets,) = re.findall(r'_xla_megascale_target="\{([\d,]+)\}', instruction.rest)
    kind, slices = kind.lower().replace("_", "-"), targets.count(",") + 1
    arrays = tuple(_arrays(instruction.elements[0]))
    share = {"all-reduce": 2 * (slices - 1) / slices, "all-gather": slices - 1, "one-to-one": 1.0}
    sent = share.get(kind, (slices - 1) / slices) * sum(array.nbytes for array in arrays)
    kind = kind if kind in COLLECTIVES else "collective-permute"
    return Collective(kind, "asynchronous", arrays, sent, step.times, (), "")


def _collective(step: Step, devices: int) -> Collective:
    instruction, caller = step.instruction, step.caller
    kind, starts = instruction.opcode.removesuffix("-start"), instruction.opcode.endswith("-start")
    # Most starts yield (operands, results, …); an all-reduce start yields its results only.
    arrays = _arrays(instruction.elements[1] if starts and kind != "all-reduce" else instruction.shape)
    groups = _groups(instruction.rest, devices)
    group, nbytes = max(len(groups[0]), 1), sum(array.nbytes for array in arrays)
    share = (group - 1) / group
    sent = {"all-reduce": 2 * share, "collective-permute": 1.0, "reduce-scatter": group - 1}.get(kind, share) * nbytes
    is_asynchronous = starts or (
        caller is not None and (caller.opcode in ("call-start", "async-start") or caller.name.startswith(STARTS))
    )
    form = "asynchronous" if is_asynchronous else "synchronous"
    if kind == "collective-permute":
        ring_kind = next((kind_of_ring for name, kind_of_ring in _RINGS.items() if name in step.computation), None)
        kind, form = (ring_kind, "ring") if ring_kind else (kind, form)
    elif kind == "all-reduce" and step.computation.startswith("all-reduce-scatter"):
        # The slice that follows in this fusion turns it into a reduce-scatter.
        kind, sent = "reduce-scatter", share * nbytes
    source = re.search(r'op_name="([^"]*)"', instruction.rest)
    return Collective(kind, form, tuple(arrays), sent, step.times, groups, source[1] if source else "")


def _groups(text: str, devices: int) -> tuple[tuple[int, ...], ...]:
    """Returns the first group of devices of a collective or, for a permute, all pairs of devices.

    Groups are written as `{{0,1},{2,3}}`, `[2,2]<=[2,2]T(1,0)` or `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}`.
    If all devices form one group, the groups are written as `{}` or missing.
    """
    if pairs := re.search(r"source_target_pairs=\{(\{[\d,{}]*\})\}", text):
        return tuple(_numbers(pair) for pair in re.findall(r"\{([\d,]+)\}", pairs[1]))
    if named := _NAMED.search(text):
        sizes = {name: int(size) for name, size in (axis.split("=") for axis in named[1].split(","))}
        ids = _device_ids(named[2] or f"[{math.prod(sizes.values())}]").reshape(*sizes.values())
        axes = named[3].split(",")
        first = ids[tuple(slice(None) if name in axes else 0 for name in sizes)]
        return (tuple(first.ravel().tolist()),)
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return (_numbers(listed[1]),)
    if tiled := re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text):
        return (tuple(_device_ids(tiled[3])[: int(tiled[2])].tolist()),)
    if unknown := re.search(r"\b(?:replica_groups|source_target_pairs)=(?!\{\}).*", text):
        raise ValueError(f"this compiler writes groups of devices in another form: {unknown[0]}")
    return (tuple(range(devices)),)


def _device_ids(text: str) -> np.ndarray:
    """Returns the ids of devices in the order that `text` describes.

    The text is a list of ids, or sizes such as `[2,4]T(1,0)`. Sizes describe an array of all ids in ascending order;
    `T` transposes this array.
    """
    if counted := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        sizes = _numbers(counted[1])
        ids = np.arange(math.prod(sizes)).reshape(sizes)
        return ids.transpose(_numbers(counted[2]) if counted[2] else range(ids.ndim)).ravel()
    return np.array(_numbers(text))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
