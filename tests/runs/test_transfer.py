"""`pretrain --from=SRC`: what is taken of a run, a converted and a Hugging Face directory, and what is not."""

import dataclasses
import shutil

import numpy as np
import pytest

import plm_jax
from plm_jax import config, models, objectives
from plm_jax.common import sealing
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.runs import checkpoint_formats, loop, transfer
from tests.support import moods, runs
from tests.support import tiny as tiny_config


@pytest.fixture(scope="module")
def sources(tiny, tmp_path_factory):
    """The tiny run in all the forms that it may have, by the forms' names."""
    folder = tmp_path_factory.mktemp("sources")
    loop.pretrain(runs.make(tiny, train={"steps": 1}), str(folder / "run"))
    for form in ("plm_jax", "huggingface"):
        checkpoint_formats.convert(str(folder / "run"), str(folder / form), form)
    return folder


@pytest.mark.parametrize("form", ["run", "plm_jax", "huggingface"])
def test_config_receives_model_and_vocabulary_of_a_checkpoint(form, sources, tiny):
    wider = dataclasses.replace(
        tiny_config.with_dropout(tiny_config.MODEL),
        feed_forward=models.FeedForwardConfig(width=128),
        scan_layers=False,
        remat="full",
    )
    page = runs.make(tiny, model=wider, vocabulary={"spec": "wordpiece:nowhere", "eos": 3, "sentinels": 0})
    run = transfer.resolve(page, str(sources / form))
    own = runs.make(tiny)
    # The widths and ids are the checkpoint's; dropout and speed, of which it knows nothing, the page's.
    assert run.model.feed_forward.width == 64 and run.model.embedding == own.model.embedding
    assert (run.model.dropout, run.model.scan_layers, run.model.remat) == (wider.dropout, False, "full")
    assert run.vocabulary.eos == 256 and run.vocabulary.spec.split(":")[0] in ("bytes", "json")
    if form != "huggingface":
        assert dataclasses.replace(run.vocabulary, spec="bytes") == own.vocabulary
    assert run.train.init_from == str(sources / "run/checkpoints/1" if form == "run" else sources / form)
    identity = vocabularies.identity(vocabularies.load_plain(run.vocabulary))
    assert run.data.cache_dir == f"{page.data.cache_dir}/{identity[:12]}"
    for section in ("objective", "optimizer", "schedule", "mesh", "precision", "checkpoint", "evaluation"):
        assert getattr(run, section) == getattr(page, section)
    # One checkpoint of a run is itself, wherever it is kept.
    shutil.copytree(sources / "run/checkpoints/1", sources / "run/checkpoints/best", dirs_exist_ok=True)
    about = {"format": 2, "checkpoint": "best", "step": 1, "sealed": 1.5e9}
    sealing.seal(str(sources / "run/checkpoints/best"), about)
    best = transfer.resolve(page, str(sources / "run/checkpoints/best"))
    assert best.train.init_from == str(sources / "run/checkpoints/best")


def test_checkpoints_of_other_architectures_are_rejected(sources, tiny):
    page = runs.make(tiny, model=tiny_config.BERT, objective=objectives.MaskedLM(), data={"layout": config.Blocks()})
    with pytest.raises(
        UserError, match=r"objective .masked_lm. trains models of kind .* config\.model\.kind is .decoder."
    ):
        transfer.resolve(page, str(sources / "run"))


def test_pooler_is_loaded_only_for_pairs(tiny, tmp_path):
    checkpoint_formats.save(str(tmp_path / "bert"), moods.pretrained(tiny_config.BERT), "plm_jax")
    masked = {"model": tiny_config.BERT, "objective": objectives.MaskedLM(), "vocabulary": {"mask": 260, "cls": 258}}
    page = runs.make(tiny, data={"layout": config.Blocks()}, **masked)
    assert transfer.resolve(page, str(tmp_path / "bert")).model.pooler == models.NoHead()
    pairs = runs.make(tiny, data={"layout": config.SentencePairs(), "segmenters": {}}, **masked)
    assert transfer.resolve(pairs, str(tmp_path / "bert")).model.pooler == models.Pooler()


def test_the_same_command_starts_and_resumes(sources, tiny, verb, tmp_path):
    options = ("--config.schedule.learning_rate=0", "--config.optimizer.weight_decay=0", "--config.train.steps=1")
    command = (f"--config={tiny}/tiny.py:plain", f"--from={sources}/run", f"--workdir={tmp_path}", *options)
    finished = verb("pretrain", *command)
    assert finished.status == 0, finished.err
    before, after = (runs.flat(plm_jax.load(str(path)).params) for path in (sources / "run", tmp_path))
    for name, leaf in before.items():
        np.testing.assert_array_equal(leaf, after[name], err_msg=name)
    again = verb("pretrain", *command)
    assert again.status == 0 and "is finished at step 1" in again.err, again.err


def test_source_without_a_vocabulary_is_rejected(sources, tiny, tmp_path):
    shutil.copytree(sources / "huggingface", tmp_path / "bare")
    for path in (tmp_path / "bare").iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    with pytest.raises(UserError, match="the model has no vocabulary in its directory: copy its files there"):
        transfer.resolve(runs.make(tiny), str(tmp_path / "bare"))


@pytest.mark.parametrize("model", ["T5", "ELMO", "stand_in", "short"])
def test_replaced_model_of_a_config_is_not_checked(model, sources, tiny):
    replaced = {
        "stand_in": models.FromCheckpointConfig(),
        "short": dataclasses.replace(
            tiny_config.MODEL,
            attention=dataclasses.replace(tiny_config.MODEL.attention, position=models.LearnedPositions(length=4)),
        ),
    }
    page = dataclasses.replace(runs.make(tiny), model=replaced.get(model) or getattr(tiny_config, model))
    tree = config.to_dict(page)
    run = transfer.resolve(config.resolve(tree, f"{tiny}/tiny.py", replaces_model=True), str(sources / "run"))
    own = runs.make(tiny)
    assert (run.model.kind, run.model.stack, run.objective) == ("decoder", own.model.stack, own.objective)
    # The checkpoint's model is checked instead.
    masked = dataclasses.replace(page, objective=objectives.MaskedLM())
    with pytest.raises(UserError, match="objective 'masked_lm' trains models of kind 'encoder'"):
        page = config.resolve(config.to_dict(masked), f"{tiny}/tiny.py", replaces_model=True)
        transfer.resolve(page, str(sources / "run"))


def test_config_of_an_encoder_trains_a_decoder(sources, tiny, verb, tmp_path):
    model = (
        "--config.model.kind=encoder",
        "--config.model.embedding.vocab_size=40",
        "--config.model.embedding.width=8",
    )
    command = (f"--config={tiny}/tiny.py:plain", *model, f"--from={sources}/huggingface", f"--workdir={tmp_path}")
    finished = verb("pretrain", *command, "--config.train.steps=1")
    assert finished.status == 0, finished.err
    assert plm_jax.load(str(tmp_path)).config.kind == "decoder"
