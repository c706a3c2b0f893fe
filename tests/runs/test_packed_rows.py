"""Packed rows in the commands: their padding before and after, and their inner rows as text."""

import json
import re

import numpy as np
import pytest

from plm_jax import config
from plm_jax.data import reader
from plm_jax.objectives import packing
from tests.support import runs
from tests.support.tiny import RUNS

PADDING = re.compile(r"([\d.]+)% of packed rows of 64, ([\d.]+)% without packing")


def test_commands_report_padding_and_inner_rows(tiny, verb, tmp_path):
    flags = f"--config={tiny}/tiny.py:bert_packed", "--config.train.steps=2"
    run = runs.make(tiny, RUNS["bert_packed"], train={"steps": 2})
    opened = reader.Reader(config.reader_config(run))
    share, unpacked = opened.padding(config.resolve_phases(run)[0])
    assert share < unpacked
    prepared = verb("prepare", *flags)
    planned = verb("plan", *flags, "--topology=none")
    trained = verb("pretrain", *flags, f"--workdir={tmp_path}")
    for finished, output in ((prepared, "out"), (planned, "out"), (trained, "err")):
        assert finished.status == 0, finished.err
        match = PADDING.search(getattr(finished, output))
        assert match is not None, output
        assert match.groups() == (f"{100 * share:.1f}", f"{100 * unpacked:.1f}")
    evaluated = verb("evaluate", f"--checkpoint={tmp_path}", f"--output={tmp_path}/metrics.json")
    assert evaluated.status == 0, evaluated.err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for name in ("a", "b"):
        rows = opened.rows("validation", name, 64)
        num_pairs = rows.numbers(rows.num_rows - 1).stop
        of_pairs = [rows.inner_rows(item, np.random.default_rng(0)) for item in range(rows.num_rows)]
        labels = [inner.example(*row)["pair_label"] for pairs in of_pairs for inner, *row in pairs]
        assert len(labels) == num_pairs == metrics[name]["pairs"]
        assert metrics[name]["pair_constant_accuracy"] == pytest.approx(max(np.mean(labels), 1 - np.mean(labels)))
    shown = verb("examples", f"--workdir={tmp_path}", "--step=1")
    assert shown.status == 0 and "equal to metrics.jsonl" in shown.out, shown.err
    for number, text in enumerate(re.split(r"\nrow \d+: ", shown.out)[1:]):
        inner_rows = packing.split(opened.example(number))
        lines = re.findall(r"  inner row (\d+) of (\d+)\n  tokens: ([\d ]+)\n", text)
        assert [int(line[0]) for line in lines] == list(range(1, len(inner_rows) + 1))
        assert [line[2] for line in lines] == [" ".join(map(str, row["tokens"])) for row in inner_rows]
        targets = re.findall(r"  target at (\d+): .*\((\d+)\)\n", text)
        expected = [pair for row in inner_rows for pair in zip(row["target_positions"], row["targets"], strict=True)]
        assert [(int(position), int(target)) for position, target in targets] == expected
        assert len(re.findall("pair_label", text)) == len(inner_rows)
