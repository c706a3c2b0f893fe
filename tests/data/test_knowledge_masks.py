"""ERNIE's masks: three sources of one text, with a segmenter each, of which every phase reads one."""

import json
import re

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common import users
from plm_jax.runs import preparation
from tests.support.data import changed, open_reader

PHRASE, ENTITY, SINGLE = "甲乙", "丙丁戊", "子"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PHRASE, *ENTITY, SINGLE]
STAGES = ("tokens", "phrases", "entities")
STEPS = 150


def phrases(text):
    return re.findall(f"{PHRASE}|.", text)


def entities(text):
    return re.findall(f"{ENTITY}|.", text)


@pytest.fixture
def run(tmp_path, make_run):
    users.trust([__name__])
    rng = np.random.default_rng(0)
    texts = ("".join(rng.choice([PHRASE, ENTITY, SINGLE], rng.integers(5, 60))) for _ in range(200))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    data = {
        "cache_dir": str(tmp_path / "caches"),
        "sources": {stage: config.TextTable(str(tmp_path / "text.jsonl")) for stage in STAGES},
        "segmenters": {stage: f"{__name__}:{stage}" for stage in STAGES[1:]},
        "length": 64,
    }
    stages = [config.PhaseConfig(until=(i + 1) / 3, mixture={stage: 1.0}) for i, stage in enumerate(STAGES)]
    train = {"steps": 3 * STEPS, "phases": tuple(stages)}
    run = make_run("x", objective=objectives.MaskedLM(independent=True, whole_words=1), data=data, train=train)
    spec = f"wordpiece:{tmp_path}/vocab.txt"
    return changed(run, vocabulary=config.VocabularyConfig(spec=spec, pad=0, unk=1, cls=2, sep=3, mask=4))


def together(reader, steps, first, second):
    """Returns of the tokens `first` that precede a `second`: their number, how many are chosen, and both of them."""
    counts = np.zeros(3)
    for step in steps:
        for example in (reader.example(k) for k in reader.numbers(step)):
            at = example["target_positions"][example["target_weights"] > 0]
            tokens, chosen = example["tokens"].copy(), np.zeros(len(example["tokens"]), bool)
            tokens[at], chosen[at] = example["targets"][example["target_weights"] > 0], True
            (pairs,) = ((tokens[:-1] == first) & (tokens[1:] == second)).nonzero()
            counts += len(pairs), chosen[pairs].sum(), (chosen[pairs] & chosen[pairs + 1]).sum()
    return counts


def test_units_are_masked_together_in_their_stage_alone(run):
    preparation.prepare(run, show_progress=False)
    reader, ids = open_reader(run), {token: i for i, token in enumerate(VOCABULARY)}
    units = {"phrases": PHRASE, "entities": ENTITY[1:]}
    for number, stage in enumerate(STAGES):
        steps = range(number * STEPS, (number + 1) * STEPS)
        for of_stage, (first, second) in units.items():
            total, chosen, both = together(reader, steps, ids[first], ids[second])
            assert total > 2000 and abs(chosen / total - 0.15) < 0.03
            assert both == chosen if of_stage == stage else abs(both / total - 0.15**2) < 0.012
