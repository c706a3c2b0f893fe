"""Memory and imports of a process in which `prepare` tokenizes: there is one for each core."""

import pytest

from plm_jax import config
from plm_jax.common import workers
from plm_jax.data.prepare import reading, tokenizing
from tests.support import worker_memory

MOST_BYTES = 80e6
MOVIES = "plm_jax/data/corpora/movie_sentiment.jsonl.gz"
FORM = config.ClassForm(("negative", "positive"), text="sentence", label="sentiment")


@pytest.mark.parametrize(
    "source",
    [
        config.TextTable("plm_jax/data/corpora/sotu.jsonl.gz"),
        config.TableInputsTargets("plm_jax/data/corpora/tatoeba_en_es.jsonl.gz", inputs="{en}", targets="{es}"),
        config.LabeledTable(MOVIES, FORM),
    ],
    ids=lambda source: source.kind,
)
def test_a_worker_is_small_and_imports_no_accelerator_library(source, tmp_path):
    data = config.DataConfig(str(tmp_path), 128, {"a": source})
    task = tokenizing.task(data, config.VocabularyConfig("bytes"), "a")
    batches = tokenizing.in_batches(reading.all_documents(data, "a"))
    states = list(workers.in_order(worker_memory.measuring, (task,), batches, 1))
    assert all(state.num_documents > 0 for state in states)
    for state in states:
        assert not state.modules & {"jax", "jaxlib", "flax", "optax", "orbax", "tensorflow", "seqio"}
        assert state.resident_at_start <= MOST_BYTES and state.anonymous <= MOST_BYTES
