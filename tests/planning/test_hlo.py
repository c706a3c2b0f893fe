"""Programs' texts of known counts, and small programs of the TPU compiler whose bytes are known in closed form."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.planning import hlo
from plm_jax.planning import plan as planning
from tests.planning.test_plan import needs_libtpu


def test_collectives_are_read_in_every_form_that_the_compiler_gives_them():
    text = """
%cond (c: (u32[])) -> pred[] {
  %limit = u32[] constant(14)
  %c = (u32[]) parameter(0)
  %i = u32[] get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%wide.windowed_dot_general_body_rs.1 (b: (u32[])) -> (u32[]) {
  %b = (u32[]) parameter(0)
  %x = bf16[2,8]{1,0:T(8,128)(2,1)} get-tuple-element(%b), index=0
  %p = (bf16[2,8]{1,0}, bf16[2,8]{1,0}) collective-permute-start(%x), channel_id=1, \
source_target_pairs={{0,1},{1,0}}, metadata={op_name="layer/while"}
  %old = u32[] get-tuple-element(%b), index=0
  %two = u32[] constant(2)
  %next = u32[] add(%old, %two)
  %kept = u32[] copy(%next)
  ROOT %t = (u32[]) tuple(%kept)
}

%gather (s: f32[4]) -> f32[16] {
  %s = f32[4] parameter(0)
  ROOT %g = f32[16]{0} all-gather(%s), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
}

%all-reduce-scatter.1 (i: f32[16]) -> f32[2] {
  %i = f32[16] parameter(0)
  %whole = f32[16] all-reduce(%i), channel_id=4, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%sum
  ROOT %part = f32[2] dynamic-slice(%whole), dynamic_slice_sizes={2}
}

%called (l: f32[16]) -> f32[2] {
  %l = f32[16] parameter(0)
  ROOT %part = f32[2] reduce-scatter(%l), channel_id=5, replica_groups=mesh['a'=2,'b'=8] {'b'}, to_apply=%sum
}

ENTRY %main (a: f32[4]) -> f32[16] {
  %a = f32[4] parameter(0)
  %loop = (u32[]) while(%a), condition=%cond, body=%wide.windowed_dot_general_body_rs.1
  %async-collective-start.1 = (f32[4], f32[16]) fusion(%a), kind=kCustom, calls=%gather
  %async-collective-done.1 = f32[16] fusion(%async-collective-start.1), kind=kCustom, calls=%gather
  %third = f32[2] fusion(%async-collective-done.1), kind=kCustom, calls=%all-reduce-scatter.1
  %fourth = ((f32[16]), f32[2]) call-start(%third), async_execution_thread="sparsecore", to_apply=%called
  %fifth = ((f32[4], f32[2]), (f32[16], f32[8])) all-gather-start(%a, %third), channel_id=7, replica_groups={{0,1,2,3}}
  ROOT %r = f32[16] all-reduce(%fourth), channel_id=3, replica_groups=[2,8]<=[8,2]T(1,0), to_apply=%sum
}
"""
    ring, gather, fused, offloaded, started, reduce = hlo.HloModule(text).collectives()
    assert (ring.kind, ring.form, ring.times, ring.sent) == ("reduce-scatter", "ring", 7, 32)
    assert (ring.source, ring.groups) == ("layer/while", ((0, 1), (1, 0)))
    assert (gather.kind, gather.form, gather.times, gather.sent) == ("all-gather", "asynchronous", 1, 64 * 3 / 4)
    assert gather.groups == ((0, 1, 2, 3),)
    assert (fused.kind, fused.form, fused.times, fused.sent) == ("reduce-scatter", "synchronous", 1, 64 * 7 / 8)
    assert (offloaded.kind, offloaded.form, offloaded.sent) == ("reduce-scatter", "asynchronous", 64 * 7 / 8)
    assert offloaded.groups == (tuple(range(8)),)
    assert (started.form, started.sent) == ("asynchronous", (64 + 32) * 3 / 4)
    assert (reduce.kind, reduce.form, reduce.times) == ("all-reduce", "synchronous", 1)
    assert (reduce.sent, reduce.groups) == (2 * 64 * 7 / 8, (tuple(range(0, 16, 2)),))


LOOP = """
%cond (c: (s32[], f32[4], f32[16])) -> pred[] {
  %c = (s32[], f32[4], f32[16]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%begin (s: f32[4]) -> (f32[4], f32[16]) {
  %s = f32[4] parameter(0)
  %gather.1 = f32[16] all-gather(%s), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %begun = (f32[4], f32[16]) custom-call(%s, %gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.3 (p: f32[4], q: f32[16], r: f32[100]) -> (f32[50], f32[4], f32[16]) {
  %p = f32[4] parameter(0)
  %q = f32[16] parameter(1)
  %gather.2 = f32[16] all-gather(%p), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
  %r = f32[100] parameter(2)
  %half = f32[50] reduce-window(%r)
  ROOT %all = (f32[50], f32[4], f32[16]) tuple(%half, %p, %q)
}

%body (b: (s32[], f32[4], f32[16])) -> (s32[], f32[4], f32[16]) {
  %b = (s32[], f32[4], f32[16]) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %shard = f32[4] get-tuple-element(%b), index=1
  %whole = f32[16] get-tuple-element(%b), index=2
  %other = f32[100] constant({...})
  %on = (f32[50], f32[4], f32[16]) fusion(%shard, %whole, %other), kind=kOutput, \
output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.3
  %shard.2 = f32[4] get-tuple-element(%on), index=1
  %whole.2 = f32[16] get-tuple-element(%on), index=2
  ROOT %t = (s32[], f32[4], f32[16]) tuple(%next, %shard.2, %whole.2)
}

%end (u: f32[4], v: f32[16]) -> f32[16] {
  %u = f32[4] parameter(0)
  %v = f32[16] parameter(1)
  %gather.3 = f32[16] all-gather(%u), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %ended = f32[16] custom-call(%u, %v, %gather.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (a: f32[4]) -> f32[16] {
  %a = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %async-collective-start = (f32[4], f32[16]) fusion(%a), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, \
calls=%begin
  %f = f32[4] get-tuple-element(%async-collective-start), index=0
  %g = f32[16] get-tuple-element(%async-collective-start), index=1
  %in = (s32[], f32[4], f32[16]) tuple(%zero, %f, %g)
  %loop = (s32[], f32[4], f32[16]) while(%in), condition=%cond, body=%body
  %h = f32[4] get-tuple-element(%loop), index=1
  %k = f32[16] get-tuple-element(%loop), index=2
  ROOT %async-collective-done = f32[16] fusion(%h, %k), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, \
calls=%end
}
"""


def test_a_collective_that_goes_on_in_a_loop_starts_once():
    (gather,) = hlo.HloModule(LOOP).collectives()
    assert (gather.kind, gather.form, gather.times, gather.sent) == ("all-gather", "asynchronous", 1, 64 * 3 / 4)


def test_fusions_that_go_on_with_a_collective_leave_its_arrays_alone():
    read_and_gathered, other_work, counter = 4 * (4 + 16), 4 * (100 + 50), 3 * 4
    assert hlo.HloModule(LOOP).hbm_bytes() == read_and_gathered + 5 * (other_work + counter)


def test_the_compiler_may_say_how_often_a_loop_runs():
    text = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
    assert hlo.HloModule(text).hbm_bytes() - hlo.HloModule(LOOP).hbm_bytes() == 2 * (4 * 150 + 12)


@pytest.mark.parametrize(
    ("instruction", "bytes_moved"),
    [
        # To the fast memory, S(1), only the slice is read; else it is written too.
        ("((f32[8,32]), f32[2,32]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:2], [0:32]}", 256),
        ("((f32[8,32]), f32[2,32]{1,0}, s32[]{:S(2)}) slice-start(%a), slice={[0:2], [0:32]}", 512),
        ("(f32[8,32]{1,0:S(1)}, f32[8,32]{1,0}, u32[]{:S(2)}) copy-start(%a)", 1024),
        ("(f32[8,32]{1,0}, f32[8,32]{1,0}, u32[]{:S(2)}) copy-start(%a)", 2048),
        ("(f32[8,32], f32[8,32], u32[]{:S(2)}) collective-permute-start(%a), source_target_pairs={{0,1}}", 2048),
        ('f32[8,32] custom-call(), custom_call_target="AllocateBuffer"', 0),
        ('(f32[32]) custom-call(%a), custom_call_target="tpu_custom_call"', 1024 + 128),
        ("f32[1,32] fusion(%a), kind=kLoop, calls=%sliced", 2 * 128),
        ("(f32[8,32], f32[9]) fusion(%a), kind=kLoop, calls=%updated", 128 + 36),
        ("f32[8,32] fusion(%a), kind=kLoop, calls=%renamed", 2048),
    ],
)
def test_bytes_are_those_that_move(instruction, bytes_moved):
    text = f"""
%inner (p: f32[256]) -> f32[1,32] {{
  %p = f32[256] parameter(0)
  %shaped = f32[8,32] bitcast(%p)
  %first = s32[] constant(3)
  ROOT %s = f32[1,32] dynamic-slice(%shaped, %first), dynamic_slice_sizes={{1,32}}
}}

%sliced (q: f32[8,32]) -> f32[1,32] {{
  %q = f32[8,32] parameter(0)
  %flat = f32[256] bitcast(%q)
  ROOT %part = f32[1,32] fusion(%flat), kind=kLoop, calls=%inner
}}

%updated (r: f32[8,32]) -> (f32[8,32], f32[9]) {{
  %r = f32[8,32] parameter(0)
  %new = f32[1,32] constant({{...}})
  %place = s32[] constant(3)
  %changed = f32[8,32] dynamic-update-slice(%r, %new, %place)
  %more = f32[9] constant({{...}})
  ROOT %both = (f32[8,32], f32[9]) tuple(%changed, %more)
}}

%renamed (t: f32[8,32]) -> f32[8,32] {{
  %t = f32[8,32] parameter(0)
  ROOT %same = f32[8,32] bitcast(%t)
}}

ENTRY %main (a: f32[8,32]) -> f32[8,32] {{
  %a = f32[8,32] parameter(0)
  ROOT %x = {instruction}
}}
"""
    assert hlo.HloModule(text).hbm_bytes() == bytes_moved


def reduces(written):
    """A module of twelve devices with one all-reduce."""
    return hlo.HloModule(f"""HloModule jit_f, is_scheduled=true, num_partitions=12

ENTRY %main (a: f32[4]) -> f32[4] {{
  %a = f32[4] all-reduce(%x), {written}, to_apply=%sum
}}
""")


@pytest.mark.parametrize(
    ("written", "group"),
    [
        ("replica_groups={{0,3},{1,2}}", (0, 3)),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=mesh['a'=2,'b'=3,'c'=2] {'a','c'}", (0, 1, 6, 7)),
        ("replica_groups=mesh['a'=4,'b'=3], device_ids=([3,4]T(1,0)) {'b'}", (0, 4, 8)),
        ("replica_groups=mesh['a'=3,'b'=4], device_ids=(0,3,6,9,1,4,7,10,2,5,8,11) {'a'}", (0, 1, 2)),
        ("replica_groups={}", tuple(range(12))),
        ("channel_id=1", tuple(range(12))),
    ],
)
def test_groups_are_read_as_they_are_written(written, group):
    (collective,) = reduces(written).collectives()
    assert collective.groups == (group,)
    assert collective.sent == pytest.approx(2 * (1 - 1 / len(group)) * 16)


@pytest.mark.parametrize("written", ["replica_groups=<4,3>", "replica_groups=[4,3]<-[12]"])
def test_groups_of_another_form_are_refused(written):
    with pytest.raises(ValueError, match="another form"):
        reduces(written).collectives()


@pytest.mark.parametrize(("kind", "sent"), [("ALL_REDUCE", 2 * 3 / 4), ("ALL_GATHER", 3), ("REDUCE_SCATTER", 3 / 4)])
def test_what_hosts_exchange_between_slices_is_a_collective(kind, sent):
    text = f"""
ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8] parameter(0)
  %t = token[] after-all()
  ROOT %s = (f32[8], u32[], token[]) send(%a, %t), channel_id=2, is_host_transfer=true, frontend_attributes={{\
_xla_megascale_target="{{1,2,3,4}}x{{0:7}}",_xla_megascale_transfer_type="{kind}"}}
}}
"""
    (collective,) = hlo.HloModule(text).collectives()
    assert (collective.kind, collective.form, collective.sent) == (
        kind.lower().replace("_", "-"),
        "asynchronous",
        32 * sent,
    )
    assert hlo.crosses_slices(collective, [0, 0])


LAYERS, ROWS, WIDTH = 3, 512, 1024


def compiled(function, *arguments, slices=1):
    """The text of a function over four chips of each slice: arguments are shapes, types and partitions."""
    devices = np.array(planning.slice_devices("v5e:2x2", slices)).reshape(slices, 4)
    mesh = Mesh(devices, ("data", "fsdp"))
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*parts)))
        for shape, dtype, parts in arguments
    ]
    return hlo.HloModule(jax.jit(function).lower(*shapes).compile().as_text())


@needs_libtpu
def test_a_real_loop_gathers_each_layer_once(without_tpu):
    def layers(matrices, x):
        return jax.lax.scan(lambda x, matrix: (jnp.tanh(x @ matrix), None), x, matrices)[0]

    matrices = ((LAYERS, WIDTH, WIDTH), jnp.bfloat16, (None, None, "fsdp"))
    module = compiled(layers, matrices, ((ROWS, WIDTH), jnp.bfloat16, ("fsdp",)))
    once = LAYERS * 2 * WIDTH**2 * 3 / 4
    collectives = module.collectives()
    assert {c.kind for c in collectives} <= {"all-gather", "collective-permute"}
    # A ring sends one of its four pieces too many.
    assert once <= sum(c.sent * c.times for c in collectives) <= once * 4 / 3


@needs_libtpu
def test_a_real_program_sends_its_gradient_to_the_other_slice(without_tpu):
    def gradient(matrix, x):
        return jax.grad(lambda matrix: jnp.sum(jnp.tanh(x @ matrix) ** 2))(matrix)

    matrix, x = ((WIDTH, WIDTH), jnp.float32, ()), ((ROWS, WIDTH), jnp.float32, ("data",))
    module = compiled(gradient, matrix, x, slices=2)
    sent = [c for c in module.collectives() if hlo.crosses_slices(c, [0] * 4 + [1] * 4)]
    assert sum(c.sent * c.times for c in sent) in (4 * WIDTH**2, WIDTH**2), "whole, or a chip's quarter"
    assert {c.kind for c in sent} == {"all-reduce"}


@needs_libtpu
def test_a_real_program_reads_and_writes_its_arrays_once(without_tpu):
    def add(a, b):
        return a * 2 + b

    shape = (2**16, 1024)
    module = compiled(add, *[(shape, jnp.float32, ("fsdp",))] * 2)
    assert module.hbm_bytes() == 3 * math.prod(shape)
    assert module.collectives() == []


def test_loops_of_gpus_whose_counting_is_fused_are_counted():
    text = """
%less (p: s32[]) -> pred[] {
  %p = s32[] parameter(0)
  %limit = s32[] constant(31)
  ROOT %lt = pred[] compare(%p, %limit), direction=LT
}

%plus (q: s32[]) -> s32[] {
  %q = s32[] parameter(0)
  %one = s32[] constant(1)
  ROOT %sum = s32[] add(%q, %one)
}

%cond (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %compared = pred[] fusion(%i), kind=kLoop, calls=%less
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %b = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %x = f32[4] get-tuple-element(%b), index=1
  %reduced = f32[4] all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%plus
  %added = s32[] fusion(%j), kind=kLoop, calls=%plus
  ROOT %t = (s32[], f32[4]) tuple(%added, %reduced)
}

ENTRY %main (a: (s32[], f32[4])) -> (s32[], f32[4]) {
  %a = (s32[], f32[4]) parameter(0)
  ROOT %loop = (s32[], f32[4]) while(%a), condition=%cond, body=%body
}
"""
    (reduced,) = hlo.HloModule(text).collectives()
    assert reduced.times == 31
