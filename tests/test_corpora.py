"""The corpora and mixtures by name: rates as published, every source a config that TensorFlow Datasets knows."""

import json
import subprocess
import sys
import types

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.data.prepare import build, reading
from plm_jax.data.sources import corpora
from tests.support import tiny

# Brown et al. 2020, table 2.2.
GPT3 = {"common_crawl": 60, "webtext2": 22, "books1": 8, "books2": 8, "wikipedia": 3}
# Touvron et al. 2023a, table 1.
LLAMA = {
    "ccnet": 67.0,
    "c4": 15.0,
    "github": 4.5,
    "wikipedia_20_languages": 4.5,
    "gutenberg_books3": 4.5,
    "arxiv": 2.5,
    "stack_exchange": 2.0,
}


def data(name):
    return config.DataConfig(cache_dir="cache", length=8, **corpora.mixture(name))


def test_rates_are_those_of_the_papers():
    bert, roberta, gpt3, llama = (data(name).mixture for name in ("bert", "roberta", "gpt3", "llama"))
    assert bert["wikipedia"] / bert["books"] == 2500 / 800
    assert roberta["wikipedia"] + roberta["books"] == pytest.approx(16)
    assert roberta["wikipedia"] / roberta["books"] == pytest.approx(2500 / 800)
    assert {name: roberta[name] for name in ("cc_news", "openwebtext", "stories")} == {
        "cc_news": 76,
        "openwebtext": 38,
        "stories": 31,
    }
    assert len(roberta) == 5 and sum(roberta.values()) > 160
    assert gpt3 == GPT3 and llama == LLAMA and sum(llama.values()) == 100
    for name, only in {"gpt1": "books", "gpt2": "webtext", "t5": "c4", "elmo": "lm1b"}.items():
        assert list(data(name).mixture) == [only]


@pytest.mark.parametrize("name", corpora.MIXTURES)
def test_each_mixture_makes_a_run(name):
    data_config = data(name)
    assert data_config.sources.keys() == data_config.mixture.keys()
    tree = {**config.to_dict(tiny.PLAIN), "data": config.to_dict(data_config)}
    assert config.from_dict(json.loads(json.dumps(tree))).data == data_config
    assert corpora.MIXTURES[name].reference


FAMILIES = {
    "bert": (
        "bert.py:base",
        "spanbert.py:base",
        "distilbert.py:base",
        "electra.py:base",
        "albert.py:base",
        "glm.py:base",
    ),
    "roberta": ("roberta.py:base", "mpnet.py:base", "bart.py:large", "albert.py:v2-base"),
    "gpt1": ("gpt1.py:base",),
    "gpt2": ("gpt2.py:xl",),
    "gpt3": ("gpt3.py:175b",),
    "llama": ("llama.py:1-7b",),
    "t5": ("t5.py:base",),
    "elmo": ("elmo.py:original",),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_read_what_their_papers_did(name):
    for family in FAMILIES[name]:
        run = config.from_dict(pages.load(f"configs/{family}").config())
        assert {"sources": run.data.sources, "mixture": run.data.mixture} == corpora.mixture(name), family


def test_sources_by_name():
    sources = corpora.sources("realnewslike", "c4_multilingual:sw", "stories")
    assert sources["realnewslike"] == config.Tfds("c4/realnewslike")
    assert sources["c4_multilingual_sw"] == config.Tfds("c4/multilingual", train="sw", validation="sw-validation")
    assert sources["stories"] == config.TextTable("../corpora/stories/*.jsonl.gz")
    with pytest.raises(UserError, match="no corpus 'storys': did you mean 'stories'"):
        corpora.sources("storys")
    with pytest.raises(UserError, match="no mixture 'robert': did you mean 'roberta'"):
        corpora.mixture("robert")


def test_a_source_with_rate_0_is_not_read():
    run = tiny.PLAIN
    changed = {**config.to_dict(run), "data": {**config.to_dict(data("bert")), "mixture": {"books": 1.0}}}
    assert list(config.read_sources(config.from_dict(changed))) == ["books"]
    changed["data"]["mixture"] = {}
    assert list(config.read_sources(config.from_dict(changed))) == ["wikipedia", "books"]
    changed["data"]["mixture"] = {"books": 1.0, "wikipedia": 0.0}
    changed["train"]["phases"] = [{"until": 0.5}, {"until": 1.0, "mixture": {"wikipedia": 1.0}}]
    assert list(config.read_sources(config.from_dict(changed))) == ["wikipedia", "books"]


def test_nothing_of_tensorflow_is_imported():
    code = "import sys; from plm_jax.data.sources import corpora; corpora.mixture('gpt3'); print(*sys.modules)"
    imported = {name.split(".")[0] for name in subprocess.check_output([sys.executable, "-c", code], text=True).split()}
    assert imported & {"tensorflow", "tensorflow_datasets", "seqio", "apache_beam", "torch"} == set()


TFDS = {name: corpus.source for name, corpus in corpora.CORPORA.items() if isinstance(corpus.source, config.Tfds)}
TFDS["c4_multilingual_sw"] = corpora.sources("c4_multilingual:sw")["c4_multilingual_sw"]


@pytest.mark.parametrize("name", TFDS)
def test_tfds_has_the_corpus_and_its_field(name, tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    from plm_jax.data.sources import tasks

    source = TFDS[name]
    splits = {
        split: types.SimpleNamespace(num_examples=3, num_bytes=0, file_instructions=[{"filename": split}])
        for split in (source.train, source.validation)
    }
    monkeypatch.setattr(tfds.core.DatasetInfo, "splits", splits)
    with tfds.testing.mock_data(num_examples=3):
        task = tasks.task(name, source)
        texts = list(tasks.texts(task, "train"))
        assert len(texts) == 3 and all(isinstance(text, str) and text for text in texts)
        assert [piece.split for piece in reading.pieces(name, source)] == ["train", "validation"]
        assert build.bar("tokenizing", source.open(name), show=False).total == 6


def test_a_missing_corpus_is_named_with_the_field_to_set(verb, tmp_path):
    finished = verb("prepare", "--config=configs/gpt2.py:small", f"--config.data.cache_dir={tmp_path}")
    assert (finished.status, len(finished.errors)) == (2, 1)
    assert "/corpora/webtext/*.jsonl.gz: put the documents of 'webtext' there" in finished.err
    assert "config.data.sources.webtext.path" in finished.err
