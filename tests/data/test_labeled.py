"""Labeled examples: from files through the cache to the rows that the reader gives."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import reader, vocabularies
from plm_jax.data.labeled import metrics
from plm_jax.data.sources import labeled
from plm_jax.data.sources.corpus import BadRow
from plm_jax.data.vocabularies import words
from plm_jax.runs import phase_costs, preparation
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader

WORDS = ["the", "union", "is", "strong", "and", "whales", "swim", "in", "naïve", "seas"]
WORDS += [",", "1862", "!", "unaffable", "café"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "##s", "the", "union", "is", "strong"]
PIECES += ["and", "whale", "swim", "in", "naive", "seas", ",", "18", "##62", "!", "ca", "##fe"]
TAGS = ("O", "B-A", "I-A", "B-B", "I-B")
BPE = "bpe:plm_jax/data/gpt2/vocab.json,plm_jax/data/gpt2/merges.txt"
ROBERTA = config.VocabularyConfig(BPE, added=3, bos=50257, pad=50258, eos=50259)
GPT = config.VocabularyConfig(BPE, added=3, bos=50257, sep=50258, cls=50259)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return config.VocabularyConfig(f"wordpiece:{path}", pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture(scope="module")
def elmo(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
    path.write_text("\n".join(["<S>", "</S>", "<UNK>", *WORDS]) + "\n")
    return config.VocabularyConfig(f"words:{path}", bos=0, eos=1, unk=2)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def make(tmp_path, make_run):
    """`make(rows, form, objective, vocabulary, length)` returns a run over rows of a file, also its validation file."""

    def make(rows, form, objective, vocabulary, length=16):
        files = [write(tmp_path / name, rows) for name in ("a.jsonl", "b.jsonl")]
        data = {
            "cache_dir": str(tmp_path / "cache"),
            "length": length,
            "sources": {"a": config.LabeledTable(files[0], form, files[1])},
            "layout": config.LabeledLayout(),
        }
        run = make_run([], 50260, objective=objective, kind=objective.rows, data=data)
        return changed(run, vocabulary=vocabulary)

    return make


@pytest.fixture
def read(make):
    """`read(…)`, with the arguments of `make`, returns validation rows, their numbers in the file, and the layout."""

    def read(*args, **kwargs):
        run = make(*args, **kwargs)
        preparation.prepare(run, show_progress=False)
        opened = open_reader(run)
        layout = opened.rows("validation", "a", run.data.length)
        batches = list(opened.in_order("validation", 4))
        values = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
        assert not any(value[layout.num_rows :].any() for value in values.values())
        assert_like_blank(run, opened.batch(0, range(4)))
        source = opened.sources["a"]
        origins = [source.origin("validation", layout.document(item))[1] - 1 for item in range(layout.num_rows)]
        assert set(origins) == set(range(source.splits["validation"].num_documents)), "every document, once"
        return {key: value[: layout.num_rows] for key, value in values.items()}, origins, layout

    return read


def texts_of(seed, count, longest):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


# Templates of a text and of a pair: those of BERT and RoBERTa, and that of XLNet's tokenizer in transformers.
TEMPLATES = {
    "wordpiece": ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]),
    "bpe": ("<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0", [("<s>", 50257), ("</s>", 50259)]),
    "xlnet": ("$A:0 [SEP]:0 [CLS]:2", "$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2", [("[CLS]", 2), ("[SEP]", 3)]),
}


def theirs(vocabulary, length, template=None, **truncation):
    """The library's own tokenizer with marks, types, padding and truncation of its own."""
    scheme, _, names = vocabulary.spec.partition(":")
    if scheme == "wordpiece":
        wrapper = tokenizers.BertWordPieceTokenizer(names)
    else:
        wrapper = tokenizers.ByteLevelBPETokenizer(*names.split(","))
    single, pair, special = TEMPLATES[template or scheme]
    wrapper._tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    wrapper._tokenizer.enable_padding(pad_id=vocabulary.pad, length=length)
    wrapper._tokenizer.enable_truncation(length, **truncation)
    return wrapper._tokenizer


