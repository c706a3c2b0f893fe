"""A whole run with every path in a bucket, killed in a save and resumed, beside the same run on a disk."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import plm_jax
from tests.support import bucket, resume, xla
from tests.support import tiny as tiny_config

SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[sMASK]", "[gMASK]", "<|startofpiece|>", "<|endofpiece|>"]
WORDS = [*SYMBOLS, ".", *sorted(set(tiny_config.TEXT.split()))]
SPECIALS = {"pad": 0, "unk": 1, "cls": 2, "bos": 2, "sep": 3, "eos": 3, "mask": 4, "smask": 5, "gmask": 6}
SPECIALS |= {"sop": 7, "eop": 8, "sentinels": 0}


@pytest.fixture
def remote(tmp_path, monkeypatch):
    with bucket.Bucket() as made:
        for name, value in {**made.environment, "HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        yield made


def arguments(root):
    """The flags of a run of BERT with sentence pairs and all that it reads and writes below `root`."""
    return [
        f"--config.data.cache_dir={root}/cache",
        *(f"--config.data.sources.{name}.path={root}/corpus/{name}*.jsonl" for name in "ab"),
        f"--config.vocabulary.spec=wordpiece:{root}/vocab.txt",
        *(f"--config.vocabulary.{name}={value}" for name, value in SPECIALS.items()),
    ]


def kill_in_save(remote, arguments, prefix):
    """SIGKILLs a pretraining at its first write of an object of that prefix, which is lost; what it had imported."""

    def before_write(name):
        if name.startswith(prefix):
            process.send_signal(signal.SIGKILL)
            raise bucket.Refused(503)

    remote.before_write = before_write
    command = [sys.executable, "-X", "importtime", "-m", "plm_jax", "pretrain", *arguments]
    process = subprocess.Popen(command, env=resume.environment(), stderr=subprocess.PIPE, text=True)
    _, lines = process.communicate()
    assert process.returncode == -signal.SIGKILL, lines[-2000:]
    remote.before_write = lambda name: None
    return {line.rpartition("|")[2].strip() for line in lines.splitlines()}


def test_a_run_in_a_bucket_is_the_run_on_a_disk(remote, verb, tmp_path):
    tiny_config.write(tmp_path)
    (tmp_path / "corpus").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        os.rename(tmp_path / name, tmp_path / "corpus" / name)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for path in (tmp_path / "vocab.txt", *(tmp_path / "corpus").iterdir()):
        remote.put(str(path.relative_to(tmp_path)), path.read_bytes())
    config = f"--config={tmp_path}/tiny.py:bert"
    environment = {**remote.environment, "HOME": str(tmp_path / "home")}

    def run(name, *flags):
        finished = verb(name, *flags, **environment)
        assert finished.status == 0, finished.err
        return finished

    for root in (str(tmp_path), "gs://bucket"):
        run("prepare", config, *arguments(root))
    assert "up to date" in run("prepare", config, *arguments("gs://bucket")).out
    run("pretrain", config, *arguments(tmp_path), f"--workdir={tmp_path}/run")

    command = [config, *arguments("gs://bucket"), "--workdir=gs://bucket/run"]
    imported = kill_in_save(remote, command, "run/checkpoints/6/params/")
    assert {"gcsfs.core", "google.cloud.storage"} <= imported and not {"tensorflow", "seqio"} & imported
    assert remote.names("run/checkpoints/6/") and "run/checkpoints/6/commit_success.txt" not in remote.objects
    assert [row["step"] for row in rows(remote)] == [1, 2, 3, 4, 5, 6]  # Before the save began.
    assert plm_jax.load("gs://bucket/run").step == 3
    assert "resumed after step 3" in run("pretrain", *command).err

    assert [(row["step"], row["train/batch_digest"], row["train/loss"]) for row in rows(remote)] == [
        (row["step"], row["train/batch_digest"], row["train/loss"]) for row in resume.rows(tmp_path / "run")
    ]
    assert json.loads(remote.read("run/config.json"))["config"]["data"]["cache_dir"] == "gs://bucket/cache"
    assert any("events.out.tfevents" in name for name in remote.names("run/"))
    evaluated = run("evaluate", "--checkpoint=gs://bucket/run").out
    assert evaluated == run("evaluate", f"--checkpoint={tmp_path}/run").out
    assert json.loads(remote.read("run/evaluation.jsonl"))["step"] == 6
    run("report", "--workdirs=gs://bucket/run", "--output=gs://bucket/report.html")
    assert b"</html>" in remote.read("report.html")
    loaded = plm_jax.load("gs://bucket/run"), plm_jax.load(str(tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, *(lm.params for lm in loaded))
    texts = [lm.generate(["the [MASK] of the whale"]) for lm in loaded]
    assert texts[0] == texts[1]
    loaded[0].save("gs://bucket/exported", format="huggingface")
    exported = plm_jax.load("gs://bucket/exported")
    jax.tree.map(np.testing.assert_array_equal, loaded[1].params, exported.params)


def rows(remote):
    return [json.loads(line) for line in remote.read("run/metrics.jsonl").splitlines()]


def test_a_bucket_that_is_not_there_is_one_line(tmp_path, tiny, verb, remote):
    environment = {**remote.environment, "HOME": str(tmp_path / "home")}
    config = f"--config={tiny}/tiny.py"
    for name, flags in {
        "prepare": [config, "--config.data.cache_dir=gs://missing/cache"],
        "pretrain": [config, "--workdir=gs://missing/run"],
        "evaluate": ["--checkpoint=gs://missing/run"],
    }.items():
        finished = verb(name, *flags, **environment)
        assert finished.status == 2 and len(finished.errors) == 1, finished.err
        assert "gs://missing" in finished.errors[0]


def test_what_was_compiled_is_kept_in_a_bucket(remote):
    """As the launchers ask for; a second process loads it."""
    code = """
from plm_jax.common import command_line
command_line.start_jax()
import jax
from jax import monitoring
found = []
monitoring.register_event_listener(lambda event, **_: found.append(event))
jax.jit(lambda x: x @ x.T)(jax.numpy.ones((8, 8))).block_until_ready()
print(sum(event.endswith("cache_hits") for event in found))
"""
    variables = {"JAX_COMPILATION_CACHE_DIR": "gs://bucket/run/compilation"}
    variables |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "XLA_FLAGS": xla.flags(devices=1)}
    command = [sys.executable, "-c", code]
    hits = [int(subprocess.check_output(command, env={**os.environ, **variables}, text=True)) for _ in range(2)]
    assert hits[0] == 0 and hits[1] >= 1
    assert any(name.startswith("run/compilation/jit__lambda") for name in remote.names())
