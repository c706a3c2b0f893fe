"""Converted directories, and the way between all forms of a model, bit for bit and in little memory."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

import plm_jax
from plm_jax import config, models
from plm_jax.common import sealing
from plm_jax.common.errors import UserError
from plm_jax.configs import demo
from plm_jax.hub import families, files, huggingface, tasks, tensor_layout
from plm_jax.hub.family import Family
from plm_jax.hub.gpt2 import Gpt2Family
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats, checkpoints, model_text
from tests import golden
from tests.support import bucket, exports, moods, resume, runs
from tests.support import tiny as tiny_config


def weights(folder) -> dict[str, np.ndarray]:
    """All tensors of a directory, read by the safetensors library."""
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def edit(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | fields).items() if v != "absent"}))
    reseal(folder)


def reseal(folder):
    """Seals a converted directory again after a change."""
    if (folder / sealing.MANIFEST).exists():
        sealing.seal(str(folder), {"format": 1})


@pytest.fixture(scope="module")
def trained(tiny, verb, tmp_path_factory):
    """A finished run of four steps with checkpoints 2 and 4."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    options = ("--config.train.steps=4", "--config.checkpoint.save_every=2")
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *options)
    assert finished.status == 0, finished.err
    return workdir


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "run"
    checkpoint_formats.convert(str(trained), str(folder), "plm_jax")
    return folder


@pytest.fixture
def copy(converted, tmp_path):
    """A converted directory to spoil."""
    return shutil.copytree(converted, tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, np.float32) for name in golden.ALL), ("gpt2", ml_dtypes.bfloat16)]
)
def test_conversion_and_back_changes_no_bit(name, dtype, tmp_path):
    theirs = shutil.copytree(golden.FOLDER / name, tmp_path / "theirs")
    narrow = {key: np.ascontiguousarray(value.astype(dtype)) for key, value in weights(theirs).items()}
    save_file(narrow, theirs / "model.safetensors")
    checkpoint_formats.convert(str(theirs), str(tmp_path / "ours"), "plm_jax")
    checkpoint_formats.convert(str(tmp_path / "ours"), str(tmp_path / "back"), "huggingface")
    assert_same(weights(tmp_path / "back"), narrow)
    one, other = plm_jax.load(theirs), plm_jax.load(tmp_path / "ours")
    assert (one.config, one.special_ids) == (other.config, other.special_ids)
    assert_same(one.params, other.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(other.params)} == {np.dtype(np.float32)}


def test_tensors_are_named_like_parameters(tmp_path):
    checkpoint_formats.convert(str(golden.FOLDER / "gpt2"), str(tmp_path / "ours"), "plm_jax")
    lm, found = plm_jax.load(golden.FOLDER / "gpt2"), weights(tmp_path / "ours")
    assert_same(found, runs.flat(lm.params))
    assert found["stack/blocks/attention/query/kernel"].shape == (2, 24, 24)


def test_converted_directory_describes_itself(converted, trained):
    described = json.loads((converted / "config.json").read_text())
    assert described["format"] == 1 and described["model"]["kind"] == "decoder"
    one, other = plm_jax.load(trained), plm_jax.load(converted)
    assert (one.config, one.run) == (other.config, other.run)
    assert (one.step, one.vocabulary_id) == (other.step, other.vocabulary_id)
    assert one.step == 4 and one.special_ids == other.special_ids and other.special_ids["eos_token_id"] == 256
    assert (one.workdir, other.workdir) == (str(trained), None)
    assert_same(one.params, other.params)


def test_checkpoint_converts_outside_its_run(trained, tmp_path):
    path = shutil.copytree(trained / "checkpoints" / "2", tmp_path / "alone")
    checkpoint_formats.convert(str(path), str(tmp_path / "converted"), "plm_jax")
    lm = plm_jax.load(tmp_path / "converted")
    assert lm.step == 2
    assert_same(runs.flat(lm.params), runs.flat(checkpoints.load_params(str(path)).params))