@pytest.mark.parametrize(
    ("name", "pair"),
    [("bert", False), ("bert", True), ("roberta", True), ("bart", False), ("xlnet", False), ("xlnet", True)],
)
def test_texts_become_the_rows_of_hugging_faces_tokenizers(read, bert, name, pair):
    vocabulary = bert if name in ("bert", "xlnet") else ROBERTA
    rows = {"bart": "encoder_decoder", "xlnet": "xlnet"}.get(name, "encoder")
    pairs = list(zip(texts_of(0, 23, 14), texts_of(1, 23, 14), strict=True))
    examples = [{"a": a, "b": b, "label": i % 3} for i, (a, b) in enumerate(pairs)]
    form = config.ClassForm(("x", "y", "z"), "a", "b" if pair else "")
    values, origins, _ = read(examples, form, objectives.Classification(rows=rows), vocabulary)
    tokenizer = theirs(vocabulary, 16, "xlnet" if name == "xlnet" else None)
    expected = tokenizer.encode_batch([pairs[i] if pair else pairs[i][0] for i in origins])
    assert values["tokens"].tolist() == [encoding.ids for encoding in expected]
    assert values["mask"].tolist() == [encoding.attention_mask for encoding in expected]
    assert values["label"].tolist() == [i % 3 for i in origins]
    if name in ("bert", "xlnet"):
        assert values["token_types"].tolist() == [encoding.type_ids for encoding in expected]
    else:
        assert "token_types" not in values
    if name == "bart":
        shifted = [[vocabulary.eos, *encoding.ids[:-1]] for encoding in expected]
        assert values["decoder_tokens"].tolist() == shifted
        assert (values["decoder_mask"] == values["mask"]).all()


def by_the_script(texts, length, special, vocabulary):
    """A row by `transform_roc` of openai/finetune-transformer-lm's train.py, or of one text."""
    most = length // 2 - 2 if len(texts) > 1 else length - 2
    parts = [list(vocabulary.encode(text))[:most] for text in texts]
    joined = [special.bos, *parts[0], *([special.sep, *parts[1]] if len(texts) > 1 else []), special.cls]
    return joined + [0] * (length - len(joined)), [1] * len(joined) + [0] * (length - len(joined))


@pytest.mark.parametrize("form", ["text", "entailment", "similarity", "choice"])
def test_decoders_rows_are_gpt_1s(read, form):
    pairs = list(zip(texts_of(0, 15, 12), texts_of(1, 15, 12), texts_of(2, 15, 12), strict=True))
    examples = [{"a": a, "b": b, "c": [b, c], "label": i % 2} for i, (a, b, c) in enumerate(pairs)]
    if form == "choice":
        objective = objectives.MultipleChoice(rows="decoder", lm_coefficient=0.5)
        values, origins, _ = read(examples, config.ChoiceForm(2, "a", "c"), objective, GPT)
    else:
        objective = objectives.Classification("decoder", 0.5, both_orders=form == "similarity")
        source = config.ClassForm(("x", "y"), "a", "" if form == "text" else "b")
        values, origins, _ = read(examples, source, objective, GPT)
    vocabulary = vocabularies.load_plain(GPT)
    kinds = {"text": [(0,)], "entailment": [(0, 1)], "similarity": [(0, 1), (1, 0)], "choice": [(0, 1), (0, 2)]}
    for row, i in enumerate(origins):
        expected = [by_the_script([pairs[i][k] for k in order], 16, GPT, vocabulary) for order in kinds[form]]
        tokens, mask = (np.array(part) for part in zip(*expected, strict=True))
        if len(kinds[form]) == 1:
            tokens, mask = tokens[0], mask[0]
        np.testing.assert_array_equal(values["tokens"][row], tokens)
        np.testing.assert_array_equal(values["mask"][row], mask)
        # Every real token but the first is predicted, by the one before it.
        real = values["target_weights"][row][..., :-1] > 0
        np.testing.assert_array_equal(real, mask[..., 1:] > 0)
        np.testing.assert_array_equal(values["targets"][row][..., :-1][real], tokens[..., 1:][real])
        assert not values["target_weights"][row][..., -1].any()
        assert values["label"][row] == i % 2


