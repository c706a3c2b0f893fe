"""Programs' texts whose time follows by hand, and properties of every estimate."""

import jax
import jax.numpy as jnp
import pytest

from plm_jax.planning import hlo, operations, products, slices, step_time, timeline
from plm_jax.planning import plan as planning
from plm_jax.training import flops
from tests.planning.test_hlo import compiled
from tests.planning.test_plan import needs_libtpu

KIND = "TPU v5 lite"
CHIP = flops.chip(KIND)
CLOCK = 197e12 / 131_072
# A fusion of 1,024 × 1,024 times 1,024 × 1,024 in the fast memory, and one of vector code.
COMPUTATIONS = """
%product (a: bf16[1024,1024], b: bf16[1024,1024]) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0:S(1)} parameter(0)
  %b = bf16[1024,1024]{1,0:S(1)} parameter(1)
  ROOT %c = bf16[1024,1024]{1,0:S(1)} convolution(%a, %b), dim_labels=bf_io->bf
}

%vector (v: f32[8,1024]) -> f32[8,1024] {
  %v = f32[8,1024]{1,0:S(1)} parameter(0)
  ROOT %w = f32[8,1024]{1,0:S(1)} add(%v, %v)
}

%cond (c: (s32[], bf16[1024,1024])) -> pred[] {
  %c = (s32[], bf16[1024,1024]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}
"""
X = "%x = bf16[1024,1024]{1,0:S(1)} parameter(0)"


def product(name, operand="%x", cycles=20_000):
    return (
        f"%{name} = bf16[1024,1024]{{1,0:S(1)}} fusion({operand}, {operand}), kind=kOutput, calls=%product, "
        f'metadata={{op_name="jvp(M)/stack/while/body/Block/up/dot_general"}}, '
        f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    )


