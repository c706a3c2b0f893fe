"""Predictions against the pipelines of transformers on the exported model, and against `evaluate`."""

import dataclasses
import functools
import json
import math
import shutil
import types

import jax
import numpy as np
import pytest
import tokenizers

import plm_jax
from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.data.labeled import metrics, spans
from plm_jax.hub import families, tasks
from plm_jax.inference import predictions, predictor, tables
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats
from tests.support import exports

LABELS = ("negative", "neutral", "positive")
COUNT = 24
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Family, kind of its vocabulary, and the heads that transformers has a pipeline or an Auto class for.
ENCODERS = {"bert": "uncased", "roberta": "roberta", "albert": "unigram", "electra": "cased", "distilbert": "uncased"}
CLASSIFIERS = ENCODERS | {"gpt2": "gpt2", "llama": "unigram", "bart": "roberta"}


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def with_head(family, kind, folder, labels):
    """Returns a random model whose task head depends strongly on its input."""
    base = exports.pretrained(family, CLASSIFIERS.get(family, "unigram"), folder)
    model = base.model.with_task(tasks.new(kind, base.model, labels, families.registered()[family]))
    special = dict(base.special_ids)
    if model.architecture == "decoder":
        special |= {"begins_with": [], "ends_with": [], "pad_token_id": model.vocab_size - 1}
    rng = np.random.default_rng(0)

    def values(path, leaf):
        scale = 0.0 if path[-1].key == "bias" else 1.0
        return (scale * rng.standard_normal(leaf.shape)).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(values, registry.shapes(model))
    return dataclasses.replace(base, model=model, params=params, special_ids=special)


@pytest.fixture(scope="module")
def export(vocabulary_folder, tmp_path_factory):
    """Function that writes a random model with a task head. Returns its folder and the model that is loaded from it."""

    @functools.cache
    def write(family, kind, labels=()):
        path = str(tmp_path_factory.mktemp(family))
        checkpoint_formats.save(path, with_head(family, kind, vocabulary_folder, labels), "huggingface")
        return path, plm_jax.load(path)

    return write


@pytest.mark.parametrize("family", ENCODERS)
def test_rows_that_differ_from_those_of_the_tokenizer_are_reported(family, export, tmp_path, caplog):
    path, lm = export(family, "classes", LABELS)
    lm.predict("a")
    assert "special tokens" not in caplog.text
    shutil.copytree(path, tmp_path / "second", ignore=shutil.ignore_patterns("manifest.json"))
    tokenizer = tmp_path / "second/tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"post_processor": None}))
    plm_jax.load(tmp_path / "second").predict("a")
    assert "puts other special tokens around texts than `predict`" in caplog.text


def texts(count):
    """Returns lines of many scripts, an empty one, and one that is longer than every model."""
    lines = exports.lines(count - 2)
    return ["", *lines, " ".join(lines[:40])]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_several_labels_equal_transformers(family, export, transformers):
    path, lm = export(family, "labels", LABELS)
    lines = [line for line in texts(COUNT) if line.strip() or family in ENCODERS]
    pipeline = transformers.pipeline("text-classification", model=path, top_k=None)
    for line, prediction in zip(lines, lm.predict(lines, batch_size=16), strict=True):
        expected = {each["label"]: each["score"] for each in pipeline([line], truncation=True)[0]}
        assert prediction.probabilities == pytest.approx(expected, abs=1e-4), line
        assert set(prediction.labels) == {label for label, probability in expected.items() if probability > 0.5}


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes_equal_transformers(family, export, transformers):
    path, lm = export(family, "classes", LABELS)
    lines = [line for line in texts(COUNT) if line.strip() or family in ENCODERS]
    pipeline = transformers.pipeline("text-classification", model=path, top_k=None)
    expected = [{each["label"]: each["score"] for each in pipeline([line], truncation=True)[0]} for line in lines]
    predicted = lm.predict(lines)
    for line, probabilities, prediction in zip(lines, expected, predicted, strict=True):
        assert prediction.probabilities == pytest.approx(probabilities, abs=1e-4), line
        assert prediction.label == max(probabilities, key=probabilities.get)
        assert prediction.probability == max(prediction.probabilities.values())
    assert len({round(prediction.probability, 8) for prediction in predicted}) > 10


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "distilbert"])
def test_pairs_equal_transformers(family, export, transformers):
    path, lm = export(family, "classes", LABELS)
    lines = texts(COUNT)
    # The pipeline reads an empty second text as none.
    pairs = [(a, b) for a, b in zip(lines, [*lines[7:], *lines[:7]], strict=True) if b]
    pipeline = transformers.pipeline("text-classification", model=path, top_k=None)
    for (first, second), prediction in zip(pairs, lm.predict(pairs), strict=True):
        expected = pipeline([{"text": first, "text_pair": second}], truncation=True)[0]
        probabilities = {each["label"]: each["score"] for each in expected}
        assert prediction.probabilities == pytest.approx(probabilities, abs=1e-4), (first, second)