def test_each_text_of_a_decoder_has_half_of_the_room_in_its_frame():
    special = objectives.Special(pad=4, vocab_size=100, frame=((0, 5), (3, 3), (2, 6)))
    objective, texts = objectives.Classification("decoder"), [np.arange(10, 40), np.arange(50, 80)]
    for length, room in ((20, 7), (21, 7), (22, 8)):
        row = objective.make_row(texts, {"length": length}, special)
        expected = [0, 5, *range(10, 10 + room), 3, 3, *range(50, 50 + room), 2, 6]
        assert row.row["tokens"].tolist() == expected + [4] * (length - len(expected))
        assert row.sizes == [room, room]
        sizes = np.array([[room, room], [room + 1, 1], [1, room + 1]])
        assert objective.are_truncated(sizes, length, special).tolist() == [False, True, True]


def test_rows_without_an_lm_term_have_no_targets(read):
    examples = [{"text": text, "score": i / 3} for i, text in enumerate(texts_of(0, 6, 9))]
    values, origins, _ = read(examples, config.ScoreForm(), objectives.Regression("decoder"), GPT)
    assert "targets" not in values and values["score"].dtype == np.float32
    np.testing.assert_allclose(values["score"], [i / 3 for i in origins], rtol=1e-6)


def tagged(seed, count, longest):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        size = rng.integers(1, longest)
        rows.append({"tokens": rng.choice(WORDS, size).tolist(), "tags": rng.choice(TAGS, size).tolist()})
    return rows


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_a_tag_is_at_the_first_piece_of_its_word(read, bert, name):
    vocabulary, rows = (bert, "encoder") if name == "bert" else (ROBERTA, "encoder_decoder")
    examples = tagged(0, 17, 19)
    values, origins, opened = read(examples, config.TagForm(TAGS), objectives.Tagging(rows), vocabulary)
    plain = vocabularies.load_plain(vocabulary)
    cut = 0
    for row, i in enumerate(origins):
        pieces, tags = [], []
        for number, (word, tag) in enumerate(zip(examples[i]["tokens"], examples[i]["tags"], strict=True)):
            of_word = plain.encode(word if name == "bert" or not number else f" {word}")
            pieces += list(of_word)
            tags += [TAGS.index(tag)] + [-1] * (len(of_word) - 1)
        cut += len(pieces) > 14
        end = min(len(pieces), 14) + 1
        assert values["tokens"][row][1:end].tolist() == pieces[:14]
        assert values["tags"][row].tolist() == [-1, *tags[:14], *[-1] * (16 - end)]
    assert 0 < cut < 17
    assert opened.notes("a") == [f"{cut} of the 17 examples of 'a' are longer than a row and are truncated"]


def test_an_elmo_reads_the_characters_of_words(read, elmo, make):
    examples = tagged(1, 9, 10)
    values, origins, _ = read(examples, config.TagForm(TAGS), objectives.Tagging("elmo"), elmo)
    spelt, mask = words.sentences([" ".join(examples[i]["tokens"]) for i in origins], values["characters"].shape[-1])
    width = mask.shape[1]
    assert (values["mask"][:, :width] == mask).all() and not values["mask"][:, width:].any()
    assert (values["characters"][:, :width][mask > 0] == spelt[mask > 0]).all()
    for row, i in enumerate(origins):
        tags = [TAGS.index(tag) for tag in examples[i]["tags"]]
        assert values["tags"][row].tolist() == [-1, *tags, *[-1] * (15 - len(tags))]


