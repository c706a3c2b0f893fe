"""Padding of batches and of a run, counted again from the ids of the tokens, whose id of padding is no byte."""

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data import padding
from plm_jax.data.reader import Reader
from plm_jax.runs import loop, phase_costs
from tests.support import runs
from tests.support.tiny import RUNS

PAD = 257
DOCUMENTS = {"layout": config.Documents()}
APART = {"layout": config.Blocks(attend_across_documents=False)}
# Name of a run, changed fields of its data, and its objective if it is not that of the run.
CASES = {
    "causal": ("plain", {}, None),
    "causal, apart": ("separate", APART, None),
    "prefix": ("plain", {}, objectives.DecoderPrefixLM()),
    "decoder": ("plain", {}, objectives.DecoderTextToText()),
    "masked": ("roberta", {}, None),
    "masked documents": ("distilbert", DOCUMENTS, None),
    "pairs": ("bert", {}, None),
    "packed": ("bert_packed", {}, None),
    "replaced": ("electra", {}, None),
    "spans": ("t5", {}, None),
    "modes": ("t5", {}, objectives.UL2()),
    "denoising": ("bart", {}, None),
    "blanks": ("glm", {}, None),
}


def make(folder, name, data, objective, **sections):
    run = RUNS[name]
    return runs.make(folder, run, data=data, objective=objective or run.objective, **sections)


def counted(batch) -> np.ndarray:
    """Number of padding tokens of each row. The targets of a decoder are its inputs, shifted by one after padding."""
    arrays = [batch["tokens"], *([batch["targets"]] if "decoder_tokens" in batch else [])]
    return sum((array == PAD).sum(1) for array in arrays)


@pytest.mark.parametrize("case", CASES)
def test_digests_count_padding(case, tiny):
    run = make(tiny, *CASES[case])
    reader, (phase, *_) = Reader(config.reader_config(run)), config.resolve_phases(run)
    # The first rows, and those of a whole source, of which some layouts pad only the last row.
    batches = [reader.batch(step, range(phase.batch_size)) for step in range(4)]
    rows = reader.num_rows("train", "a")["a"]
    (whole,) = reader.in_order("train", rows, name="a")
    counts = [*(batch["digest"][:, 2] for batch in batches), padding.count_padding(whole)]
    expected = [counted(batch) for batch in (*batches, whole)]
    for count, number in zip(counts, expected, strict=True):
        np.testing.assert_array_equal(count, number)
    assert expected[-1].any()
    sizes = sum(batches[0][key].size for key in ("tokens", "decoder_tokens") if key in batches[0])
    assert sizes == phase_costs.num_tokens(run, phase)


def test_streams_read_the_same_padding_in_both_directions():
    batch = {"characters": np.zeros((2, 2, 3, 4)), "target_weights": np.array([[[1, 1, 0]] * 2, [[0, 0, 0]] * 2])}
    np.testing.assert_array_equal(padding.count_padding(batch), [1, 3])


def test_rows_that_do_not_mark_padding_have_none():
    batch = {"texts": np.zeros((3, 5), np.int32)}
    np.testing.assert_array_equal(padding.count_padding(batch), [0, 0, 0])


def test_runs_log_the_share_since_the_last_row(tiny, tmp_path):
    phases = (config.PhaseConfig(until=0.5, batch_size=16), config.PhaseConfig(until=1.0))
    train = {"steps": 6, "log_every": 2, "batch_size": 8, "phases": phases}
    run = make(tiny, *CASES["masked documents"], train=train)
    loop.pretrain(run, str(tmp_path / "run"))
    reader, pads, tokens = Reader(config.reader_config(run)), [], []
    for step, batch in enumerate(reader.batches(0)):
        pads.append(counted(batch).sum())
        phase = config.resolve_phases(run)[step // 3]
        tokens.append(phase_costs.num_tokens(run, phase))
    expected = {step: sum(pads[step - 2 : step]) / sum(tokens[step - 2 : step]) for step in (2, 4, 6)}
    assert runs.column(tmp_path / "run", "train/padding_share") == pytest.approx(expected)
    assert all(0 < share < 1 for share in expected.values())


def test_several_rows_of_an_example_count_together():
    mask = np.array([[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 1]]])
    np.testing.assert_array_equal(padding.count_padding({"tokens": mask, "mask": mask}), [3, 0])


def test_padding_without_packing_is_that_of_one_row_per_inner_row():
    """Two packed rows of 10 tokens with three and two inner rows, of which one token is padding."""
    masks, segment_ids = np.ones((2, 10), np.int32), np.ones((2, 10), np.int32)
    masks[0, -1] = segment_ids[0, -1] = 0
    segment_ids[0, 3:6], segment_ids[0, 6:9], segment_ids[1, 4:] = 2, 3, 2
    examples = [{"mask": mask, "segment_ids": ids} for mask, ids in zip(masks, segment_ids, strict=True)]
    packed = padding.Padding.of(examples, is_packed=True)
    assert packed.share == pytest.approx(1 / 20) and packed.unpacked == pytest.approx(1 - 19 / 50)
    assert padding.Padding.of(examples, is_packed=False) == (pytest.approx(1 / 20), None)
