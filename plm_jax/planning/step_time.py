"""Estimated time of a step, from a simulation of its instructions: a range, the parts, and possible savings."""

from collections.abc import Callable
from typing import Any, NamedTuple

from plm_jax.planning.operations import KINDS, CostModel, OperationCost
from plm_jax.planning.timeline import Assumptions, Clock, Timeline

# `products` in between is fitted to published seconds by `benchmarks/calibration.py`; at best, large products reach
# 95 % of the peak of v5e. By the compiler's schedules (`benchmarks/vector_bundles.py`), vector code takes 0.95 times
# its best case, an eighth of the compiler's count. The others are assumed.
OPTIMISTIC = Assumptions(vector=0.0, products=0.93, memory=1.0, network=1.0)
MIDDLE = Assumptions(vector=0.05, products=0.985, memory=1.1, network=1.1)
PESSIMISTIC = Assumptions(vector=0.2, products=1.06, memory=1.25, network=1.3)
# Largest ratio of the pessimistic time to the middle, and of the middle to the optimistic time.
MOST = 1.16
NUM_SAVINGS = 3
# Descriptions of the resource that determines the lower bound, where its name with `-bound` is not one.
_LIMITS = {
    "between slices": "bound by the network between slices",
    "synchronous": "bound by synchronous collectives",
}


class StepTime(NamedTuple):
    """Time of a step.

    Attributes:
      optimistic: seconds with the optimistic constants, but at least `middle` / MOST.
      middle: seconds with the fitted constants.
      pessimistic: seconds with the pessimistic constants, but at most `middle` · MOST.
      clock: state at the end of the simulation with the fitted constants; the values of `by_kind` add up to `middle`.
    """

    optimistic: float
    middle: float
    pessimistic: float
    clock: Clock


class Saving(NamedTuple):
    """Change of a run that could save time.

    Attributes:
      seconds: largest possible saving per step.
      text: description of the time that is lost, and of the change.
    """

    seconds: float
    text: str


def time_step(model: CostModel, assumptions: Assumptions = MIDDLE) -> StepTime:
    """Simulates a step three times: with optimistic, with fitted, and with pessimistic constants.

    Args:
      assumptions: the fitted constants. The optimistic and the pessimistic `products` are multiplied by the ratio of
        the fitted `products` to that of `MIDDLE`.
    """
    scale = assumptions.products / MIDDLE.products
    best, worst = (extreme._replace(products=scale * extreme.products) for extreme in (OPTIMISTIC, PESSIMISTIC))
    optimistic, middle, pessimistic = (Timeline(model, constants).run() for constants in (best, assumptions, worst))
    return StepTime(
        optimistic=max(optimistic.now, middle.now / MOST),
        middle=middle.now,
        pessimistic=min(pessimistic.now, middle.now * MOST),
        clock=middle,
    )


def describe(time: StepTime, model: CostModel, model_flops: float, recomputed: float) -> dict[str, Any]:
    """Returns the time of a step and the largest possible savings, in a form that can be written as JSON.

    Args:
      model_flops: model FLOPs of a step on one device.
      recomputed: share of the FLOPs of the program that are not model FLOPs.
    """
    seconds = {"optimistic": time.optimistic, "middle": time.middle, "pessimistic": time.pessimistic}
    return {
        "seconds": seconds,
        "mfu": {name: model_flops / model.chip.flops / value for name, value in seconds.items()},
        "seconds_by_kind": {kind: time.clock.by_kind[kind] for kind in KINDS},
        "product_share": model.core.product_share,
        "savings": [saving._asdict() for saving in savings(time, model, recomputed)[:NUM_SAVINGS]],
    }