def vector(name, cycles, source="jvp(M)/stack/while/body/Block/mlp_norm/add"):
    return (
        f"%{name} = f32[8,1024]{{1,0:S(1)}} fusion(%f), kind=kLoop, calls=%vector, "
        f'metadata={{op_name="{source}"}}, backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    )


START = (
    "%start = (bf16[64,1024]{1,0:S(1)}, bf16[1024,1024]{1,0:S(1)}) all-gather-start(%x), channel_id=1, "
    "replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}"
)
DONE = "%done = bf16[1024,1024]{1,0:S(1)} all-gather-done(%start)"
PRODUCT = 2 * 1024**3 / (0.88 * 197e12)
GATHER = 1e-6 + 2 * 1024**2 * 15 / 16 / (200e9 * 0.9)


def model(*lines, more="", kind=KIND, rings=True):
    body = "\n".join(f"  {line}" for line in (X, "%f = f32[8,1024]{1,0:S(1)} constant({...})", *lines))
    text = f"HloModule m, num_partitions=16\n{COMPUTATIONS}{more}\nENTRY %main (x: bf16[8]) -> bf16[8] {{\n{body}\n}}\n"
    return operations.CostModel(hlo.HloModule(text), kind, [0] * 16, rings=rings)


NOMINAL = timeline.Assumptions()


def run(*lines, assumptions=NOMINAL, **options):
    return timeline.Timeline(model(*lines, **options), assumptions).run()


def test_a_product_takes_between_the_rate_of_a_large_one_and_its_cycles():
    two = product("p", cycles=20_000), product("q", "%p", cycles=20_000)
    clock = run(*two)
    assert clock.now == pytest.approx(2 * PRODUCT)
    assert clock.by_kind["matmuls"] == clock.now
    assert run(*two, assumptions=timeline.Assumptions(vector=1.0)).now == pytest.approx(2 * 20_000 / CLOCK)
    assert run(*two, assumptions=timeline.Assumptions(products=1.1)).now == pytest.approx(2.2 * PRODUCT)


def test_a_product_without_cycles_takes_the_rate_of_a_large_one():
    assert run(product("p", cycles=0), assumptions=timeline.Assumptions(vector=1.0)).now == pytest.approx(PRODUCT)


def test_bytes_bound_what_reads_more_than_it_computes():
    moved = "%y = f32[8192,8192]{1,0} add(%z, %z)"
    clock = run("%z = f32[8192,8192]{1,0} parameter(1)", moved)
    assert clock.now == pytest.approx(3 * 4 * 8192**2 / 819e9)


LOOP = """
%body (b: (s32[], bf16[1024,1024])) -> (s32[], bf16[1024,1024]) {{
  %b = (s32[], bf16[1024,1024]{{1,0:S(1)}}) parameter(0)
  %j = s32[]{{:S(6)}} get-tuple-element(%b), index=0
  %one = s32[]{{:S(6)}} constant(1)
  %next = s32[]{{:S(6)}} add(%j, %one)
  %x = bf16[1024,1024]{{1,0:S(1)}} get-tuple-element(%b), index=1
  {lines}
  ROOT %t = (s32[], bf16[1024,1024]) tuple(%next, {result})
}}
"""
WHILE = "%loop = (s32[], bf16[1024,1024]) while(%in), condition=%cond, body=%body"
ENTER = ("%zero = s32[] constant(0)", "%in = (s32[], bf16[1024,1024]) tuple(%zero, %x)", WHILE)


def test_a_loop_takes_its_trips():
    once = run(product("p")).now
    clock = run(*ENTER, more=LOOP.format(lines=product("p"), result="%p"))
    assert clock.by_kind["matmuls"] == pytest.approx(7 * once)
    assert clock.runs["body", "p"] == 7


def test_loops_within_loops_multiply():
    inner = LOOP.format(lines=product("p"), result="%p").replace("%body", "%inner")
    lines = "%within = (s32[], bf16[1024,1024]) tuple(%next, %x)\n  "
    lines += "%again = (s32[], bf16[1024,1024]) while(%within), condition=%cond, body=%inner\n  "
    lines += "%y = bf16[1024,1024]{1,0:S(1)} get-tuple-element(%again), index=1"
    clock = run(*ENTER, more=inner + LOOP.format(lines=lines, result="%y"))
    assert clock.runs["inner", "p"] == 49
    assert clock.by_kind["matmuls"] == pytest.approx(49 * run(product("p")).now)


def test_a_transfer_hides_behind_the_work_between_its_start_and_its_end():
    work = run(product("p"), product("q")).now
    assert work > GATHER
    hidden = run(START, product("p"), product("q"), DONE)
    assert hidden.now == pytest.approx(work) and hidden.by_kind["collectives"] == 0
    part = run(START, START.replace("%start", "%next").replace("channel_id=1", "channel_id=2"), product("p"), DONE)
    assert part.now == pytest.approx(max(GATHER, PRODUCT))
    slow = run(START, product("p"), DONE, assumptions=timeline.Assumptions(network=2.0))
    assert slow.now == pytest.approx(2 * GATHER)
    assert slow.by_kind["collectives"] == pytest.approx(2 * GATHER - PRODUCT)
    after = run(START, DONE, product("p"), product("q"))
    assert after.now == pytest.approx(work + GATHER)


def test_transfers_wait_for_each_other():
    second = START.replace("%start", "%next").replace("channel_id=1", "channel_id=2")
    done = DONE.replace("%start", "%next").replace("%done", "%end")
    assert run(START, second, DONE, done).now == pytest.approx(2 * GATHER)


def test_what_is_synchronous_is_exposed():
    gather = START.replace("%start = (bf16[64,1024]{1,0:S(1)}, ", "%g = ").replace(
        "S(1)}) all-gather-start", "S(1)} all-gather"
    )
    clock = run(product("p"), gather, product("q"))
    assert clock.by_kind["collectives"] == pytest.approx(GATHER)
    assert clock.now == pytest.approx(GATHER + run(product("p"), product("q")).now)
    assert run(gather, rings=False).now > 1.8 * run(gather).now


def test_a_transfer_that_ends_in_the_next_iteration_hides_behind_the_whole_iteration():
    lines = "\n  ".join([DONE.replace("%start", "%x"), product("p"), product("q"), START])
    more = LOOP.format(lines=lines, result="%start")
    body_first = run(*ENTER, more=more)
    work = run(product("p"), product("q")).now
    assert body_first.by_kind["matmuls"] == pytest.approx(7 * work)
    # Only what one iteration sends after its work is waited for at the beginning of the next one.
    assert body_first.by_kind["collectives"] == pytest.approx(6 * GATHER)


def parts():
    sources = ("jvp(M)/stack/while/body/Block/mlp_norm/add", "jvp(M)/head/add", "adamw/add", "jvp(M)/stack/slice")
    lines = [vector(f"v{number}", 10_000, source) for number, source in enumerate(sources)]
    return [START, product("p"), *lines, DONE, *ENTER], LOOP.format(lines=product("p"), result="%p")


@pytest.mark.parametrize("assumptions", [step_time.OPTIMISTIC, step_time.MIDDLE, step_time.PESSIMISTIC])
def test_the_parts_add_up(assumptions):
    lines, more = parts()
    clock = run(*lines, more=more, assumptions=assumptions)
    assert sum(clock.by_kind.values()) == pytest.approx(clock.now)
    assert sum(clock.by_operation.values()) == pytest.approx(clock.now)
    assert {"matmuls", "norms", "head", "optimizer", "copies"} <= set(clock.by_kind) <= set(operations.KINDS)


@pytest.mark.parametrize("cycles", [10, 10_000, 10**6])
@pytest.mark.parametrize("count", [1, 5])
def test_brackets_are_narrow_and_hold_the_middle(cycles, count):
    lines, more = parts()
    time = step_time.time_step(model(*lines, *(vector(f"w{n}", cycles) for n in range(count)), more=more))
    assert time.optimistic <= time.middle <= time.pessimistic <= 1.35 * time.optimistic


def test_savings_are_the_largest():
    lines, more = parts()
    costs = model(*lines, more=more)
    report = step_time.describe(step_time.time_step(costs), costs, 8 * 2 * 1024**3, 0.25)
    assert sum(report["seconds_by_kind"].values()) == pytest.approx(report["seconds"]["middle"])
    savings = [saving["seconds"] for saving in report["savings"]]
    assert len(savings) == 3 and savings == sorted(savings, reverse=True) and savings[-1] >= 0
    assert report["mfu"]["pessimistic"] < report["mfu"]["middle"] < report["mfu"]["optimistic"] < 0.96
    more_work = step_time.describe(step_time.time_step(costs), costs, 16 * 2 * 1024**3, 0.25)
    assert more_work["mfu"]["middle"] == pytest.approx(2 * report["mfu"]["middle"])


def bracket(*values):
    return {"seconds": dict(zip(("optimistic", "middle", "pessimistic"), values, strict=True))}


def test_times_differ_if_neither_bracket_contains_the_others_middle():
    assert step_time.differ(bracket(1, 1.1, 1.2), bracket(1.3, 1.4, 1.5))
    assert step_time.differ(bracket(1, 1.1, 1.2), bracket(1.15, 1.3, 1.4))
    assert not step_time.differ(bracket(1, 1.1, 1.3), bracket(1.15, 1.2, 1.21))
    assert step_time.differ(bracket(1, None, None), bracket(1, None, None))
    assert step_time.ranking_seconds(bracket(1, None, None)) == 1
    assert step_time.ranking_seconds(bracket(1, 2, 3)) == 2


def test_the_table_shows_the_bracket_or_why_there_is_none():
    lines, more = parts()
    costs = model(*lines, more=more)
    estimate = step_time.describe(step_time.time_step(costs), costs, 8 * 2 * 1024**3, 0.25)
    estimate |= {"bound": "compute", "bound_seconds": 0.25, "seconds_alone": {"compute": 0.25, "memory": 0.125}}
    rows = step_time.rows(estimate)
    middle, mfu = estimate["seconds"]["middle"], estimate["mfu"]["middle"]
    assert rows["time per step"].startswith(f"{middle:.3g} s (") and f"MFU {mfu:.0%}" in rows["time per step"]
    assert rows["time by kind"].startswith("matmuls ") and "norms" in rows["time by kind"]
    assert [name for name in rows if name.startswith("saving")] == ["saving 1", "saving 2", "saving 3"]
    assert rows["8192³ matmul"] == "88% of the peak, by the compiler's cycle counts"
    assert rows["lower bound"] == "0.25 s per step (compute-bound, perfect overlap)"
    assert rows["time of each resource"] == "compute 0.25 s, memory 0.125 s"
    rows = step_time.rows(estimate | {"bound": "between slices"})
    assert rows["lower bound"] == "0.25 s per step (bound by the network between slices, perfect overlap)"
    unknown = {"seconds": {"optimistic": 0.25, "middle": None, "pessimistic": None}, "mfu": None}
    rows = step_time.rows(estimate | unknown)
    assert rows["time per step"].startswith("unknown") and "saving 1" not in rows


@pytest.mark.parametrize(
    ("sizes", "rings"),
    [
        ((4, 4, 4), True),
        ((2, 2, 1), False),
        ((16, 16, 1), True),
        ((4, 4, 1), False),
        ((8, 16, 1), False),
        ((2, 4, 4), False),
        ((4, 8, 8), True),
    ],
)
def test_slices_with_rings_in_all_dimensions_are_known(sizes, rings):
    assert slices.has_rings(sizes) == rings


@pytest.mark.parametrize(
    ("data", "weights", "padding", "labels"),
    [
        ((6, 4), (4, 5), (), ("NC", "IO", "NC")),
        ((6, 3, 4), (4, 5, 3), ((0, 0),), ("NWC", "IOW", "NWC")),
        ((4, 9, 3), (3, 3, 4), ((3, 3),), ("NWC", "WIO", "NWC")),
        ((2, 8, 5, 3), (8, 3, 6, 2), ((1, 0), (2, 2)), ("NHWC", "HIOW", "NHWC")),
    ],
)
def test_products_written_as_convolutions_count_their_multiplications(data, weights, padding, labels):
    """A convolution of ones adds up to the number of its multiplications."""
    names = [label.lower().replace("n", "b").replace("c", "f").replace("h", "0") for label in labels]
    axes = "".join(letter for letter in labels[0] if letter in "HW")
    names = [name.replace("w", str(axes.index("W")) if "W" in axes else "") for name in names]
    sizes = [weights[labels[1].index(axis)] for axis in axes]
    strides = (1,) * len(axes)
    result = jax.lax.conv_general_dilated(
        jnp.ones(data), jnp.ones(weights), strides, padding or [(0, 0)] * len(axes), dimension_numbers=labels
    )
    pads = "x".join(f"{low}_{high}" for low, high in padding)
    window_text = f", window={{size={'x'.join(map(str, sizes))} pad={pads}}}" if axes else ""

    def shape(dimensions):
        return f"f32[{','.join(map(str, dimensions))}]"

    module = hlo.HloModule(f"""
ENTRY %main (a: f32[1], b: f32[1]) -> f32[1] {{
  %a = {shape(data)} parameter(0)
  %b = {shape(weights)} parameter(1)
  ROOT %c = {shape(result.shape)} convolution(%a, %b){window_text}, dim_labels={names[0]}_{names[1]}->{names[2]}
}}
""")
    instructions = module.instructions(module.entry)
    assert products.convolution_flops(instructions["c"], instructions) == 2 * float(jnp.sum(result))


def test_dilated_windows_skip_the_gaps():
    result = jax.lax.conv_general_dilated(
        jnp.ones((2, 5, 4)), jnp.ones((3, 4, 6)), (2,), [(2, 3)], (2,), (3,), dimension_numbers=("NWC", "WIO", "NWC")
    )
    module = hlo.HloModule(f"""
ENTRY %main (a: f32[1], b: f32[1]) -> f32[1] {{
  %a = f32[2,5,4] parameter(0)
  %b = f32[3,4,6] parameter(1)
  ROOT %c = f32[{",".join(map(str, result.shape))}] convolution(%a, %b), \
window={{size=3 stride=2 pad=2_3 lhs_dilate=2 rhs_dilate=3}}, dim_labels=b0f_0io->b0f
}}
""")
    instructions = module.instructions(module.entry)
    assert products.convolution_flops(instructions["c"], instructions) == 2 * float(jnp.sum(result))


def test_devices_whose_cycles_do_not_count_have_no_model():
    assert operations.core_of("TPU v4") is None and operations.core_of("NVIDIA H100") is None
    cores = [operations.core_of(kind) for kind in ("TPU v5 lite", "TPU v5", "TPU v6 lite")]
    assert all(cores) and len(set(cores)) == 3
    for kind, ghz in (("TPU v5 lite", 1.5), ("TPU v5", 1.75), ("TPU v6 lite", 1.75)):
        chip, core = flops.chip(kind), operations.core_of(kind)
        assert chip is not None and core is not None
        assert chip.flops / core.flops_per_cycle == pytest.approx(ghz * 1e9, rel=0.01)


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_large_products_reach_the_share_that_the_compiler_counts(topology, without_tpu):
    device = planning.slice_devices(topology)[0]
    size = 8192
    shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16, sharding=jax.sharding.SingleDeviceSharding(device))
    module = hlo.HloModule(jax.jit(lambda x, y: x @ y).lower(shape, shape).compile().as_text())
    costs = operations.CostModel(module, device.device_kind, [0])
    clock = timeline.Timeline(costs, timeline.Assumptions(vector=1.0)).run()
    assert clock.now == pytest.approx(2 * size**3 / (costs.core.product_share * costs.chip.flops), rel=0.02)
    assert clock.by_kind["collectives"] == 0