def test_saved_run_computes_the_same_logits(trained, tmp_path):
    lm, tokens = plm_jax.load(trained), np.arange(24).reshape(2, 12)
    for form in ("plm_jax", "huggingface"):
        lm.save(tmp_path / form, format=form)
        again = plm_jax.load(tmp_path / form)
        np.testing.assert_array_equal(again.logits(tokens), lm.logits(tokens))
        assert again.run == (lm.run if form == "plm_jax" else None)
    assert (again.config.head, again.config.stack) == (lm.config.head, lm.config.stack)
    with pytest.raises(UserError, match="did you mean 'plm_jax'"):
        lm.save(tmp_path / "other", format="plm-jax")
    assert not (tmp_path / "other").exists()


def test_vocabulary_and_family_are_converted(tmp_path, monkeypatch):
    theirs = shutil.copytree(golden.FOLDER / "gpt2", tmp_path / "theirs")
    files = {"vocab.json": json.dumps({f"<{i}>": i for i in range(30)}), "merges.txt": "#version: 0.2\n"}
    for name, content in files.items():
        (theirs / name).write_text(content)
    monkeypatch.setattr(Family, "choices", dict(Family.choices))

    class CousinFamily(Gpt2Family):
        kind = "cousin"
        name = "Cousin"

    edit(theirs, model_type="cousin")
    checkpoint_formats.convert(str(theirs), str(tmp_path / "ours"), "plm_jax")
    shutil.rmtree(theirs)
    os.rename(tmp_path / "ours", tmp_path / "moved")
    checkpoint_formats.convert(str(tmp_path / "moved"), str(tmp_path / "back"), "huggingface")
    for name, content in files.items():
        assert (tmp_path / "back" / name).read_text() == content
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "cousin"


