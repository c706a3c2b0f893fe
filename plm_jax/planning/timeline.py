"""Time of a compiled TPU program, simulated: instructions run in their order, and transfers run meanwhile.

The core runs one instruction after the other. An asynchronous transfer starts as soon as HBM or the network is free. It
delays the core only if it has not ended when its result is needed. Two iterations of a loop are simulated; each later
iteration is assumed to take as long as the second iteration.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plm_jax.planning import hlo
from plm_jax.planning.operations import CostModel, OperationCost

_PASSES = {"bitcast", "copy", "opt-barrier", "optimization-barrier", "custom-call", "fusion"}


class Transfer(NamedTuple):
    """Asynchronous transfer.

    Attributes:
      number: index of the transfer, from 1, in the order in which transfers start.
      end: time in seconds at which the transfer ends.
      kind: kind of the operation that starts the transfer.
    """

    number: int
    end: float
    kind: str


# Transfers in flight that a value waits for, by index of the tuple element; the key None stands for the whole value.
Pending = dict[int | None, tuple[Transfer, ...]]


class Assumptions(NamedTuple):
    """Constants of a simulation.

    Attributes:
      vector: position of the core's time between its best case (0) and the compiler's cycle count (1).
      products: factor that multiplies the core's time for matrix products and kernels.
      memory: time of traffic with HBM, divided by the time at the nominal bandwidth.
      network: time of transfers over the network, divided by the time that `CostModel` estimates.
    """

    vector: float = 0.0
    products: float = 1.0
    memory: float = 1.0
    network: float = 1.0


@dataclass
class Clock:
    """State of a simulation.

    Attributes:
      now: seconds since the start of the program.
      free: dict from the name of each unit to the time, in seconds, at which the unit is free again.
      by_kind: seconds by kind of operation.
      by_operation: seconds by (kind, computation, instruction); waits of the instruction for transfers are included.
      runs: number of runs of instructions other than asynchronous ones, by (computation, instruction).
      transfers: number of transfers that have started.
    """

    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict)
    by_kind: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_operation: defaultdict[tuple[str, str, str], float] = field(default_factory=lambda: defaultdict(float))
    runs: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    transfers: int = 0

    @property
    def counters(self) -> tuple[defaultdict[Any, float], ...]:
        """Dicts whose values grow with each iteration of a loop."""
        return self.by_kind, self.by_operation, self.runs

    def occupy(self, unit: str, seconds: float) -> float:
        """Occupies a unit as soon as it is free; returns the time at which the unit is free again."""
        self.free[unit] = max(self.now, self.free.get(unit, 0.0)) + seconds
        return self.free[unit]

    def spend(self, until: float, kind: str, operation: tuple[str, str]) -> None:
        """Advances `now` to `until`, and adds the difference to `by_kind` and `by_operation`.

        If `until` is before `now`, the clock does not change.
        """
        seconds = max(until - self.now, 0.0)
        self.by_kind[kind] += seconds
        self.by_operation[kind, *operation] += seconds
        self.now += seconds


class Timeline:
    """Simulation of a program."""

    def __init__(self, model: CostModel, assumptions: Assumptions):
        self._model, self._module, self._assumptions = model, model.module, assumptions

    def run(self) -> Clock:
        """Simulates the program; returns the clock at the end."""
        clock = Clock()
        self._computation(self._module.entry, clock, {}, None)
        return clock

    def _computation(self, name: str, clock: Clock, parameter: Pending, caller: hlo.Instruction | None) -> Pending:
        """Runs a computation.

        Args:
          parameter: transfers that the computation's parameter waits for.

        Returns:
          The transfers that the computation's result waits for.
        """
        pending: dict[str, Pending] = {}
        result: Pending = {}
        for instruction in self._module.instructions(name).values():
            step = hlo.Step(instruction, name, 1, caller, False)
            operands = [pending.get(operand, {}) for operand in instruction.operands]
            result = parameter if instruction.opcode == "parameter" else self._instruction(step, clock, operands)
            if result:
                pending[instruction.name] = result
        return result

    def _instruction(self, step: hlo.Step, clock: Clock, operands: list[Pending]) -> Pending:
        instruction, opcode = step.instruction, step.instruction.opcode
        if opcode == "while":
            return self._loop(instruction, clock, operands[0] if operands else {})
        if opcode == "conditional":
            return self._branches(instruction, clock)
        if opcode == "call":
            return self._computation(instruction.called[0], clock, operands[0] if operands else {}, instruction)
        if opcode == "tuple":
            return {index: _all([operand]) for index, operand in enumerate(operands) if operand}
        if opcode == "get-tuple-element":
            index = int(str(instruction.attribute("index")))
            transfers = operands[0].get(index) or operands[0].get(None) if operands else None
            return {None: transfers} if transfers else {}
        operation = step.computation, instruction.name
        if opcode.endswith("-done") or instruction.name.startswith(hlo.ENDS):
            for transfer in _all(operands):
                clock.spend(transfer.end, transfer.kind, operation)
            return {}
        cost = self._model.cost(step)
        if cost.is_asynchronous:
            return {None: (self._start(cost, clock),)}
        clock.runs[operation] += 1
        self._run(cost, clock, operation)
        waiting = _all(operands)
        return {None: waiting} if waiting and (opcode in _PASSES) else {}

    def _start(self, cost: OperationCost, clock: Clock) -> Transfer:
        ends = [clock.now]
        transfers = {
            "memory": cost.memory * self._assumptions.memory,
            "network": cost.network * self._assumptions.network,
            "slices": cost.slices * self._assumptions.network,
        }
        ends += [clock.occupy(unit, seconds) for unit, seconds in transfers.items() if seconds]
        clock.transfers += 1
        return Transfer(clock.transfers, max(ends), cost.kind)

    def _run(self, cost: OperationCost, clock: Clock, operation: tuple[str, str]) -> None:
        core = cost.core + self._assumptions.vector * (cost.core_at_worst - cost.core)
        if cost.product_flops or cost.is_kernel:
            core *= self._assumptions.products
        ends = [clock.now + core]
        if cost.memory:
            ends.append(clock.occupy("memory", cost.memory * self._assumptions.memory))
        clock.spend(max(ends), cost.kind, operation)
        if cost.network:
            clock.spend(clock.occupy("network", cost.network * self._assumptions.network), "collectives", operation)

    def _branches(self, instruction: hlo.Instruction, clock: Clock) -> Pending:
        """Runs all branches of a conditional, and keeps the clock of the slowest branch."""
        ends: list[Clock] = []
        for branch in instruction.called:
            ends.append(copy.deepcopy(clock))
            self._computation(branch, ends[-1], {}, instruction)
        slowest = max(ends, key=lambda end: end.now)
        vars(clock).update(vars(slowest))
        return {}

    def _loop(self, loop: hlo.Instruction, clock: Clock, pending: Pending) -> Pending:
        trips, body = self._module.trips(loop), str(loop.attribute("body")).removeprefix("%")
        if trips < 1:
            return pending
        pending = self._computation(body, clock, pending, loop)
        if trips == 1:
            return pending
        before, first = clock.now, clock.transfers
        earlier = [counter.copy() for counter in clock.counters]
        pending = self._computation(body, clock, pending, loop)
        more, skipped = trips - 2, (trips - 2) * (clock.now - before)
        for counter, old in zip(clock.counters, earlier, strict=True):
            for name, count in counter.items():
                counter[name] += more * (count - old[name])
        clock.now += skipped
        clock.free = {unit: end + skipped for unit, end in clock.free.items()}
        return {
            index: tuple(t._replace(end=t.end + skipped) if t.number > first else t for t in transfers)
            for index, transfers in pending.items()
        }


def _all(pending: Iterable[Pending]) -> tuple[Transfer, ...]:
    return tuple({transfer for value in pending for transfers in value.values() for transfer in transfers})
