"""Models of the Hugging Face Hub as sources, and uploads, against a Hub in memory."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats, transfer
from tests.support import exports, hub, moods, tiny
from tests.support.verbs import assert_one_line

PICKLE = "pytorch_model.bin"
UNREAD = ("README.md", PICKLE, "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx")
SHORT = ("--config.train.epochs=0.3", "--config.evaluation.every=0", "--config.evaluation.select=")
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT in Hugging Face format, with files that are not read."""
    folder = tmp_path_factory.mktemp("bert")
    model = exports.pretrained("bert", "uncased", tmp_path_factory.mktemp("vocabulary"))
    checkpoint_formats.save(str(folder), exports.randomized(model), "huggingface")
    (folder / "onnx").mkdir()
    for name in UNREAD:
        (folder / name).write_bytes(b"other")
    return folder


@pytest.fixture
def server(tmp_path):
    with hub.Hub(tmp_path / "home") as running:
        yield running


@pytest.fixture
def call(server, verb):
    """Function that runs a verb with the Hub's address, without a token."""
    return lambda name, *arguments, **environment: verb(name, *arguments, **(server.environment | environment))


def changed(folder, target, seed=1):
    """Copies a model with other weights."""
    shutil.copytree(folder, target)
    with checkpoint_formats.opened(str(folder)) as pretrained:
        checkpoint_formats.save(str(target), exports.randomized(pretrained, seed), "huggingface")
    return target


def weights(path):
    with checkpoint_formats.opened(str(path)) as pretrained:
        return {name: leaf[...].tobytes() for name, leaf in pretrained.flat().items()}


def test_a_revision_is_downloaded_without_files_that_are_not_read(bert, server, call, tmp_path):
    first = server.add("org/bert", bert)
    newer = changed(bert, tmp_path / "newer")
    server.add("org/bert", newer)
    server.repositories["org/bert"].refs["v1"] = first
    for source, expected in (("", newer), ("@main", newer), ("@v1", bert), (f"@{first}", bert)):
        target = tmp_path / f"ours{source}"
        done = call("convert", f"--source=hf:org/bert{source}", f"--target={target}")
        assert done.status == 0, done.err
        assert weights(target) == weights(expected)
    downloaded = {request.rpartition("/")[2] for request in server.requests if request.startswith("GET /org/bert/")}
    assert "model.safetensors" in downloaded and "vocab.txt" in downloaded
    assert not downloaded & {pathlib.Path(name).name for name in UNREAD}


def test_a_cached_model_needs_no_network(bert, server, call, tmp_path):
    sha = server.add("org/bert", bert)
    assert call("generate", "--checkpoint=hf:org/bert", "--prompt=The [MASK]").status == 0
    server.requests.clear()
    for source in ("hf:org/bert", f"hf:org/bert@{sha}"):
        done = call("generate", f"--checkpoint={source}", "--prompt=The [MASK]", HF_HUB_OFFLINE="1")
        assert done.status == 0 and done.out.startswith("the"), done.err
    assert call("generate", f"--checkpoint=hf:org/bert@{sha}", "--prompt=The [MASK]").status == 0
    assert not server.requests
    unreachable = call("generate", "--checkpoint=hf:org/bert", "--prompt=a [MASK]", HF_ENDPOINT="http://localhost:9")
    assert unreachable.status == 0, unreachable.err