def params_of(model):
    """Parameters of a model, all 0."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), registry.shapes(model))


def test_settings_unknown_to_hugging_face_are_saved(tmp_path):
    for model in (tiny_config.BERT, tiny_config.T5, tiny_config.with_dropout(tiny_config.MODEL, 0.3)):
        plm_jax.LanguageModel(model, params_of(model)).save(tmp_path / model.kind, format="plm_jax")
        assert plm_jax.load(tmp_path / model.kind).config == model


def test_evaluation_of_a_converted_directory_equals_that_of_the_run(tiny, trained, verb, tmp_path):
    made = verb("convert", f"--source={trained}", f"--target={tmp_path}/ours")
    assert made.status == 0, made.err
    count = plm_jax.load(trained).num_parameters
    assert f"{tmp_path}/ours: decoder, {count:,} parameters, float32, head: vocabulary" in made.out
    of_run, of_ours = (verb("evaluate", f"--checkpoint={path}", "--tasks=a") for path in (trained, tmp_path / "ours"))
    assert of_run.status == of_ours.status == 0, of_run.err + of_ours.err
    assert of_ours.out == of_run.out and len(of_ours.out) > 9


@pytest.mark.parametrize(
    ("format", "heads"),
    [
        ("plm_jax", "head: classes, pooler: pooler"),
        ("huggingface", "head: classes, pooler: pooler"),
        ("sentence-transformers", "head: none, pooler: none"),
    ],
)
def test_a_conversion_reports_what_is_written(format, heads, tmp_path):
    base = replace(tiny_config.BERT, head=models.NoHead(), pooler=models.Pooler())
    model = base.with_task(tasks.new("classes", base, ("a", "b"), families.registered()["bert"]))
    checkpoint_formats.save(str(tmp_path / "source"), moods.pretrained(model), "plm_jax")
    line = checkpoint_formats.convert(str(tmp_path / "source"), str(tmp_path / "written"), format)
    count = plm_jax.load(tmp_path / "written").num_parameters
    assert line == f"{tmp_path}/written: encoder, {count:,} parameters, float32, {heads}"


@pytest.mark.parametrize("form", ["plm_jax", "huggingface"])
def test_training_starts_from_converted_weights(form, converted, tiny, tmp_path):
    expected = runs.flat(plm_jax.load(converted).params)
    if form == "huggingface":
        checkpoint_formats.convert(str(converted), str(tmp_path / form), form)
    source = converted if form == "plm_jax" else tmp_path / form
    state, notes = runs.start(runs.make(tiny, train={"init_from": str(source), "seed": 9}))
    assert_same(runs.flat(state.params), expected)
    assert int(state.step) == 0
    assert notes == [f"loaded {len(expected)} of {len(expected)} parameters from {source}"]


def test_new_and_superfluous_heads_are_reported(tiny, tmp_path):
    model = tiny_config.BERT
    bare = replace(model, head=models.NoHead(), pooler=models.Pooler(0))
    alone = replace(model, pooler=models.NoHead())
    plm_jax.LanguageModel(bare, params_of(bare)).save(tmp_path / "bare", format="plm_jax")
    plm_jax.LanguageModel(bare, params_of(bare)).save(tmp_path / "theirs", format="huggingface")
    run = tiny_config.of_bert(runs.make(tiny))
    heads = ["classifier/bias", "classifier/kernel", "head_bias"]
    heads += ["head_norm/bias", "head_norm/scale", "head_transform/bias", "head_transform/kernel"]
    _, notes = runs.start(runs.make(tiny, run, train={"init_from": str(tmp_path / "theirs")}))
    assert notes[1:] == [f"new: {', '.join(heads)}"]
    blocks = {"model": alone, "data": {"layout": config.Blocks()}}
    blocks = runs.make(tiny, run, **blocks, train={"init_from": str(tmp_path / "bare")})
    _, notes = runs.start(blocks)
    assert notes[1:] == [f"new: {', '.join(heads[2:])}", "left out: pooler/bias, pooler/kernel"]


DAMAGE = [
    ({"format": 2}, ["has format 2", "use the version that wrote it"]),
    ({"run": "absent", "step": "absent"}, ["config.json is damaged (its run, step is missing", "convert again"]),
    ({"vocabulary_id": 3, "vocabulary": {}, "run": 0}, ["its run, vocabulary, vocabulary_id is", "convert again"]),
    ({"model": {"kind": "decodr"}}, ["config.json: model.kind is 'decodr'", "did you mean 'decoder'?"]),
    ({"model": None}, ["its model is missing or of another type"]),
    ({"model": {"kind": []}}, ["config.json: model.kind is []", "choose from: ", "encoder_decoder"]),
    ({"run": {"schedule": {"kind": []}}}, ["config.model is missing: set it"]),
    ({"special_ids": {"eos_token_id": "2"}}, ["config.json: eos_token_id is 2: expected a token id"]),
    ({"special_ids": {"begins_with": 2}}, ["config.json: begins_with is 2: expected a list of token ids"]),
    ({"special_ids": []}, ["its special_ids is missing or of another type"]),
]


@pytest.mark.parametrize(("fields", "says"), DAMAGE)
def test_damaged_configs_are_rejected(copy, fields, says):
    edit(copy, **fields)
    assert_refused(copy, *says)


@pytest.mark.parametrize(("part", "size"), [("layers", 10**6), ("layers", 10**30), ("width", 10**12)])
def test_huge_sizes_are_rejected(copy, part, size):
    model = json.loads((copy / "config.json").read_text())["model"]
    model["stack" if part == "layers" else "embedding"][part] = size
    edit(copy, model=model | {"scan_layers": False})
    assert_refused(copy, f".{part} is {size}: must be between 1 and ")


def test_other_vocabularies_are_rejected(copy):
    assert plm_jax.load(copy).tokenizer.vocab_size == 271
    edit(copy, vocabulary_id="0" * 64)
    with pytest.raises(
        UserError, match="the model was trained with 000000000000: put the files of that vocabulary there"
    ):
        _ = plm_jax.load(copy).tokenizer


def assert_refused(path, *says):
    with pytest.raises(UserError) as error:
        plm_jax.load(path)
    assert "\n" not in str(error.value)
    for words in says:
        assert words in str(error.value)


def test_all_mismatching_weights_are_named(copy):
    tensors = load_file(copy / "model.safetensors")
    del tensors["stack/final_norm/scale"]
    tensors["stack/final_norm/scales"] = tensors["position_embedding"][:1]
    tensors["position_embedding"] = tensors["position_embedding"][1:]
    tensors["token_embedding"] = tensors["token_embedding"].astype(np.int32)
    save_file(tensors, copy / "model.safetensors")
    reseal(copy)
    assert_refused(
        copy,
        "missing: stack/final_norm/scale;",
        "unknown: stack/final_norm/scales;",
        "position_embedding is F32 [63, 32] and not [64, 32]",
        "token_embedding is I32",
    )
    (copy / "model.safetensors").unlink()
    reseal(copy)
    assert_refused(copy, "neither model.safetensors nor")


def test_invalid_conversions_write_nothing(trained, verb, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(b"x")
    shutil.copy(golden.FOLDER / "gpt2" / "config.json", tmp_path / "pickle")
    new = f"--target={tmp_path}/new"
    mistakes = [
        ([f"--source={trained}"], ["--target"]),
        ([new], ["--source"]),
        ([f"--source={tmp_path}/none", new], ["none does not exist", "Hugging Face"]),
        ([f"--source={tmp_path}/full", new], ["no config.json"]),
        ([f"--source={tmp_path}/pickle", new], ["a pickle", "python -c"]),
        ([f"--source={trained}", f"--target={tmp_path}/full"], ["full is not empty"]),
        ([f"--source={trained}", f"--target={tmp_path}/full/file"], ["file is not empty"]),
        ([f"--source={trained}", new, "--format=torch"], ["format", "plm_jax"]),
    ]
    for flags, says in mistakes:
        finished = verb("convert", *flags)
        assert finished.status == 2 and len(finished.errors) == 1, (flags, finished.err)
        for words in says:
            assert words in finished.errors[0], finished.errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "pickle"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_models_are_converted_in_a_bucket(converted, tmp_path, monkeypatch):
    with bucket.Bucket() as remote:
        for name, value in {**remote.environment, "HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        checkpoint_formats.convert(str(converted), "gs://bucket/ours", "plm_jax")
        assert remote.names()[0] == "ours/config.json" and len(remote.names()) == 3
        checkpoint_formats.convert("gs://bucket/ours", "gs://bucket/theirs", "huggingface")
        with pytest.raises(UserError, match="gs://bucket/theirs is not empty"):
            checkpoint_formats.convert(str(converted), "gs://bucket/theirs", "huggingface")
        checkpoint_formats.convert("gs://bucket/theirs", str(tmp_path / "back"), "plm_jax")
    assert_same(weights(tmp_path / "back"), weights(converted))


KILLED = """
import os, signal, sys
from plm_jax.common import storage