@pytest.mark.parametrize(
    ("rows", "contracted", "columns", "unit", "share"),
    [
        (1024, 1024, 1024, 128, 1.0),
        (1024, 64, 1024, 128, 0.5),
        (1024, 64, 1024, 256, 0.25),
        (1024, 1024, 100, 128, 100 / 104),  # The unit holds the rows.
        (100, 1024, 100, 128, 100 / 128 * 100 / 104),
        (1000, 200, 1000, 128, 1000 / 1024 * 200 / 256),
    ],
)
def test_products_that_do_not_fill_the_matrix_unit_take_longer(rows, contracted, columns, unit, share):
    module = hlo.HloModule(f"""
ENTRY %main (a: f32[1], b: f32[1]) -> f32[1] {{
  %a = f32[{rows},{contracted}] parameter(0)
  %b = f32[{columns},{contracted}] parameter(1)
  ROOT %c = f32[{rows},{columns}] convolution(%a, %b), dim_labels=bf_oi->bf
}}
""")
    instructions = module.instructions(module.entry)
    assert products.filled_share(instructions["c"], instructions, unit) == pytest.approx(share)


@needs_libtpu
def test_transfers_between_slices_take_the_slower_network(without_tpu):
    def gradient(matrix, x):
        return jax.grad(lambda matrix: jnp.sum(jnp.tanh(x @ matrix) ** 2))(matrix)

    matrix, x = ((1024, 1024), jnp.float32, ()), ((512, 1024), jnp.float32, ("data",))
    module = compiled(gradient, matrix, x, slices=2)
    slice_of = [0] * 4 + [1] * 4
    clock = timeline.Timeline(operations.CostModel(module, KIND, slice_of), NOMINAL).run()
    sent = sum(c.sent for c in module.collectives() if hlo.crosses_slices(c, slice_of))
    assert sent > 0
    assert clock.by_kind["collectives"] >= 0.9 * sent / CHIP.slice_bandwidth