QUESTIONS = ["who is strong ?", "the whales swim in naïve seas and the unaffable seas", "when ?"]


def asked(seed, count, longest=60):
    """Questions with contexts and answers of whole words, some with none."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        context = rng.choice(WORDS, rng.integers(3, longest)).tolist()
        begin = int(rng.integers(len(context)))
        text = " ".join(context[begin : begin + int(rng.integers(1, 6))])
        answers = {"text": [text], "answer_start": [len(" ".join(context[:begin])) + (begin > 0)]}
        if number % 5 == 4:
            answers = {"text": [], "answer_start": []}
        rows.append({"question": QUESTIONS[number % 3], "context": " ".join(context), "answers": answers})
    return rows


def run_qas_labels(encoding, answers, null):
    """The rule of `prepare_train_features` in transformers' examples/pytorch/question-answering/run_qa.py, reread."""
    inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    if not answers["text"]:
        return null, null
    begin = answers["answer_start"][0]
    end = begin + len(answers["text"][0])
    offsets = encoding.offsets
    if not (offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end):
        return null, null
    first = max(i for i in inside if offsets[i][0] <= begin)
    last = min(i for i in inside if offsets[i][1] >= end)
    return first, last


def test_two_texts_are_truncated_like_in_tokenizers():
    """Lengths are those of the strategy `longest_first` of Hugging Face's tokenizers."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for room in range(2, 9):
        tokenizer.enable_truncation(room, strategy="longest_first")
        for sizes in itertools.product(range(1, 8), repeat=2):
            sequences = tokenizer.encode(*("a " * size for size in sizes)).sequence_ids
            assert objectives.truncate_longest(sizes, room) == [sequences.count(0), sequences.count(1)]


@pytest.mark.parametrize("name", ["bert", "bart", "xlnet"])
def test_windows_and_answers_are_those_of_run_qa(read, bert, name):
    """A question without an answer has the position of cls, which is the last one in XLNet's rows."""
    vocabulary = ROBERTA if name == "bart" else bert
    rows = {"bert": "encoder", "bart": "encoder_decoder", "xlnet": "xlnet"}[name]
    examples = asked(0, 21)
    objective = objectives.SpanExtraction(rows=rows, stride=5, question_length=18)
    values, origins, opened = read(examples, config.AnswerForm(), objective, vocabulary, 32)
    tokenizer = theirs(vocabulary, 32, "xlnet" if name == "xlnet" else None, stride=5, strategy="only_second")
    documents = list(dict.fromkeys(origins))
    answered = 0
    for document, i in zip(range(len(documents)), documents, strict=True):
        example = examples[i]
        first = tokenizer.encode(example["question"], example["context"])
        encodings = [first, *first.overflowing]
        items = opened.rows_of(document)
        assert len(items) == len(encodings)
        for item, encoding in zip(items, encodings, strict=True):
            assert values["tokens"][item].tolist() == encoding.ids
            span = int(values["span_starts"][item]), int(values["span_ends"][item])
            window = opened.window(item)
            null = encoding.ids.index(bert.cls) if name != "bart" else 0
            assert window.null == null and (name != "xlnet" or null == sum(encoding.attention_mask) - 1)
            assert span == run_qas_labels(encoding, example["answers"], null)
            inside = [n for n, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
            assert (window.offset, window.size) == (inside[0], len(inside))
            if span != (null, null):
                answered += 1
                begins, ends = opened.context_offsets(document)
                a, b = (at - window.offset + window.first for at in span)
                assert opened.context(document)[begins[a] : ends[b]] == example["answers"]["text"][0]
    assert answered > 10 and len(values["tokens"]) > len(documents)


def test_answers_end_before_the_punctuation_that_follows_them(read, bert):
    contexts = {"the union.": 4, "the (union) is strong": 5}
    examples = [
        {"question": "who ?", "context": context, "answers": {"text": ["union"], "answer_start": [start]}}
        for context, start in contexts.items()
    ]
    objective = objectives.SpanExtraction(stride=2, question_length=6)
    _, _, opened = read(examples, config.AnswerForm(), objective, bert)
    for document in range(2):
        (first, last), (begins, ends) = opened.answer(document), opened.context_offsets(document)
        assert opened.context(document)[begins[first] : ends[last]] == "union"


def test_answers_that_no_window_contains_are_reported(read, bert):
    context = "the union is strong and the union is strong and the union is strong"
    answers = {"text": [context, "union"], "answer_start": [0, 4]}
    examples = [
        {"question": "who ?", "context": context, "answers": answers},
        {"question": "who is strong and who is strong and who ?", "context": "the union", "answers": []},
    ]
    objective = objectives.SpanExtraction(stride=2, question_length=6)
    values, _, opened = read(examples, config.AnswerForm(), objective, bert)
    assert not values["span_starts"].any()
    assert opened.notes("a") == [
        "1 of the 2 examples of 'a' have a question that is too long and are truncated",
        "1 answers of 'a' fit into no window: their rows count as unanswerable",
    ]


def test_training_reads_each_row_once_an_epoch(make, bert):
    run = make(asked(0, 21), config.AnswerForm(), objectives.SpanExtraction(stride=5, question_length=18), bert, 32)
    preparation.prepare(run, show_progress=False)
    opened = reader.Reader(config.reader_config(run))
    number = opened.num_rows("train")["a"]
    epochs = [[opened.example(k) for k in range(first, first + number)] for first in (0, number)]
    keys = [sorted((*tuple(row["tokens"]), int(row["span_starts"])) for row in epoch) for epoch in epochs]
    every = opened.in_order("train", number)
    assert keys[0] == keys[1]
    (batch,) = every
    assert keys[0] == sorted(
        (*tuple(tokens), start) for tokens, start in zip(batch["tokens"], batch["span_starts"].tolist(), strict=True)
    )
    documents = [opened.origin(k)[1] for k in range(200)]
    assert {len(of) for of in documents} == {1} and len({of for (of,) in documents}) < number
    for document in range(opened.sources["a"].splits["train"].num_documents):
        assert list(opened.examples_with("a", document, 50)) == [k for k in range(200) if documents[k] == [document]]


def test_truncated_words_are_predicted_as_outside(read, bert):
    examples = tagged(0, 17, 19)
    values, origins, rows = read(examples, config.TagForm(TAGS), objectives.Tagging(), bert)
    outputs = [np.where(tags[:, None] >= 0, np.eye(5)[tags], np.eye(5)[1]) for tags in values["tags"]]
    truncated = 0
    for item, i in enumerate(origins):
        predicted = metrics.predict_tags(rows, item, outputs[item], TAGS)
        num_tags = int((values["tags"][item] >= 0).sum())
        assert predicted == examples[i]["tags"][:num_tags] + ["O"] * (len(predicted) - num_tags)
        assert len(predicted) == len(examples[i]["tokens"])
        truncated += sum(tag != "O" for tag in examples[i]["tags"][num_tags:])
    computed = metrics.compute_metrics(rows, outputs, TAGS)
    words = sum(len(example["tokens"]) for example in examples)
    assert truncated and computed["token_accuracy"] == pytest.approx(1 - truncated / words)
    assert computed["strict_recall"] < 1 and computed["recall"] < 1
    assert list(computed) == ["token_accuracy", "precision", "recall", "f1"] + [
        f"strict_{name}" for name in ("precision", "recall", "f1")
    ]
    parts = metrics.compute_metrics(rows, outputs, ("NOUN", *TAGS[1:]))
    assert list(parts) == metrics.names(objectives.Tagging(), ("NOUN", *TAGS[1:])) == ["token_accuracy"]


def test_the_answer_is_predicted_from_the_window_that_contains_it(read, bert):
    examples = asked(0, 21)
    objective = objectives.SpanExtraction(stride=5, question_length=18, unanswerable=True)
    values, origins, rows = read(examples, config.AnswerForm(), objective, bert, 32)
    outputs = np.zeros((rows.num_rows, 32, 2), np.float32)
    for item in range(rows.num_rows):
        outputs[item, values["span_starts"][item], 0] = outputs[item, values["span_ends"][item], 1] = 5.0
    # A window without the answer says so, but another, with it, does not.
    predicted = metrics.answers(rows, outputs)
    for document, i in enumerate(dict.fromkeys(origins)):
        assert predicted[document].text == "".join(examples[i]["answers"]["text"])
    assert metrics.compute_metrics(rows, outputs) == {"exact_match": 1.0, "f1": 1.0}
    nothing = metrics.compute_metrics(rows, np.eye(32)[0][None, :, None].repeat(rows.num_rows, 0).repeat(2, 2))
    assert nothing["exact_match"] == nothing["f1"] == pytest.approx(4 / 21)


CLASSES, TEXT = config.ClassForm(("no", "yes")), {"text": "the union", "label": "no"}
SCORE, TAGGED, CHOICE, ANSWER = config.ScoreForm(), config.TagForm(TAGS), config.ChoiceForm(2), config.AnswerForm()
OBJECTIVES = {
    "classes": objectives.Classification(),
    "score": objectives.Regression(),
    "tags": objectives.Tagging(),
    "choice": objectives.MultipleChoice(),
    "span": objectives.SpanExtraction(stride=1, question_length=3),
}


def asking(answers, context="bb b"):
    return {"question": "a", "context": context, "answers": answers}


BAD_ANSWERS = "expected a list of texts and starts"
MISTAKES = [
    (CLASSES, TEXT | {"label": "yess"}, r"a.jsonl:1 has \"yess\" in 'label', .* form.labels: did you mean"),
    (CLASSES, TEXT | {"label": 2}, "has 2 in 'label', which is not in form.labels"),
    (CLASSES, {"texts": "a", "label": 1}, "has no field 'text': did you mean 'texts'"),
    (CLASSES, {"text": 3, "label": 1}, "has 3 in 'text': expected a text"),
    (CLASSES, {"text": " ", "label": 0}, "jsonl:1 has no text: remove this row"),
    (SCORE, {"text": "a", "score": "1"}, "in 'score': expected a number"),
    (SCORE, {"text": "a", "score": True}, "in 'score': expected a number"),
    (SCORE, {"text": "a", "score": None}, "in 'score': expected a number"),
    (TAGGED, {"tokens": ["a", "b"], "tags": ["O"]}, "2 words and 1 tags: expected a tag for each word"),
    (TAGGED, {"tokens": ["a", " "], "tags": ["O", "O"]}, "has an empty word"),
    (TAGGED, {"tokens": "ab", "tags": ["O", "O"]}, r"\"ab\" in 'tokens': expected a list of texts"),
    (TAGGED, {"tokens": [], "tags": []}, "jsonl:1 has no text"),
    (CHOICE, {"question": "a", "choices": ["b"], "label": 0}, "has 1 choices, but form.number is 2"),
    (CHOICE, {"question": "a", "choices": ["b", "c"], "label": 2}, "'label': expected 0 to 1, or the text of"),
    (ANSWER, asking([{"text": "union", "start": 3}], "the union"), r"the context has \" unio\" there: fix the offset"),
    (ANSWER, asking({"text": ["b"]}), BAD_ANSWERS),
    (ANSWER, asking({"text": ["b"], "answer_start": [True]}), BAD_ANSWERS),
    (ANSWER, asking({"text": "bb", "answer_start": [0, 1]}), BAD_ANSWERS),
    (ANSWER, asking({"text": ["b"], "answer_start": 0}), BAD_ANSWERS),
    (ANSWER, asking({"text": ["b"], "answer_start": [0.0]}), BAD_ANSWERS),
    (ANSWER, asking([{"text": ["b"], "start": 0}]), BAD_ANSWERS),
    (ANSWER, asking([{"text": "b"}]), BAD_ANSWERS),
    (ANSWER, asking("b"), BAD_ANSWERS),
    (ANSWER, asking(None), BAD_ANSWERS),
]


@pytest.mark.parametrize(("form", "row", "message"), MISTAKES)
def test_bad_rows_are_rejected(make, bert, form, row, message):
    run = make([row], form, OBJECTIVES[form.kind], bert)
    with pytest.raises(UserError, match=message) as caught:
        preparation.prepare(run, show_progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "a", "label": "no", "label": "yes"}',
            r"a\.jsonl:1 .* \('label' is repeated in an object\)",
        ),
        ("a.jsonl", '{"text": "a", "label": NaN}', r"a\.jsonl:1 is not valid JSON \(NaN is not a JSON value\)"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1e999}',
            r"a\.jsonl:1 .* \(1e999 is out of the range of floating-point numbers\)",
        ),
        ("a.jsonl", "", r"no row of source 'a' \(.*/a.jsonl\) has text: check its path"),
        ("b.jsonl", "\n", r"no row of source 'a' \(.*/b.jsonl\) has text: check its path"),
    ],
)
def test_bad_files_are_rejected(make, bert, tmp_path, file, content, message):
    run = make([TEXT], CLASSES, OBJECTIVES["classes"], bert)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message):
        preparation.prepare(run, show_progress=False)