@pytest.mark.parametrize("family", ["Roberta", "Bart"])
def test_pairs_of_a_tokenizer_file_equal_transformers(family, transformers, tmp_path):
    """The tokenizer calls its bos and eos cls and sep too, but its rows are not BERT's."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(exports.texts(), vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.save_model(str(tmp_path))
    files = [str(tmp_path / name) for name in ("vocab.json", "merges.txt")]
    tokenizer = transformers.RobertaTokenizerFast(*files, model_max_length=30)  # Fewer than the positions.
    sizes = {"Roberta": {"type_vocab_size": 1, **exports.BERT}, "Bart": exports.BART}[family]
    length = 62 if family == "Roberta" else 60  # RoBERTa's positions begin at 2.
    fields = {"vocab_size": 600, "max_position_embeddings": length, "pad_token_id": 1, "num_labels": 3, "init_std": 1.0}
    settings = getattr(transformers, f"{family}Config")(**fields, **sizes, initializer_range=1.0)
    model = getattr(transformers, f"{family}ForSequenceClassification")(settings)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "vocab.json").exists()
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "saved"), top_k=None)
    lines = [line for line in exports.lines(30) if line.strip()]
    pairs = list(zip(lines, lines[3:], strict=False))
    for (first, second), prediction in zip(pairs, plm_jax.load(tmp_path / "saved").predict(pairs), strict=True):
        expected = pipeline([{"text": first, "text_pair": second}], truncation=True)[0]
        probabilities = {each["label"]: each["score"] for each in expected}
        assert prediction.probabilities == pytest.approx(probabilities, abs=1e-4), (first, second)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_scores_equal_transformers(family, export, transformers):
    path, lm = export(family, "score")
    lines = [line for line in texts(COUNT) if line.strip() or family in ENCODERS]
    pipeline = transformers.pipeline("text-classification", model=path, function_to_apply="none")
    expected = [pipeline([line], truncation=True)[0]["score"] for line in lines]
    np.testing.assert_allclose([prediction.score for prediction in lm.predict(lines)], expected, atol=1e-4)


@pytest.mark.parametrize("family", ENCODERS)
def test_tags_equal_transformers(family, export, transformers):
    path, lm = export(family, "tags", TAGS)
    size = lm.config.max_length - 2
    lines = [line for line in texts(800)[:-1] if len(lm.tokenizer.encode(line)) <= size and "##" not in line]
    if family in ("roberta", "albert"):
        # In transformers, a token of white space is a word, and so is each of several tokens of the first character.
        lines = [" ".join(line.split()) for line in lines]
        encoded = lm.tokenizer.encode_spans(lines)
        whole = [(each.ends > each.begins).all() and (each.begins == 0).sum() < 2 for each in encoded]
        lines = [line for line, is_whole in zip(lines, whole, strict=True) if is_whole]
    lines = lines[:COUNT]
    pipeline = transformers.pipeline("token-classification", model=path, aggregation_strategy="first")
    num_entities = 0
    for line, prediction in zip(lines, lm.predict(lines), strict=True):
        expected = pipeline(line) if line else []
        # Tokens of SentencePiece contain the space before a word in transformers.
        starts = [entity["end"] - len(line[entity["start"] : entity["end"]].lstrip()) for entity in expected]
        spans = [(each["entity_group"], start, each["end"]) for each, start in zip(expected, starts, strict=True)]
        assert [(entity.label, entity.start, entity.end) for entity in prediction.entities] == spans, line
        scores = [entity["score"] for entity in expected]
        np.testing.assert_allclose([entity.score for entity in prediction.entities], scores, atol=1e-4)
        assert all(entity.text == line[entity.start : entity.end] for entity in prediction.entities)
        num_entities += len(spans)
    assert num_entities > COUNT // 2


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_words_get_a_tag_each(family, export):
    _, lm = export(family, "tags", TAGS)
    words = ["The", "President", "'s", "Message", "naïve", "-"]
    (prediction,) = lm.predict([words])
    assert prediction.words == tuple(words) and len(prediction.tags) == len(words)
    inside = sum(tag != "O" for tag in prediction.tags)
    assert sum(len(entity.text.split()) for entity in prediction.entities) == inside > 0


@pytest.mark.parametrize("family", ENCODERS)
def test_choices_equal_transformers(family, export, transformers):
    torch = pytest.importorskip("torch")
    path, lm = export(family, "choice")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(path).eval()
    lines = texts(COUNT)
    examples = [(lines[i], lines[i + 1 : i + 3 + i % 2]) for i in range(COUNT - 4)]
    chosen = set()
    for (context, choices), prediction in zip(examples, lm.predict(examples), strict=True):
        encoded = tokenizer([context] * len(choices), choices, truncation=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: value[None] for name, value in encoded.items()}).logits
        np.testing.assert_allclose(prediction.probabilities, logits.softmax(-1)[0].numpy(), atol=1e-4)
        assert prediction.text == choices[prediction.choice]
        chosen.add(prediction.choice)
    assert len(chosen) > 1


@pytest.mark.parametrize("family", [*ENCODERS, "xlnet"])
def test_answers_are_the_best_spans(family, export, transformers):
    torch = pytest.importorskip("torch")
    path, lm = export(family, "span")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    assert tokenizer.padding_side == ("left" if family == "xlnet" else "right")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(path).eval()
    # Longer questions are truncated.
    lines = [line[:40] for line in texts(COUNT * 3) if 0 < len(lm.tokenizer.encode(line[:40])) <= 12]
    encoded = lm.tokenizer.encode_spans(lines)
    lines = [line for line, spans in zip(lines, encoded, strict=True) if (spans.ends > spans.begins).all()]
    examples = list(zip(lines[1:], lines, strict=False))
    for (question, context), prediction in zip(examples, lm.predict(examples), strict=True):
        padded = {"padding": "max_length", "max_length": 40} if family == "xlnet" else {}
        encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True, **padded)
        offsets = encoded.pop("offset_mapping")[0].numpy()
        with torch.no_grad():
            output = model(**encoded)
        in_context = np.array([text == 1 for text in encoded.sequence_ids(0)])
        candidates = in_context.copy()
        candidates[-1 if family == "xlnet" else 0] = True  # XLNet's rows end with cls.
        starts, ends = (
            np.where(candidates, np.exp(scores[0].numpy() - scores.max().item()), 0)
            for scores in (output.start_logits, output.end_logits)
        )
        starts, ends = starts / starts.sum(), ends / ends.sum()
        scores = np.triu(np.where(in_context, starts, 0)[:, None] * np.where(in_context, ends, 0))
        scores = np.tril(scores, 29)
        first, last = np.unravel_index(scores.argmax(), scores.shape)
        assert prediction.score == pytest.approx(scores.max(), abs=1e-4)
        begin, end = offsets[first][0], offsets[last][1]
        assert (prediction.start, prediction.end) == (end - len(context[begin:end].lstrip()), end)
        assert prediction.answer == context[prediction.start : prediction.end]


def test_examples_are_checked(export):
    _, span = export("bert", "span")
    question, context = "Who wrote it?", "Ada wrote it."
    orders = ({"question": question, "context": context}, {"context": context, "question": question})
    assert len(set(span.predict([(question, context), *orders]))) == 1
    _, classes = export("bert", "classes", LABELS)
    for lm, example in (
        (classes, "a"),
        (classes, ("a", "b")),
        (span, (question, context)),
        *((span, o) for o in orders),
    ):
        assert [lm.predict(example)] == lm.predict([example])
    _, tags = export("bert", "tags", TAGS)
    bad_classes = ((classes, example) for example in (5, ("a", 5), ["a", "b", "c"]))
    bad_tags = ((tags, example) for example in ({"text": "a b"}, {"words": ["a", "b"]}, {"first": "a", "second": "b"}))
    for lm, example in (*bad_classes, *bad_tags, (span, question), (span, None)):
        with pytest.raises(UserError, match="example 0 does not fit the task of the model: expected a "):
            lm.predict([example])


@pytest.mark.parametrize(
    ("kind", "names", "value", "expected"),
    [
        ("classes", ["x"], 5, "expected a text"),
        ("tags", ["x"], ["a", 1], "expected a text or a list of words"),
        ("choice", ["q", "x"], "a", "expected a list of texts"),
        (None, ["x"], ["a"], "expected a text"),
        ("classes", ["x"], None, "fill in or remove this row"),
    ],
)
def test_rows_of_tables_are_checked(kind, names, value, expected):
    make = tables.example_maker(None, kind, names)
    with pytest.raises(UserError, match=rf"^t\.jsonl:7 has .* 'x': {expected}$"):
        make("t.jsonl:7", {"q": "Ice is", "x": value})


def test_parquet_has_the_types_of_later_rows(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    empty = predictions.TagPrediction((), (), ()), predictions.AnswerPrediction("", None, None, 0.5)
    entity = predictions.Entity("PER", "Ada", 0, 3, 0.9)
    full = predictions.TagPrediction(("Ada",), ("B-PER",), (entity,)), predictions.AnswerPrediction("Ada", 0, 3, 0.5)
    for number, rows in enumerate(zip(empty, full, strict=True)):
        path = str(tmp_path / f"{number}.parquet")
        with tables.writing(path) as write:
            for prediction in rows:
                write([prediction.columns()])
        written = pq.read_table(path).to_pylist()
        assert json.dumps(written) == json.dumps([prediction.columns() for prediction in rows])


def test_the_score_of_an_answer_in_two_windows_is_the_larger_probability(monkeypatch):
    """Both windows contain the answer, and only the first one has the most context for it."""
    begins, stops = np.array([-1, 0, 4, 8]), np.array([-1, 3, 7, 11])
    scores = np.array([[0.0, 9, 0, 0], [0.0, 7, 0, 0]])
    windows = [
        spans.AnswerWindow(each, each[[0, 2, 1, 3]], begins, stops, np.full(4, has_most))
        for each, has_most in zip(scores, (True, False), strict=True)
    ]
    monkeypatch.setattr(metrics, "answer_windows", lambda *_: windows)
    rows = types.SimpleNamespace(objective=objectives.SpanExtraction(), context=lambda document: "the sea had")
    answer = predictor._answer(rows, [], 0)
    probability = math.exp(9) / (math.exp(9) + 3)
    assert (answer.answer, answer.start, answer.end) == ("the sea", 0, 7)
    assert answer.score == pytest.approx(probability**2)