with storage.writing_folder(sys.argv[1]), storage.writing(os.path.join(sys.argv[1], "model.safetensors")) as file:
    storage.write(os.path.join(sys.argv[1], "vocabulary", "vocab.json"), b"{}")
    file.write(b"x")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_conversion_can_be_repeated(converted, tmp_path):
    target = tmp_path / "target"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], cwd=os.getcwd())
    names = sorted(path.name for path in target.iterdir())
    assert killed.returncode == -9 and names[0] == ".unfinished" and names[1].endswith(".tmp") and len(names) == 3
    assert_refused(target, "no config.json")
    checkpoint_formats.convert(str(converted), str(target), "plm_jax")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in converted.iterdir()
    }


def test_saving_again_seals_again(converted, copy):
    """In the same folder, with other weights."""
    lm = plm_jax.load(converted)
    model = replace(lm.config, stack=replace(lm.config.stack, layers=1))
    plm_jax.LanguageModel(model, params_of(model)).save(copy, format="plm_jax")
    assert plm_jax.load(copy).config == model
    (copy / "manifest.json").unlink()
    assert_refused(copy, "is damaged (it has no manifest.json): convert again, or use a copy of it")


def test_saving_removes_files_of_another_model(tmp_path):
    theirs = shutil.copytree(golden.FOLDER / "gpt2", tmp_path / "theirs")
    (theirs / "generation_config.json").write_text('{"num_beams": 3}')
    (theirs / "manifest.json").write_text('{"name": "of another program"}')
    checkpoint_formats.convert(str(theirs), str(tmp_path / "ours"), "plm_jax")
    assert (tmp_path / "ours/huggingface/generation_config.json").exists()
    model = tiny_config.PLAIN.model
    plm_jax.LanguageModel(model, params_of(model)).save(tmp_path / "ours", format="plm_jax")
    assert not (tmp_path / "ours/huggingface").exists() and not (tmp_path / "ours/vocabulary").exists()
    plm_jax.load(theirs).save(tmp_path / "ours", format="huggingface")
    assert plm_jax.load(tmp_path / "ours").config == plm_jax.load(theirs).config