@pytest.mark.parametrize(
    ("labels", "label", "expected"),
    [
        (("true", "false"), True, 0),
        (("false", "true"), "true", 1),
        (("no", "yes"), 1, 1),
        (("2", "1"), 1, 1),  # Names that are numbers are names.
        (("1.0", "2.0"), 2.0, 1),
        (("no", "yes"), True, None),
        (("no", "yes"), 1.0, None),
        (("1.0", "2.0"), 1, None),
        (("1e0", "2e0"), 1, None),
        ((".5", "1.5"), 1, None),
        (("no", "None"), None, None),
        (("no", "['yes']"), ["yes"], None),
    ],
)
def test_a_label_is_a_name_or_a_number_where_no_name_is_a_number(labels, label, expected):
    def read():
        return labeled.record(config.ClassForm(labels), "a:1", {"text": "a", "label": label}).values["label"]

    if expected is None:
        with pytest.raises(BadRow, match=r"not in form.labels"):
            read()
    else:
        assert read() == expected


@pytest.mark.parametrize(("label", "expected"), [(0, 0), (1, 1), ("strong", 0), ("naive", 1)])
def test_a_choice_is_a_number_or_a_text(label, expected):
    row = {"question": "the union is", "choices": ["strong", "naive"], "label": label}
    assert labeled.record(CHOICE, "a:1", row).values["label"] == expected


