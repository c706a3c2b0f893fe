"""What users write in a folder of their own works by the ordinary commands, and nothing in the package names it."""

import functools
import gzip
import json
import pathlib
import re
import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common import users

FOLDER = pathlib.Path(__file__).parent
PAGES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(("test_", "__")))
SMALL = (
    "--config.data.cache_dir=cache_{}",
    "--config.data.length=32",
    "--config.vocabulary.spec=sentencepiece:{}.model",
    "--config.vocabulary.train_size=500",
    "--config.train.batch_size=8",
    "--config.train.phases=()",
    "--config.train.log_every=1",
    "--config.evaluation.every=2",
)
TRANSFORMER = ("--config.model.stack.layers=1", "--config.model.embedding.width=48", "--config.model.attention.heads=6")


def page(name):
    """One of the folder's modules, as a config page."""
    return users.module(str(FOLDER / f"{name}.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder: the pages and a little text."""
    return fill(tmp_path_factory.mktemp("own"))


def fill(folder):
    """Writes the pages and a little text to a folder and returns it."""
    for name in PAGES:
        shutil.copy(FOLDER / f"{name}.py", folder)
    corpus = pathlib.Path(plm_jax.__file__).parent / "data/corpora/moby_dick.jsonl.gz"
    with gzip.open(corpus, "rt") as file, open(folder / "text.jsonl", "w") as small:
        for line in list(file)[:24]:
            small.write(json.dumps({"text": json.loads(line)["text"][:1000]}) + "\n")
    texts = [json.loads(line)["text"] for line in (folder / "text.jsonl").read_text().splitlines()]
    with open(folder / "labels.jsonl", "w") as small:
        for number, text in enumerate(texts):
            small.write(json.dumps({"text": text[:60], "label": "even" if number % 2 else "odd"}) + "\n")
    with open(folder / "preferences.jsonl", "w") as small:
        for text, other in zip(texts, texts[1:] + texts[:1], strict=True):
            row = {"prompt": text[:100], "chosen": text[100:200], "rejected": other[100:200], "margin": 0.5}
            small.write(json.dumps(row | {"prompt": text[:500]}) + "\n")
    return folder


# With a state, model or row of their own; test_gemma resumes a run of its page.
RESUMED = ("muon", "relative_keys", "reward_model", "sign_sgd", "two_stream")


@pytest.mark.parametrize("selected", PAGES)
def test_it_trains_goes_on_evaluates_and_reports(selected, folder, verb):
    name, *variant = selected.split(":")
    written = page(name).get_config(*variant)
    if written.data.sources.sotu.kind == "record_table":
        base, path = name, "preferences.jsonl"
    else:  # Pages that have a vocabulary in common share a cache.
        base, path = "gpt2" if written.vocabulary.mask is None else "bert", "text.jsonl"
    small = [f"--config.data.sources.sotu.path={path}", *(option.format(base) for option in SMALL)]
    small += TRANSFORMER if "attention" in written.model else ()
    workdir = pathlib.Path("runs") / selected.replace(":", "-")
    run = [f"--config={selected.replace(name, f'{name}.py')}", f"--workdir={workdir}", *small]
    for steps in (2, 3) if name in RESUMED else (3,):
        finished = verb("pretrain", *run, f"--config.train.steps={steps}", folder=folder)
        assert finished.status == 0, finished.err
    assert ("resumed after step 2" in finished.err) == (name in RESUMED)
    rows = [json.loads(line) for line in (folder / workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 3 and all(np.isfinite(losses)) and len(set(losses)) == 3

    checkpoint, module = f"--checkpoint={workdir}", f"--module={name}.py"
    if name == PAGES[0]:
        refused = verb("evaluate", checkpoint, folder=folder)
        assert refused.status == 2 and f"--module={folder / name}.py" in refused.errors[0], refused.err
    finished = verb("evaluate", checkpoint, module, "--output=found.json", folder=folder)
    assert finished.status == 0, finished.err
    found = json.loads((folder / "found.json").read_text())
    assert np.isfinite(found["sotu"]["loss"]), found
    finished = verb("report", f"--workdirs={workdir}", "--output=report.html", module, folder=folder)
    assert finished.status == 0 and (folder / "report.html").stat().st_size > 1000, finished.err
    if name == "token_classification":
        assert {"validation/tag_accuracy"} <= rows[1].keys()
    if name == "two_stream":
        uninterrupted = (f"--config={selected.replace(name, f'{name}.py')}", "--workdir=runs/again", *small)
        shutil.rmtree(folder / "runs/again", ignore_errors=True)
        assert verb("pretrain", *uninterrupted, "--config.train.steps=3", folder=folder).status == 0
        rows = [json.loads(line) for line in (folder / "runs/again/metrics.jsonl").read_text().splitlines()]
        assert [row["train/loss"] for row in rows if "train/loss" in row] == losses
        table = ("--train=labels.jsonl", "--text=text", "--label=label", f"--workdir=tasks/{workdir.name}")
        finished = verb("finetune", *table, checkpoint, module, folder=folder)
        assert finished.status == 0 and "validation/accuracy" in finished.out, finished.err
    if name == "qwen2":
        written_by = ("--format=huggingface", f"--source={workdir}", f"--target=exported/{name}")
        finished = verb("convert", *written_by, module, folder=folder)
        assert finished.status == 0, finished.err
        assert_same_in_transformers(folder / workdir, folder / "exported" / name)


def assert_same_in_transformers(workdir, exported):
    """Compares logits of a run with those of its export, and the exported weights bit for bit."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    ours = plm_jax.load(workdir)
    head = transformers.AutoModelForCausalLM if ours.config.kind == "decoder" else transformers.AutoModelForMaskedLM
    theirs, loading = head.from_pretrained(exported, output_loading_info=True)
    assert not any(loading.values()), loading
    tokens = np.random.default_rng(0).integers(5, 400, (2, 16))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(ours.logits(tokens), expected, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, plm_jax.load(exported).params, ours.params)


def test_the_package_names_none_of_them():
    kinds = (
        "alibi",
        "gemma",
        "mask_everything",
        "optax_muon",
        "preference_pairs",
        "qwen2",
        "random_order_lm",
        "relative_keys",
        "sign_sgd",
        "skip_gram",
        "span_order",
        "tagged_masked_lm",
        "two_stream",
    )
    package = pathlib.Path(plm_jax.__file__).parent
    names = re.compile(rf"\b({'|'.join(kinds)})\b", re.IGNORECASE)
    assert [path for path in package.rglob("*.py") if names.search(path.read_text())] == []


def test_the_guide_shows_what_the_pages_hold():
    guide = (FOLDER.parents[1] / "docs/extending.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    pages = [(FOLDER / f"{name}.py").read_text() for name in PAGES]
    assert shown and all(any(part in page for page in pages) for part in shown)
    assert all(f"tests/extending/{name}.py" in guide for name in PAGES)


def test_the_slopes_of_alibi_are_the_published_ones():
    slopes = page("alibi").slopes
    assert slopes(8) == pytest.approx([2.0**-n for n in range(1, 9)])
    # ofirpress/attention_with_linear_biases, models.py: get_slopes(12).
    assert slopes(12) == pytest.approx([*slopes(8), *(2.0 ** -(n / 2) for n in (1, 3, 5, 7))])


@pytest.mark.parametrize(("kind", "scan"), [(models.DecoderConfig, True), (models.EncoderConfig, False)])
def test_alibi_attends_as_the_paper_says(kind, scan):
    """One block, with nothing but attention: against the sums written out."""
    heads, dim, length = 2, 4, 7
    model = kind(
        embedding=models.EmbeddingConfig(vocab_size=11, width=heads * dim),
        attention=models.AttentionConfig(heads=heads, head_dim=dim, position=page("alibi").Alibi(), bias=False),
        feed_forward=models.FeedForwardConfig(width=4, bias=False),
        stack=models.StackConfig(layers=1),
        scan_layers=scan,
    )
    module, tokens = model.module(jnp.float32), np.random.default_rng(0).integers(0, 11, (1, length))
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), tokens)["params"])
    block = jax.tree.map(lambda leaf: leaf[0], params["stack"]["blocks"])
    block["feed_forward"] = jax.tree.map(jnp.zeros_like, block["feed_forward"])
    params["stack"]["blocks"] = jax.tree.map(lambda leaf: leaf[None], block)
    features = jax.jit(functools.partial(module.apply, method="features"))({"params": params}, tokens)

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + model.norm.epsilon)

    x = np.asarray(params["token_embedding"])[tokens[0]]
    project = {name: np.asarray(block["attention"][name]["kernel"]) for name in ("query", "key", "value", "out")}
    query, key, value = ((norm(x) @ project[name]).reshape(length, heads, dim) for name in ("query", "key", "value"))
    scores = np.einsum("qnh,knh->nqk", query, key) / dim**0.5
    place = np.arange(length)
    scores -= np.array([2.0**-4, 2.0**-8])[:, None, None] * np.abs(place[:, None] - place)
    if kind is models.DecoderConfig:
        scores = np.where(place[:, None] >= place, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("nqk,knh->qnh", weights, value).reshape(length, -1) @ project["out"]
    np.testing.assert_allclose(features[0], norm(x + mixed), atol=1e-5)


def test_a_users_optimizer_moves_by_the_sign_of_its_momentum():
    from plm_jax.training import optimizers

    params = {"kernel": jnp.arange(6.0).reshape(2, 3)}
    optimizer = optimizers.build(page("sign_sgd").SignSgd(clip_norm=0.0))
    state, momentum = optimizer.init(params), 0.0
    for step in range(3):
        gradients = {"kernel": jax.random.normal(jax.random.key(step), (2, 3))}
        momentum = 0.9 * momentum + gradients["kernel"]
        updates, state = optimizer.update(gradients, state, params, learning_rate=0.01)
        np.testing.assert_allclose(updates["kernel"], -0.01 * np.sign(momentum), rtol=1e-6)


def test_a_family_is_read_and_written_as_transformers_has_it(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    page("qwen2")
    sizes = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "head_dim": 8}
    described = transformers.Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=0.01)
    torch.manual_seed(0)
    theirs = transformers.Qwen2ForCausalLM(described).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):  # They begin as 0.
            torch.nn.init.normal_(parameter)
    theirs.save_pretrained(tmp_path / "theirs")
    tokens = np.random.default_rng(0).integers(0, 11, (2, 7))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    ours = plm_jax.load(tmp_path / "theirs")
    np.testing.assert_allclose(ours.logits(tokens), expected, atol=1e-4)
    ours.save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is transformers.Qwen2ForCausalLM
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.tensor(tokens)).logits.numpy(), expected)
