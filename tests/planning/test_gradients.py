"""What a TPU's program of a step does with gradients: no matrix's or table's is summed whole on every device."""

import dataclasses
import math
import os

import pytest

from plm_jax import config, models
from tests.planning.test_plan import collectives_of, needs_libtpu
from tests.support import tiny

CHIPS, WIDTH, VOCABULARY, LENGTH, MICROBATCHES = 16, 256, 2048, 128, 2
BASES = {"decoder": tiny.PLAIN, "encoder": tiny.of_bert(tiny.PLAIN), "encoder_decoder": tiny.of_t5(tiny.PLAIN)}
# Compiling takes long: PLM_JAX_FULL_TESTS=1 takes every pair.
FULL = [(kind, tied) for kind in BASES for tied in (True, False)]
CASES = FULL if os.environ.get("PLM_JAX_FULL_TESTS") else [("decoder", False), ("encoder", True)]


def run(kind, tied):
    base = BASES[kind]
    position = base.model.attention.position
    if not isinstance(position, models.RelativeBias):
        position = models.LearnedPositions(length=LENGTH)
    model = dataclasses.replace(
        base.model,
        embedding=dataclasses.replace(base.model.embedding, vocab_size=VOCABULARY, width=WIDTH),
        attention=dataclasses.replace(base.model.attention, heads=2, head_dim=128, position=position),
        feed_forward=dataclasses.replace(base.model.feed_forward, width=4 * WIDTH),
        head=dataclasses.replace(base.model.head, tied=tied),
    )
    return dataclasses.replace(
        base,
        model=model,
        data=dataclasses.replace(base.data, length=LENGTH),
        train=dataclasses.replace(base.train, batch_size=4 * CHIPS, microbatches=MICROBATCHES),
        mesh=config.MeshConfig(data=1, fsdp=-1),
        precision=config.PrecisionConfig(compute="bfloat16"),
    )


@needs_libtpu
def test_gradients_of_lstms_are_scattered(without_tpu):
    """A projection's parts are narrower than a tile: as it lies XLA would reduce it whole."""
    base = tiny.RUNS["elmo"]
    embedding = dataclasses.replace(base.model.embedding, width=WIDTH)
    model = dataclasses.replace(base.model, embedding=embedding, lstm=models.LstmConfig(layers=2, cell=4 * WIDTH))
    collectives = collectives_of(
        dataclasses.replace(
            base,
            model=model,
            train=dataclasses.replace(base.train, batch_size=32, microbatches=1),
            mesh=config.MeshConfig(data=1, fsdp=-1),
            precision=config.PrecisionConfig(compute="bfloat16"),
        ),
        "v5e:2x4",
    )
    kernel = 2 * WIDTH * 4 * WIDTH

    def largest(kind):
        return max(math.prod(a.dimensions) for c in collectives if c.kind == kind for a in c.arrays)

    # What is reduced is a gradient of vectors: each direction's bias of the gates.
    assert largest("all-reduce") <= 2 * 4 * 4 * WIDTH < kernel <= largest("reduce-scatter") * 8


@needs_libtpu
@pytest.mark.parametrize(("kind", "tied"), CASES)
def test_gradients_are_scattered_and_a_tables_once_a_step(without_tpu, kind, tied):
    collectives = collectives_of(run(kind, tied), "v5e:4x4")
    whole = [a for c in collectives if c.kind == "all-reduce" for a in c.arrays]
    # A bias of all heads or of the vocabulary is the largest of vectors.
    assert max(math.prod(a.dimensions) for a in whole) <= max(4 * WIDTH, VOCABULARY)

    table, tables = VOCABULARY * WIDTH, 1 if tied else 2
    share = (CHIPS - 1) / CHIPS

    def of_tables(kind, dtype):
        # A scattered part, or a gathered whole; tiles may be padded.
        sizes = {"all-gather": table, "reduce-scatter": table // CHIPS}
        of_type = [c for c in collectives if c.kind == kind and any(a.dtype == dtype for a in c.arrays)]
        return [c for c in of_type if sizes[kind] <= max(math.prod(a.dimensions) for a in c.arrays) < 1.1 * sizes[kind]]

    gathered, scattered = of_tables("all-gather", "bf16"), of_tables("reduce-scatter", "f32")
    assert [c.times for c in gathered] == [c.times for c in scattered] == [1] * tables
    sent = sum(c.sent * c.times for c in gathered + scattered)
    assert sent <= 1.1 * tables * (2 + 4) * table * share