def test_metrics_of_correct_outputs_are_1(read, bert):
    labels = ("no", "yes")
    examples = [{"text": text, "label": i % 2, "score": i / 2} for i, text in enumerate(texts_of(0, 9, 6))]
    values, _, rows = read(examples, config.ClassForm(labels), objectives.Classification(), bert)
    correct = dict.fromkeys(metrics.names(objectives.Classification(), labels), 1.0)
    assert metrics.compute_metrics(rows, list(np.eye(2)[values["label"]]), labels) == pytest.approx(correct)
    wrong = metrics.compute_metrics(rows, list(np.eye(2)[1 - values["label"]]), labels)
    assert wrong == pytest.approx({"accuracy": 0.0, "matthews": -1.0, "f1": 0.0})
    values, _, rows = read(examples, SCORE, objectives.Regression(), bert)
    scores = metrics.compute_metrics(rows, values["score"][:, None])
    assert scores == pytest.approx({"pearson": 1.0, "spearman": 1.0, "mse": 0.0})
    assert metrics.compute_metrics(rows, np.ones((9, 1)))["pearson"] == 0.0


def heads(run, labels):
    return dataclasses.replace(run.model, heads=(("task", models.ClassesHead(labels=labels)),))


def test_configs_that_do_not_fit_are_rejected(make, bert):
    run = make([TEXT], CLASSES, OBJECTIVES["classes"], bert)
    source = run.data.sources["a"]

    def sources(form, **more):
        return {"sources": {"a": dataclasses.replace(source, form=form)} | more}

    two = sources(CLASSES, b=dataclasses.replace(source, form=config.ClassForm(("yes", "no"))))
    decoder = make([TEXT], CLASSES, objectives.Classification("decoder"), bert)
    for message, sections in (
        ("length is 3: rows of 1 texts with 2 special tokens need at least 4", {"data": {"length": 3}}),
        (
            "length is 4: rows of 2 texts with 3 special tokens need at least 5",
            {"data": {"length": 4} | sources(dataclasses.replace(CLASSES, pair="b"))},
        ),
        ("sources 'a' and 'b' have different form.labels", {"data": two}),
        ("form.kind span, but objective 'classification' reads form.kind classes", {"data": sources(ANSWER)}),
        ("source 'a' is not a labeled source", {"data": {"sources": {"a": config.TextTable("x")}}}),
        ("'classification' does not read config.data.layout 'blocks'", {"data": {"layout": config.Blocks()}}),
        ("rows is encoder_decoder, but config.model.kind is 'encoder'", {"objective": {"rows": "encoder_decoder"}}),
        ("labeled examples need special ids around them", {"vocabulary": {"cls": None}}),
        (r"task has 3 labels \(no, yes, maybe\), .* 2 \(no, yes\)", {"model": heads(run, ("no", "yes", "maybe"))}),
        ("labels has 'yes' where form.labels of source 'a' has 'no'", {"model": heads(run, ("yes", "no"))}),
        (
            "length is 16, too short for windows to advance: set at least 196",
            {"data": sources(ANSWER), "objective": objectives.SpanExtraction()},
        ),
        (
            "num_choices is 2, but the source has form.number 3",
            {"data": sources(config.ChoiceForm(3)), "objective": objectives.MultipleChoice()},
        ),
        (
            "with bos, have sep between texts and end with cls: set config.vocabulary.bos",
            {"model": decoder.model, "objective": decoder.objective},
        ),
    ):
        assert_rejected(message, run, **sections)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: objectives.Classification("decoder", -1.0, True), "lm_coefficient is -1.0"),
        (lambda: objectives.Classification(lm_coefficient=0.5), "lm_coefficient is 0.5, with rows for encoder"),
        (lambda: objectives.Classification(both_orders=True), "both_orders needs rows for a decoder"),
        (lambda: objectives.Tagging("decoder"), "rows is decoder: tagging supports encoder, encoder_decoder, elmo"),
        (lambda: config.ClassForm(("a", "a")), "list at least two different labels"),
    ],
)
def test_bad_settings_are_rejected(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_each_row_of_an_example_is_counted_in_flops(make):
    """Pairs in both orders and choices have two rows each; predicting the next tokens adds a softmax."""

    def flops(objective, form):
        run = make([], form, objective, GPT)
        (phase,) = config.resolve_phases(run)
        batch = reader.blank_batch(config.reader_config(run), 16)
        assert phase_costs.num_tokens(run, phase) == 4 * batch["tokens"].size
        return phase_costs.model_flops(run, phase)

    pair = config.ClassForm(("x", "y"), pair="b")
    single = flops(objectives.Classification("decoder"), pair)
    assert flops(objectives.Classification("decoder", both_orders=True), pair) == 2 * single
    assert flops(objectives.MultipleChoice("decoder"), CHOICE) == 2 * single
    predicting = flops(objectives.Classification("decoder", lm_coefficient=0.5), pair)
    assert predicting - single == 3 * 2 * 4 * 16 * 8 * 50260
