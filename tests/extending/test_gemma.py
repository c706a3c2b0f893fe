"""The Gemma of a user's file: logits of transformers, and a distilled run that is killed, resumed and exported."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.training import optimizers
from tests.extending.test_extending import SMALL, assert_same_in_transformers, fill, page
from tests.support import resume

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SIZES = {"vocab_size": 23, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2}
CONFIGS = {
    "multi_query": {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    "grouped": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 2},
    "narrow": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6, "rms_norm_eps": 0.1},
    "bias": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "attention_bias": True},
    "theta": {
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "max_position_embeddings": 16},
    },
}


def of_transformers(settings, seed):
    """Returns a `GemmaForCausalLM` with random weights, including norms and biases."""
    torch.manual_seed(seed)
    theirs = transformers.GemmaForCausalLM(transformers.GemmaConfig(**{**SIZES, **settings})).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_logits_equal_transformers(settings, tmp_path):
    page("gemma")
    theirs = of_transformers(settings, 0)
    theirs.save_pretrained(tmp_path / "theirs")
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (3, 13))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    ours = plm_jax.load(tmp_path / "theirs")
    np.testing.assert_allclose(ours.logits(tokens), expected, atol=1e-4)
    scale = ours.params["stack"]["final_norm"]["scale"]
    np.testing.assert_allclose(scale, 1 + theirs.model.norm.weight.detach().numpy(), atol=1e-6)

    ours.save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is transformers.GemmaForCausalLM
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(tokens)).logits.numpy(), expected, atol=1e-5)
    read = plm_jax.load(tmp_path / "ours")
    jax.tree.map(np.testing.assert_array_equal, read.params, ours.params)
    read.save(tmp_path / "again", format="huggingface")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "again")]
    assert weights[0] == weights[1]


def test_norms_of_half_precision_files_are_not_rounded(tmp_path):
    page("gemma")
    of_transformers(CONFIGS["multi_query"], 0).to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    theirs = transformers.GemmaForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32).eval()
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (3, 13))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(plm_jax.load(tmp_path / "theirs").logits(tokens), expected, atol=1e-4)


def test_bidirectional_gemma_is_rejected():
    with pytest.raises(UserError, match="use_bidirectional_attention is True: must be false"):
        page("gemma").GemmaFamily().to_settings({**SIZES, "use_bidirectional_attention": True})


def test_muon_has_a_state_of_hidden_matrices_only():
    run = config.from_dict(page("gemma").get_config())
    shapes = registry.shapes(run.model)
    optimizers.check_groups(run.optimizer, shapes)
    state = jax.eval_shape(optimizers.build(run.optimizer).init, shapes)
    names = {optimizers.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
    assert "stack/blocks/attention/query/kernel" in names and "token_embedding" in names


def test_killed_distillation_resumes_and_is_exported(verb, tmp_path):
    """A student of one layer with a teacher of two; SIGKILL ends its first run."""
    folder = fill(tmp_path)
    small = ["--config.data.sources.sotu.path=text.jsonl", *(option.format("gpt2") for option in SMALL)]
    small += ["--config.checkpoint.save_every=2"]
    finished = verb(
        "pretrain", "--config=gemma.py", "--workdir=teacher", *small, "--config.train.steps=2", folder=folder
    )
    assert finished.status == 0, finished.err

    student = ["--config=gemma.py:teacher", *small, "--config.model.stack.layers=1", "--config.train.steps=12"]
    finished = verb("pretrain", *student, "--workdir=whole", folder=folder)
    assert finished.status == 0, finished.err
    process = subprocess.Popen(
        [sys.executable, "-m", "plm_jax", "pretrain", *student, "--workdir=killed"],
        cwd=folder,
        env=resume.environment() | {"PYTHONPATH": os.getcwd()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    resume.kill_at(process, folder / "killed", 5, in_save=False, delay=0.0)
    assert process.returncode < 0, f"the run ended with {process.returncode} before it was killed"
    finished = verb("pretrain", *student, "--workdir=killed", folder=folder)
    assert finished.status == 0 and "resumed after step" in finished.err, finished.err
    assert resume.last_step(folder / "whole") == 12
    assert resume.differences(folder / "killed", folder / "whole") == []
    assert all("train/divergence_loss" in row for row in resume.rows(folder / "whole") if "train/loss" in row)

    exported = ("--source=killed", "--target=exported", "--format=huggingface", "--module=gemma.py")
    finished = verb("convert", *exported, folder=folder)
    assert finished.status == 0, finished.err
    page("gemma")
    assert_same_in_transformers(folder / "killed", folder / "exported")
