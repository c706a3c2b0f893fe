"""The fast ways to tokens and sentence starts give what the libraries' own ids and offsets give."""

import dataclasses
import os
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

import plm_jax
from plm_jax import config
from plm_jax.common import workers
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.prepare import tokenizing
from plm_jax.data.vocabularies import sentences, tokenizer_files, training, word_spans
from plm_jax.runs import preparation
from tests.data.test_prepare import corpus, run  # noqa: F401
from tests.support import squares
from tests.support.caches import contents

GPT2 = pathlib.Path(plm_jax.__file__).parent / "data/gpt2"
KINDS = ["unigram", "bpe", "nmt_nfkc", "folded", "wordpiece", "gpt2", "tiktoken"]
ALPHABET = "abé.!?'s  \t\n\r\u00a0\u3000\u2028\x1c\x85\u200b1９½…”。你\u0301🙂▁ﬁ#İÉΣ가"


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request, tmp_path_factory, lines):
    folder, kind = tmp_path_factory.mktemp("vocabularies"), request.param
    specs = {
        "wordpiece": config.VocabularyConfig(f"wordpiece:{folder}/v.txt", pad=0, unk=1, train_size=350),
        "gpt2": config.VocabularyConfig(f"bpe:{GPT2}/vocab.json,{GPT2}/merges.txt"),
        "tiktoken": config.VocabularyConfig(f"tiktoken:{folder}/v.model", train_size=400),
    }
    spec = specs.get(
        kind, config.VocabularyConfig(f"sentencepiece:{folder}/v.model", pad=0, eos=1, unk=2, train_size=500)
    )
    if kind == "folded":
        spec = dataclasses.replace(spec, lowercase=True)
    if kind in ("unigram", "bpe", "nmt_nfkc"):
        spec = dataclasses.replace(spec, train_kind="" if kind == "nmt_nfkc" else kind)
    if spec.train_size:
        training.train(lines, spec)
    if kind == "nmt_nfkc":  # T5's: characters are normalized, white space is joined, and there are unknown pieces.
        model = sentencepiece_model_pb2.ModelProto()
        path = vocabularies.files(spec.spec)[0]
        model.ParseFromString(pathlib.Path(path).read_bytes())
        for piece in model.pieces:
            piece.type = piece.UNUSED if piece.type == piece.BYTE else piece.type
        model.trainer_spec.byte_fallback = False
        model.normalizer_spec.Clear()
        model.normalizer_spec.name = "nmt_nfkc"
        pathlib.Path(path).write_bytes(model.SerializeToString())
    return vocabularies.load_plain(spec)


def slowly(vocabulary, text):
    """Ids and sentence starts of one text by the library's own offsets."""
    ((ids, offsets),) = vocabulary.encode_offsets([text])
    cuts = sentences.boundaries(text)
    if vocabulary.byte_offsets:
        cuts = [len(text[:cut].encode()) for cut in cuts]
    starts = {0, *(next((i for i, at in enumerate(offsets) if at >= cut), len(ids)) for cut in cuts)}
    return list(ids), sorted(start for start in starts if start < len(ids))


def first_bytes(vocabulary, text):
    """Returns the number of bytes of the first token by the library's offsets."""
    ((ids, offsets),) = vocabulary.encode_offsets([text])
    if not len(ids):
        return 0
    if (count := vocabulary._byte_counts.get(int(ids[0]))) is not None:
        return count
    if len(ids) == 1:
        return len(text.encode())
    return offsets[1] if vocabulary.byte_offsets else len(text[: offsets[1]].encode())


def same(vocabulary, texts):
    assert vocabulary.encode_parts(texts, [])[3] == [first_bytes(vocabulary, text) for text in texts]
    for text, (ids, starts) in zip(texts, vocabulary.encode_sentences(texts), strict=True):
        assert (ids.tolist(), starts.tolist()) == slowly(vocabulary, text), text


def test_mixed_lines_are_encoded_as_the_library_does(vocabulary, lines):
    same(vocabulary, [*lines[:300], "", *(" \n ".join(lines[i : i + 9]) for i in range(0, 90, 9))])


@settings(max_examples=60)
@given(st.lists(st.text(ALPHABET, max_size=30), min_size=1, max_size=4))
def test_any_text_is_encoded_as_the_library_does(vocabulary, texts):
    same(vocabulary, texts)


def test_the_table_of_spans_is_bounded_and_changes_nothing(vocabulary, lines, monkeypatch):
    if not getattr(vocabulary, "separable", False):
        pytest.skip("it remembers nothing")
    monkeypatch.setattr(word_spans, "_MAX_TOKENS", 200)
    fresh = word_spans.SpanTokenizer(vocabulary.encode_offsets)
    for begin in range(0, 200, 20):
        ids, _, sizes = fresh(lines[begin : begin + 20])
        expected = [vocabulary.encode(text) for text in lines[begin : begin + 20]]
        assert ids.tolist() == [i for encoded in expected for i in encoded]
        assert sizes.tolist() == list(map(len, expected))
        assert len(fresh._table.ids) < 3000


def test_a_span_is_tokenized_once():
    tokenizer = tokenizer_files.bert({"[UNK]": 0, "the": 1}, True)
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return [(e.ids, [begin for begin, _ in e.offsets]) for e in tokenizer.encode_batch(texts)]

    fresh = word_spans.SpanTokenizer(encode)
    for _ in range(2):
        ids, begins, sizes = fresh(["the the sea", "sea the"])
        assert (ids.tolist(), begins.tolist(), sizes.tolist()) == ([1, 1, 0, 0, 1], [0, 4, 8, 0, 4], [3, 2])
    assert sorted(encoded) == [" sea", " the", "sea", "the"]


def test_frequent_spans_stay_in_the_cache(monkeypatch):
    monkeypatch.setattr(word_spans, "_MAX_TOKENS", 50)
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return [([len(text)], [0]) for text in texts]

    fresh = word_spans.SpanTokenizer(encode)
    for number in range(100):
        ids, _, _ = fresh([f"once{number} often often {number}"])
        assert ids.tolist() == list(map(len, (f"once{number}", " often", " often", f" {number}")))
        assert len(fresh._table.ids) <= 53
    assert encoded.count(" often") == 1 and len(encoded) == 201


def test_the_cache_is_the_same_for_any_number_of_processes(run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tokenizing, "_BATCH_CHARACTERS", 500)
    for cores in (1, 3):
        monkeypatch.setattr(workers, "cores", lambda cores=cores: cores)
        preparation.prepare(run, str(tmp_path / str(cores)), show_progress=False)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_results_come_in_order_from_several_processes():
    results, processes = zip(*workers.in_order(squares.make, ["well"], range(40), 3), strict=True)
    assert results == tuple(i * i for i in range(40))
    assert len(set(processes)) == 3 and os.getpid() not in processes


@pytest.mark.parametrize(("event", "message"), [("mistake", "mend this"), ("killed", "SIGKILL ended a worker process")])
def test_an_error_in_a_process_is_reported_and_ends_all_processes(event, message):
    processes = set()
    with pytest.raises(UserError, match=message):
        for _, process in workers.in_order(squares.make, [event], range(40), 2):
            processes.add(process)
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