# What a process keeps in memory, KiB: files that are mapped count too.
PEAK = """
import sys
from plm_jax.runs import checkpoint_formats

def kibibytes(name):
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1])

with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # The peak begins here.
before = kibibytes("VmRSS")
checkpoint_formats.convert(*sys.argv[1:])
print(kibibytes("VmHWM") - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="Linux tells the peak")
def test_conversion_needs_a_fraction_of_the_memory_of_the_model(tmp_path):
    """Both ways, from several shards: 16 layers of 512 make 202 MB, of which a tensor has 4 MB."""
    config_json = {"model_type": "gpt2", "vocab_size": 2000, "n_embd": 512, "n_layer": 16, "n_head": 8}
    model = families.registered()["gpt2"].to_settings(config_json)
    layout = tensor_layout.layout(families.registered()["gpt2"].tensors, model)
    shapes = {name: stored.shape for name, stored in layout.items()}
    numbers = np.random.default_rng(0).normal(size=2000 * 512).astype(np.float32)

    def content(shape):
        return files.Content(shape, np.dtype(np.float32), lambda: [np.resize(numbers, shape)])

    files.write(str(tmp_path / "a"), {name: content(shape) for name, shape in shapes.items()}, shard_bytes=6 * 10**7)
    files.write_json(str(tmp_path / "a" / "config.json"), config_json)
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 4
    size = sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
    for source, target, form in (("a", "b", "plm_jax"), ("b", "c", "huggingface")):
        command = [sys.executable, "-c", PEAK, str(tmp_path / source), str(tmp_path / target), form]
        done = subprocess.run(command, env=resume.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) * 1024 < 0.4 * size, f"{form}: {int(done.stdout) / 1024:.0f} MiB of {size / 2**20:.0f}"


def test_suggested_format_can_be_written(tmp_path):
    roberta = huggingface.read(str(golden.FOLDER / "roberta"))
    assert checkpoint_formats.format_for_others(roberta) == "huggingface"
    # The positions of Hugging Face's RoBERTa start after the id of the padding token.
    moved = replace(roberta, special_ids=roberta.special_ids | {"pad_token_id": 0})
    assert checkpoint_formats.format_for_others(moved) == "plm_jax"
    with pytest.raises(UserError, match="requires pad_token_id = 3, but this model has 0"):
        checkpoint_formats.save(str(tmp_path / "moved"), moved, "huggingface")
    elmo = replace(roberta, model=demo.elmo().model, family=None)
    assert checkpoint_formats.format_for_others(elmo) == "bilm"
    tuned = replace(elmo, model=replace(elmo.model, heads=(("task", models.ClassesHead(labels=("a", "b"))),)))
    assert checkpoint_formats.format_for_others(tuned) == "plm_jax"


@pytest.mark.parametrize(
    ("layout", "is_framed"), [(config.Blocks(), False), (config.Blocks(frames=True), True), (config.Documents(), True)]
)
def test_an_encoder_that_was_trained_without_special_tokens_is_reported(layout, is_framed, tmp_path, capsys):
    base = exports.pretrained("bert", "uncased", tmp_path)
    run = demo.bert()
    data = replace(run.data, layout=layout)
    train = replace(run.train, phases=())
    run = replace(run, model=base.model, vocabulary=model_text.section(base), data=data, train=train)
    checkpoint_formats.save(str(tmp_path / "ours"), replace(base, run=run, step=1), "plm_jax")
    for form in ("huggingface", "sentence-transformers", "plm_jax"):
        checkpoint_formats.convert(str(tmp_path / "ours"), str(tmp_path / form), form)
        expected = (
            f"warning: {tmp_path}/ours was trained on rows without cls and sep, so the exported tokenizer adds none of "
            "them (data.layout is blocks)\n"
        )
        assert (expected in capsys.readouterr().err) == (not is_framed and form != "plm_jax")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "huggingface/tokenizer.json"))
    ids = tokenizer.encode("a text").ids
    assert (base.special_ids["cls_token_id"] in ids) == is_framed