def test_a_converted_directory_is_read_from_a_repository(bert, server, call, tmp_path):
    checkpoint_formats.convert(str(bert), str(tmp_path / "ours"), "plm_jax")
    sha = server.add("org/ours", tmp_path / "ours")
    done = call("convert", "--source=hf:org/ours", f"--target={tmp_path}/back")
    assert done.status == 0 and weights(tmp_path / "back") == weights(bert), done.err
    # `hf download` adds these.
    for name in ("README.md", ".gitattributes", ".cache/huggingface/x"):
        (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ours" / name).write_text("added")
    assert weights(tmp_path / "ours") == weights(bert)
    (snapshot,) = (tmp_path / "home").rglob(f"snapshots/{sha}")
    (snapshot / "model.safetensors").resolve().write_bytes(b"damaged")
    assert_one_line(call("convert", "--source=hf:org/ours", f"--target={tmp_path}/no"), "model.safetensors has 7 bytes")


def test_python_loads_a_repository(bert, server):
    server.add("org/bert", bert)
    code = "import plm_jax; print(plm_jax.load('hf:org/bert').num_parameters)"
    environment = server.environment | {"PATH": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert int(done.stdout) == plm_jax.load(bert).num_parameters, done.stderr


def finetune(call, folder, workdir, source="hf:org/encoder", **environment):
    arguments = (f"--config={folder}/moods.py", f"--checkpoint={source}", f"--workdir={workdir}")
    return call("finetune", *arguments, *SHORT, **environment)


def recorded(workdir):
    return json.loads((workdir / "config.json").read_text())["config"]["train"]["init_from"]


def losses(workdir):
    return [json.loads(line).get("train/loss") for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_records_the_commit_and_resumes_with_it(server, call, tmp_path):
    moods.write(tmp_path)
    sha = server.add("org/encoder", tmp_path / "encoder")
    first = finetune(call, tmp_path, tmp_path / "run")
    assert first.status == 0 and recorded(tmp_path / "run") == f"hf:org/encoder@{sha}", first.err
    expected = losses(tmp_path / "run")
    checkpoint_formats.save(str(tmp_path / "encoder"), moods.pretrained(tiny.BERT, seed=1), "plm_jax")
    newer = server.add("org/encoder", tmp_path / "encoder")
    shutil.rmtree(tmp_path / "run/checkpoints")  # As if it had been killed before its first checkpoint.
    again = finetune(call, tmp_path, tmp_path / "run")
    assert again.status == 0 and recorded(tmp_path / "run") == f"hf:org/encoder@{sha}", again.err
    assert losses(tmp_path / "run") == expected
    server.requests.clear()
    finished = finetune(call, tmp_path, tmp_path / "run")
    assert finished.status == 0 and "is finished at step 2" in finished.out + finished.err
    assert not server.requests
    other = finetune(call, tmp_path, tmp_path / "other", "hf:org/encoder@main")
    assert other.status == 0 and recorded(tmp_path / "other") == f"hf:org/encoder@{newer}"
    assert losses(tmp_path / "other") != expected


def test_initial_weights_of_a_config_are_pinned(server, call, tmp_path):
    moods.write(tmp_path)
    sha = server.add("org/encoder", tmp_path / "encoder")
    run = config.from_dict(config.to_dict(moods.RUN), replaces_model=True)
    run = config.resolve(config.to_dict(run), str(tmp_path / "moods.py"), replaces_model=True)
    run = transfer.resolve(run, str(tmp_path / "encoder"))
    tree = config.to_dict(dataclasses.replace(run, train=dataclasses.replace(run.train, init_from="hf:org/encoder")))
    code = f"from plm_jax import config\nTREE = {tree!r}\n\ndef get_config():\n"
    (tmp_path / "page.py").write_text(f"{code}    return config.to_config_dict(config.from_dict(TREE))\n")
    done = call("pretrain", f"--config={tmp_path}/page.py", f"--workdir={tmp_path}/run", *SHORT)
    assert done.status == 0 and recorded(tmp_path / "run") == f"hf:org/encoder@{sha}", done.err


@pytest.mark.parametrize(
    ("source", "phrases"),
    [
        ("hf:org/missing", ["the Hub has no repository org/missing that you may read", "HF_TOKEN"]),
        ("hf:org/private", ["the Hub has no repository org/private that you may read", "HF_TOKEN"]),
        ("hf:org/gated", ["hf:org/gated is gated", "accept its conditions at https://huggingface.co/org/gated"]),
        ("hf:org/bert@v9", ["hf:org/bert has no revision 'v9'", "pass a branch, a tag or the hash of a commit"]),
        (f"hf:org/bert@{'0' * 40}", [f"hf:org/bert has no revision '{'0' * 40}'"]),
        ("hf:org/pickle", ["has pickles (pytorch_model.bin)", "hf:org/pickle@refs/pr/1", "hf download org/pickle"]),
        ("hf:org/data", ["hf:org/data has no model that plm_jax reads"]),
        ("hf:org/no-config", ["hf:org/no-config has no config.json"]),
        ("hf:bert", ["'hf:bert' does not name a repository: expected hf:ORG/NAME"]),
        ("hf:org/a--b..", ["'org/a--b..' is not a valid name"]),
    ],
)
def test_a_source_that_cannot_be_downloaded_is_one_line(source, phrases, bert, server, call, tmp_path):
    server.add("org/bert", bert)
    server.add("org/private", bert, private=True)
    server.add("org/gated", bert, gated=True)
    for name, files in (
        ("pickle", ("config.json", PICKLE)),
        ("data", ("README.md",)),
        ("no-config", ("model.safetensors",)),
    ):
        server.repositories[f"org/{name}"] = hub.Repository()
        server.repositories[f"org/{name}"].commit({file: (bert / file).read_bytes() for file in files})
    assert_one_line(call("convert", f"--source={source}", f"--target={tmp_path}/ours"), *phrases)
    if source in ("hf:org/private", "hf:org/gated"):
        done = call("convert", f"--source={source}", f"--target={tmp_path}/ours", HF_TOKEN=hub.TOKEN)
        assert done.status == 0, done.err


def test_without_a_network_or_the_library_the_error_is_one_line(bert, server, call, verb, tmp_path):
    server.add("org/bert", bert)
    arguments = ("convert", "--source=hf:org/bert", f"--target={tmp_path}/ours")
    assert_one_line(call(*arguments, HF_HUB_OFFLINE="1"), "not completely in the cache while HF_HUB_OFFLINE is set")
    assert_one_line(call(*arguments, HF_ENDPOINT="http://localhost:9"), "cannot reach the Hugging Face Hub (Connect")
    server.before = lambda method, path: (_ for _ in ()).throw(hub.Refused(500, "", "down"))
    assert_one_line(call(*arguments), "the Hub failed to answer for org/bert (HTTP 500: down): try again later")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['huggingface_hub'] = None")
    environment = os.environ | server.environment | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "plm_jax", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    # A slow machine also reports that it loads JAX.
    last = done.stderr.splitlines()[-1]
    assert last == "error: huggingface_hub is not installed: run pip install '.[hub]' in a checkout of plm_jax"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, verb):
    """A fine-tuned run that is evaluated."""
    folder = tmp_path_factory.mktemp("trained")
    moods.write(folder)
    workdir = folder / "run"
    arguments = (f"--config={folder}/moods.py", f"--checkpoint={folder}/encoder", f"--workdir={workdir}")
    assert verb("finetune", *arguments, "--config.train.epochs=0.3").status == 0
    return workdir


@pytest.fixture
def push(call):
    """Function that pushes a model with the owner's token."""
    return lambda *arguments: call("convert", *arguments, HF_TOKEN=hub.TOKEN)


def test_a_run_is_uploaded_with_a_model_card(trained, server, call, push, tmp_path):
    done = push(f"--source={trained}", "--push=me/mood")
    assert done.status == 0, done.err
    *_, uploaded, evaluate, license = done.out.splitlines()
    repository = server.repositories["me/mood"]
    assert uploaded == f"uploaded as hf:me/mood ({server.url}/me/mood/commit/{repository.refs['main']})"
    assert f"plm_jax evaluate --checkpoint={trained}" in evaluate and "--license=ID" in license
    assert len(repository.commits) == 2 and not repository.private  # Creation and one commit.
    assert set(repository.files) == {
        *(".gitattributes", "README.md", "config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    card = repository.files["README.md"].decode()
    assert card.startswith('---\nlibrary_name: "transformers"\ntags: ["plm_jax", "jax", "bert"]\n---\n\n# mood\n')
    assert "from transformers import AutoTokenizer, BertForSequenceClassification" in card
    assert 'plm_jax.load("hf:me/mood")' in card and "| mood | labeled_table | mood.jsonl |" in card
    assert "plm_jax finetune --config=moods.py --checkpoint=encoder --workdir=run --config.train.epochs=0.3" in card
    assert re.search(r"^\| `validation/accuracy` \| \d+\.\d\d % \|  \|$", card, re.MULTILINE)
    assert str(trained.parent) not in card
    done = call("convert", "--source=hf:me/mood", f"--target={tmp_path}/back", "--format=huggingface")
    assert done.status == 0 and weights(tmp_path / "back").keys() == weights(trained).keys(), done.err
    # Another format replaces the files of the first one, and only those.
    repository.commit({**repository.files, "picture.png": b"picture"})
    assert call("evaluate", f"--checkpoint={trained}").status == 0
    flags = ("--format=plm_jax", "--license=mit", f"--target={tmp_path}/kept")
    done = push(f"--source={trained}", "--push=me/mood", *flags)
    assert done.status == 0 and len(done.out.splitlines()) == 2, done.err
    assert len(repository.commits) == 4
    local = {path.relative_to(tmp_path / "kept").as_posix() for path in (tmp_path / "kept").rglob("*.*")}
    assert local >= {"README.md", "manifest.json"}
    assert set(repository.files) == {*local, "picture.png", ".gitattributes"}
    card = repository.files["README.md"].decode()
    assert 'library_name: "plm_jax"' in card and 'license: "mit"' in card and "from transformers" not in card
    assert re.search(r"^\| `mood/accuracy` \| \d+\.\d\d % \| 55\.00 % \|$", card, re.MULTILINE)
    # The metrics of the run, which the repository does not hold, are left out of another upload.
    done = push("--source=hf:me/mood", "--push=you/copy")
    copy = server.repositories["you/copy"].files["README.md"].decode()
    assert 'base_model: "me/mood"' in copy and "## Metrics" not in copy, done.err


def test_a_failed_upload_is_repaired_by_the_same_command(bert, server, push, tmp_path):
    server.add("me/bert", changed(bert, tmp_path / "before"))
    repository = server.repositories["me/bert"]
    before = repository.files
    arguments = (f"--source={bert}", f"--target={tmp_path}/kept", "--push=me/bert", "--format=plm_jax")

    def refuse(method, path):
        if "/commit/" in path:
            raise hub.Refused(503, "", "overloaded")

    server.before = refuse
    assert_one_line(push(*arguments), "the Hub failed to answer for me/bert (HTTP 503: overloaded): try again later")
    assert repository.files == before and not (tmp_path / "kept").exists()

    def kill(method, path):
        if method == "PUT":
            process.kill()

    server.before, server.large = kill, {}
    environment = os.environ | server.environment | {"HF_TOKEN": hub.TOKEN}
    process = subprocess.Popen([sys.executable, "-m", "plm_jax", "convert", *arguments], env=environment, cwd=ROOT)
    assert process.wait() == -signal.SIGKILL
    assert repository.files == before and (tmp_path / "kept").exists()
    server.before = lambda method, path: None
    done = push(*arguments)
    assert done.status == 0, done.err
    assert len(repository.commits) == 2
    assert repository.files["model.safetensors"] == (tmp_path / "kept/model.safetensors").read_bytes()
    assert not {"tokenizer.json", "vocab.txt"} & repository.files.keys()
    assert "onnx/model.onnx" in repository.files  # plm_jax does not read it.
    shutil.rmtree(tmp_path / "kept")
    assert push(*arguments).status == 0 and len(repository.commits) == 2  # Nothing has changed.


def test_an_elmo_is_uploaded_and_read(server, call, push, tmp_path):
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), registry.shapes(tiny.ELMO))
    checkpoint_formats.save(str(tmp_path / "elmo"), Pretrained(tiny.ELMO, params), "bilm")
    assert_one_line(push(f"--source={tmp_path}/elmo", "--push=me/elmo"), "does not support ELMos: use bilm or plm_jax")
    done = push(f"--source={tmp_path}/elmo", "--push=me/elmo", "--format=bilm")
    assert done.status == 0, done.err
    done = call("convert", "--source=hf:me/elmo", f"--target={tmp_path}/back")
    assert done.status == 0 and weights(tmp_path / "back") == weights(tmp_path / "elmo"), done.err


def test_a_model_is_uploaded_for_sentence_transformers(trained, server, push):
    done = push(f"--source={trained}", "--push=me/sentences", "--format=sentence-transformers", "--normalize")
    assert done.status == 0, done.err
    uploaded = server.repositories["me/sentences"].files
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= uploaded.keys()
    assert "2_Normalize" in uploaded["modules.json"].decode()
    card = uploaded["README.md"].decode()
    assert card.startswith('---\nlibrary_name: "sentence-transformers"\n')
    assert 'SentenceTransformer("me/sentences")' in card and "AutoTokenizer" not in card


def test_privacy_of_an_upload(bert, server, push):
    assert push(f"--source={bert}", "--push=me/secret", "--private").status == 0
    assert server.repositories["me/secret"].private
    assert push(f"--source={bert}", "--push=me/secret", "--private").status == 0
    server.add("me/public", bert)
    refused = push(f"--source={bert}", "--push=me/public", "--private")
    assert_one_line(refused, "me/public already exists on the Hub and is public")
    assert len(server.repositories["me/public"].commits) == 1


@pytest.mark.parametrize(
    ("flags", "phrase"),
    [
        (["--push=me/bert"], "the Hub does not let you write to me/bert: set HF_TOKEN"),
        (["--push=other/bert"], "the Hub does not let you write to other/bert: set HF_TOKEN"),
        (["--push=bert"], "'hf:bert' does not name a repository"),
        (["--push=me/bert", "--target=gs://bucket/x"], "--push uploads from a local folder"),
        (["--private", "--target=x"], "--private and --license have no effect without --push"),
        ([], "--target is missing"),
    ],
)
def test_an_upload_that_is_not_possible_is_one_line(flags, phrase, bert, server, call):
    server.add("other/bert", bert)
    assert_one_line(call("convert", f"--source={bert}", *flags), phrase)
    assert len(server.repositories) == len(server.repositories["other/bert"].commits) == 1
