import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

RNG = np.random.default_rng(0)


def test_targets_are_next_tokens():
    result = objectives.get("causal")({"tokens": np.array([5, 6, 7, 8], np.int32)}, RNG)
    assert {k: (v.tolist(), v.dtype.name) for k, v in result.items()} == {
        "tokens": ([5, 6, 7], "int32"),
        "targets": ([6, 7, 8], "int32"),
        "target_weights": ([1.0, 1.0, 1.0], "float32"),
    }


def test_padding_has_no_weight():
    example = {"tokens": np.array([5, 6, 0, 0]), "mask": np.array([1, 1, 0, 0])}
    assert objectives.get("causal")(example, RNG)["target_weights"].tolist() == [1, 0, 0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 4))
def test_separate_documents(lengths, padding):
    segments = [i + 1 for i, n in enumerate(lengths) for _ in range(n)] + [0] * padding
    tokens = np.arange(len(segments), dtype=np.int32)
    mask = np.array([s > 0 for s in segments], np.int32)
    if len(tokens) < 2:
        return
    example = {"tokens": tokens, "segment_ids": np.array(segments, np.int32), "mask": mask}
    result = objectives.get("causal")(example, RNG)
    for i in range(len(tokens) - 1):
        assert result["target_weights"][i] == (segments[i] == segments[i + 1] != 0)
        assert result["positions"][i] == i - segments.index(segments[i])
    assert result["segment_ids"].tolist() == segments[:-1]
    assert {v.dtype.name for k, v in result.items() if k != "target_weights"} == {"int32"}


def test_unknown_names_are_rejected():
    with pytest.raises(UserError, match="did you mean 'causal'"):
        objectives.get("casual")
    with pytest.raises(UserError, match="has no setting 'rate'"):
        objectives.get("causal", rate=1)
