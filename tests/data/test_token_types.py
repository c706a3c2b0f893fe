"""Token types of sources, such as the ids of their languages."""

import dataclasses

import numpy as np
import pytest

from plm_jax import config, models, objectives
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader

TYPES = {"en": 2, "es": 0}
MASKED = {"objective": objectives.MaskedLM(), "mask": 98, "pad": 97}


@pytest.fixture
def run(write_source, random_documents, make_run):
    """Returns a run over two sources whose tokens are even and odd; keywords change sections."""
    for remainder, name in enumerate(TYPES):
        texts = [[token - token % 2 + remainder for token in text] for text in random_documents(remainder, 40)]
        write_source(name, {"train": texts, "validation": texts[:5]}, mask=98, pad=97)

    def make(**sections):
        masked = make_run(list(TYPES), data={"token_types": TYPES}, kind="encoder", **MASKED)
        model = dataclasses.replace(masked.model, pooler=models.NoHead())
        model = dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, token_types=3))
        return changed(dataclasses.replace(masked, model=model), **sections)

    return make


@pytest.mark.parametrize("layout", [config.Blocks(), config.Blocks(attend_across_documents=False)])
def test_each_row_has_the_type_of_its_source(run, layout):
    masked = run(data={"layout": layout})
    reader, all_types = open_reader(masked), set()
    for step in range(10):
        batch = reader.batch(step, range(4))
        for tokens, types, targets in zip(batch["tokens"], batch["token_types"], batch["targets"], strict=True):
            text = tokens[tokens < 90].tolist() + targets[targets > 0].tolist()
            is_of = {
                name for remainder, name in enumerate(TYPES) if sum(t % 2 == remainder for t in text) > len(text) / 2
            }
            assert types.tolist() == [TYPES[is_of.pop()]] * 8
            all_types.add(int(types[0]))
    assert all_types == set(TYPES.values())
    assert_like_blank(masked, batch)
    (validation,) = {tuple(np.unique(row["token_types"])) for row in reader.in_order("validation", 1, name="en")}
    assert validation == (2,)


def test_other_arrays_and_draws_are_the_same(run):
    masked = run()
    with_types = open_reader(masked).batch(3, range(4))
    without = open_reader(changed(masked, data={"token_types": {}})).batch(3, range(4))
    assert with_types.keys() - without.keys() == {"token_types"}
    for name in without.keys() - {"digest"}:
        np.testing.assert_array_equal(with_types[name], without[name])


def test_token_types_that_do_not_apply_are_rejected(run, make_run):
    decoder = make_run(["en"], data={"token_types": {"en": 0}})
    assert_rejected("a model of kind 'decoder' reads no token types: leave out config.data.token_types", decoder)
    assert_rejected(
        r"token_types.es is 3, but the model has 3 token types", run(), data={"token_types": TYPES | {"es": 3}}
    )
    assert_rejected("token_types does not name 'es', which a phase reads", run(), data={"token_types": {"en": 0}})
    assert_rejected(
        "layout 'segments' have no token type of their source", run(), data={"layout": config.Segments()},
        vocabulary={"cls": 95, "sep": 96},
    )  # fmt: skip
