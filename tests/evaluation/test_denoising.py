"""A run that learns to mend texts: checked, loaded, asked."""

import numpy as np
import pytest

import plm_jax
from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader, blank_batch
from plm_jax.generation import decoding
from plm_jax.runs import checkpoint_formats
from tests.support import runs, tiny
from tests.support.random_models import random_params

RUN = tiny.RUNS["bart"]
BOS, EOS, MASK = 258, 256, 260


@pytest.fixture(scope="module")
def lm(tiny, tmp_path_factory):
    """A language model of the run with random parameters."""
    run, folder = runs.make(tiny, RUN), str(tmp_path_factory.mktemp("denoising"))
    checkpoint_formats.save(folder, checkpoint_formats.of_run(run, random_params(run.model), folder), "plm_jax")
    return plm_jax.load(folder)


def test_prompts_are_framed_masked_and_answered_from_eos_on(lm):
    assert lm.special_ids["decoder_start_token_id"] == EOS
    text = [BOS, *b"the", MASK, *b" of", EOS]
    assert lm.strategy.encode("the [MASK] of") == text
    (answer,) = decoding.generate(
        lm.model,
        lm.params,
        [text],
        max_new_tokens=12,
        eos_ids=[EOS],
        start_id=EOS,
        vocab_size=lm.vocabulary.vocab_size,
    )
    expected = lm.vocabulary.decode([token for token in answer if token != BOS])
    assert lm.generate("the [MASK] of", max_new_tokens=12) == [expected]


def test_rows_hold_whole_sentences_in_another_order(tiny):
    """Bytes of a row in order are those of the stream; the encoder's are the same sentences, permuted."""
    noise = objectives.Denoising(noise=objectives.denoising.NoNoise())
    opened, moved = Reader(config.reader_config(runs.make(tiny, RUN, objective=noise, data={"length": 64}))), 0
    for batch in list(opened.in_order("train", 16))[:5]:
        for row, target, mask in zip(batch["tokens"], batch["targets"], batch["mask"], strict=True):
            assert row[0] == target[0] == BOS
            assert sorted(row[mask == 1]) == sorted(target[target != 257])
            moved += not np.array_equal(row, target)
    assert moved > 5


def test_a_row_of_targets_beyond_the_positions_is_refused(tiny):
    objective = objectives.SpanCorruption(noise_density=0.6)
    with pytest.raises(UserError, match=r"with texts of \d+, but the model has 64 positions"):
        runs.make(tiny, RUN, objective=objective, data={"length": 60})


def test_documents_are_kept_apart(tiny):
    run = runs.make(tiny, RUN, data={"layout": config.Blocks(attend_across_documents=False)})
    batch = next(Reader(config.reader_config(run)).in_order("train", 16))
    assert batch["segment_ids"].max() > 1 and batch["decoder_segment_ids"].max() > 1
    assert blank_batch(config.reader_config(run), run.data.length).keys() - {"digest"} == batch.keys()