def savings(time: StepTime, model: CostModel, recomputed: float) -> list[Saving]:
    """Returns changes that could save time, in descending order of the possible saving, which may be 0.

    Args:
      recomputed: as in `describe`.
    """
    share, clock = model.core.product_share, time.clock
    at_share = share * model.chip.flops

    def lost(*kinds: str, least: Callable[[OperationCost], float]) -> tuple[float, str]:
        """Returns the seconds that operations of some kinds lose: their time minus `least`.

        Returns:
          A pair: the total loss in seconds; and a text such as `f32[8,128]`. The text describes the largest result of
          the operation that loses the most time, and is empty if there are no such operations.
        """
        losses = {}
        for (kind, computation, name), seconds in clock.by_operation.items():
            if kind in kinds:
                cost = model.costs.get((computation, name))
                losses[computation, name] = seconds - clock.runs[computation, name] * (least(cost) if cost else 0.0)
        if not losses:
            return 0.0, ""
        computation, name = max(losses, key=lambda operation: losses[operation])
        arrays = model.module.instructions(computation)[name].arrays
        largest = max(arrays, key=lambda array: array.nbytes)
        return sum(losses.values()), f"{largest.dtype}[{','.join(map(str, largest.dimensions))}]"

    slow, product = lost("matmuls", least=lambda cost: cost.product_flops / at_share)
    copied, copy = lost("copies", least=lambda cost: 0.0)
    passes, vector = lost("norms", "other", least=lambda cost: cost.memory)
    attention, _ = lost("attention", least=lambda cost: cost.memory)
    again = (clock.by_kind["matmuls"] + clock.by_kind["attention"]) * recomputed
    advice = (
        (clock.by_kind["collectives"], "exposed collectives: use more rows per device or fewer microbatches"),
        (slow, f"matmuls below {share:.0%} of the peak, mainly {product}: use larger microbatches or shards"),
        (again, "recomputation: try another model.remat"),
        (copied, f"copies, mainly {copy}: try another model.remat"),
        (passes, f"vector operations above their memory-bound time, mainly {vector}: fuse them into fewer passes"),
        (attention, "attention above its memory-bound time: use shorter rows or a window"),
        (clock.by_kind["head"], "loss and head: use fewer targets per row or a smaller vocabulary"),
        (clock.by_kind["optimizer"], "optimizer and sums of gradients: use fewer microbatches"),
    )
    return sorted((Saving(max(seconds, 0.0), text) for seconds, text in advice), reverse=True)


def ranking_seconds(estimate: dict[str, Any]) -> float:
    """Returns the seconds of a step by which plans are ranked: `middle` or, if it is None, the lower bound."""
    seconds = estimate["seconds"]
    return seconds["optimistic"] if seconds["middle"] is None else seconds["middle"]


def differ(estimate: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether two estimated times differ clearly.

    They do if `middle` of each estimate is outside of the range of the other, which is from `optimistic` to
    `pessimistic`. If `middle` of either estimate is None, the result is True.
    """
    first, second = estimate["seconds"], other["seconds"]
    if first["middle"] is None or second["middle"] is None:
        return True
    return not any(
        bracket["optimistic"] <= value["middle"] <= bracket["pessimistic"]
        for bracket, value in ((first, second), (second, first))
    )


def rows(estimate: dict[str, Any]) -> dict[str, str]:
    """Returns the rows of a table about the time of a step, as a dict from labels to text."""
    seconds, bound, table = estimate["seconds"], estimate["bound_seconds"], {}
    if seconds["middle"] is None:
        table["time per step"] = "unknown: the cycles of this device are not counted; see the lower bound"
    else:
        mfu = {name: f"{share:.0%}" for name, share in estimate["mfu"].items()}
        table["time per step"] = (
            f"{seconds['middle']:.3g} s ({seconds['optimistic']:.3g} to {seconds['pessimistic']:.3g}), "
            f"MFU {mfu['middle']} ({mfu['pessimistic']} to {mfu['optimistic']})"
        )
        by_kind = sorted(estimate["seconds_by_kind"].items(), key=lambda part: -part[1])
        table["time by kind"] = ", ".join(f"{kind} {part:.3g} s" for kind, part in by_kind)
        for number, saving in enumerate(estimate["savings"], start=1):
            table[f"saving {number}"] = f"up to {saving['seconds']:.3g} s: {saving['text']}"
        table["8192³ matmul"] = f"{estimate['product_share']:.0%} of the peak, by the compiler's cycle counts"
    limit = _LIMITS.get(estimate["bound"], f"{estimate['bound']}-bound")
    table["lower bound"] = f"{bound:.3g} s per step ({limit}, perfect overlap)"
    parts = (f"{name} {part:.3g} s" for name, part in estimate["seconds_alone"].items())
    table["time of each resource"] = ", ".join(parts)
    return table
