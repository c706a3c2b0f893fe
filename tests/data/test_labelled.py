"""Labelled examples: from files through the cache to the rows that the reader gives."""

import dataclasses
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache, reader, vocabularies
from plm_jax.data.labelled import metrics
from plm_jax.data.sources import labelled
from plm_jax.data.sources.corpus import BadRow
from plm_jax.data.vocabularies import words
from plm_jax.runs import phase_costs, preparation

WORDS = [
    "the",
    "union",
    "is",
    "strong",
    "and",
    "whales",
    "swim",
    "in",
    "naïve",
    "seas",
    ",",
    "1862",
    "!",
    "unaffable",
    "café",
]
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


def model_for(rows, vocab_size):
    shared = {
        "embedding": models.EmbeddingConfig(vocab_size, 8, token_types=2),
        "attention": models.AttentionConfig(1, 8, models.NoPositions()),
        "feed_forward": models.FeedForwardConfig(8),
        "stack": models.StackConfig(1),
    }
    if rows == "elmo":
        return models.ElmoConfig(embedding=models.CharacterCNNConfig(vocab_size, max_characters=12, filters=((1, 4),)))
    if rows == "encoder":
        return models.EncoderConfig(**shared)
    if rows == "encoder_decoder":
        return models.EncoderDecoderConfig(**shared, decoder_stack=models.StackConfig(1))
    return models.DecoderConfig(**shared)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def make(tmp_path):
    """`make(rows of the file, form, objective, vocabulary, length)`: a run over them, for validation, too."""

    def make(rows, form, objective, vocabulary, length=16, validation=None):
        files = [write(tmp_path / name, found) for name, found in (("a.jsonl", rows), ("b.jsonl", validation or rows))]
        return config.Run(
            model=model_for(objective.rows, 50260),
            objective=objective,
            data=config.DataConfig(
                str(tmp_path / "cache"),
                length,
                {"a": config.LabelledJsonLines(files[0], form, files[1])},
                layout=config.LabelledLayout(),
            ),
            vocabulary=vocabulary,
            optimizer=config.AdamWConfig(),
            schedule=config.ConstantSchedule(1e-3),
            train=config.TrainConfig(steps=50, batch_size=4, seed=3),
        )

    return make


@pytest.fixture
def read(make):
    """The rows of the validation split in order, and what the cache says of where they were in the file, from 0."""

    def read(*args, **kwargs):
        run = make(*args, **kwargs)
        assert config.from_dict(config.to_config_dict(run)) == config.from_dict(config.to_dict(run)) == run
        preparation.prepare(run, show_progress=False)
        opened = reader.Reader(config.reader_config(run))
        rows = opened.rows("validation", "a", run.data.length)
        batches = list(opened.in_order("validation", 4))
        made = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
        filled = {key: value[rows.num_rows :] for key, value in made.items()}
        assert not any(value.any() for value in filled.values())
        blank, first = reader.blank_batch(config.reader_config(run), run.data.length), opened.batch(0, range(4))
        shapes = [{key: (of.shape[1:], of.dtype) for key, of in batch.items()} for batch in (blank, first)]
        assert shapes[0] == shapes[1]
        source = opened.sources["a"]
        origins = [source.origin("validation", rows.document(item))[1] - 1 for item in range(rows.num_rows)]
        assert set(origins) == set(range(source.splits["validation"].num_documents)), "every document, once"
        return {key: value[: rows.num_rows] for key, value in made.items()}, origins, rows

    return read


def texts_of(seed, count, longest):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def theirs(vocabulary, length, **truncation):
    """The library's own tokenizer with marks, types, padding and truncation of its own."""
    if vocabulary.spec.startswith("wordpiece"):
        found = tokenizers.BertWordPieceTokenizer(vocabulary.spec.partition(":")[2])
        pairs = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    else:
        found = tokenizers.ByteLevelBPETokenizer(*vocabulary.spec.partition(":")[2].split(","))
        pairs = "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0", [("<s>", 50257), ("</s>", 50259)]
    single = " ".join(pairs[0].split(" ")[:3])
    found._tokenizer.post_processor = TemplateProcessing(single=single, pair=pairs[0], special_tokens=pairs[1])
    found._tokenizer.enable_padding(pad_id=vocabulary.pad, length=length)
    found._tokenizer.enable_truncation(length, **truncation)
    return found._tokenizer


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("name", ["bert", "roberta", "bart"])
def test_texts_become_the_rows_of_hugging_faces_tokenizers(read, bert, name, pair):
    vocabulary, rows = bert if name == "bert" else ROBERTA, "encoder_decoder" if name == "bart" else "encoder"
    pairs = list(zip(texts_of(0, 23, 14), texts_of(1, 23, 14), strict=True))
    examples = [{"a": a, "b": b, "label": i % 3} for i, (a, b) in enumerate(pairs)]
    form = config.ClassForm(("x", "y", "z"), "a", "b" if pair else "")
    made, origins, _ = read(examples, form, objectives.Classification(rows=rows), vocabulary)
    tokenizer = theirs(vocabulary, 16)
    wanted = tokenizer.encode_batch([pairs[i] if pair else pairs[i][0] for i in origins])
    assert made["tokens"].tolist() == [encoding.ids for encoding in wanted]
    assert made["mask"].tolist() == [encoding.attention_mask for encoding in wanted]
    assert made["label"].tolist() == [i % 3 for i in origins]
    if name == "bert":
        assert made["token_types"].tolist() == [encoding.type_ids for encoding in wanted]
    else:
        assert "token_types" not in made
    if name == "bart":
        shifted = [[vocabulary.eos, *encoding.ids[:-1]] for encoding in wanted]
        assert made["decoder_tokens"].tolist() == shifted
        assert (made["decoder_mask"] == made["mask"]).all()


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
        made, origins, _ = read(examples, config.ChoiceForm(2, "a", "c"), objective, GPT)
    else:
        objective = objectives.Classification("decoder", 0.5, both_orders=form == "similarity")
        source = config.ClassForm(("x", "y"), "a", "" if form == "text" else "b")
        made, origins, _ = read(examples, source, objective, GPT)
    vocabulary = vocabularies.load_plain(GPT)
    kinds = {"text": [(0,)], "entailment": [(0, 1)], "similarity": [(0, 1), (1, 0)], "choice": [(0, 1), (0, 2)]}
    for row, i in enumerate(origins):
        wanted = [by_the_script([pairs[i][k] for k in order], 16, GPT, vocabulary) for order in kinds[form]]
        tokens, mask = (np.array(part) for part in zip(*wanted, strict=True))
        if len(kinds[form]) == 1:
            tokens, mask = tokens[0], mask[0]
        np.testing.assert_array_equal(made["tokens"][row], tokens)
        np.testing.assert_array_equal(made["mask"][row], mask)
        # Every real token but the first is predicted, by the one before it.
        real = made["target_weights"][row][..., :-1] > 0
        np.testing.assert_array_equal(real, mask[..., 1:] > 0)
        np.testing.assert_array_equal(made["targets"][row][..., :-1][real], tokens[..., 1:][real])
        assert not made["target_weights"][row][..., -1].any()
        assert made["label"][row] == i % 2


def test_rows_without_an_lm_term_have_no_targets(read):
    examples = [{"text": text, "score": i / 3} for i, text in enumerate(texts_of(0, 6, 9))]
    made, origins, _ = read(examples, config.ScoreForm(), objectives.Regression("decoder"), GPT)
    assert "targets" not in made and made["score"].dtype == np.float32
    np.testing.assert_allclose(made["score"], [i / 3 for i in origins], rtol=1e-6)


def tagged(seed, count, longest):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = rng.integers(1, longest)
        found.append({"tokens": rng.choice(WORDS, size).tolist(), "tags": rng.choice(TAGS, size).tolist()})
    return found


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_a_tag_is_at_the_first_piece_of_its_word(read, bert, name):
    vocabulary, rows = (bert, "encoder") if name == "bert" else (ROBERTA, "encoder_decoder")
    examples = tagged(0, 17, 19)
    made, origins, opened = read(examples, config.TagForm(TAGS), objectives.Tagging(rows), vocabulary)
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
        assert made["tokens"][row][1:end].tolist() == pieces[:14]
        assert made["tags"][row].tolist() == [-1, *tags[:14], *[-1] * (16 - end)]
    assert 0 < cut < 17
    assert opened.notes("a") == [f"{cut} of the 17 examples of 'a' are longer than a row and are truncated"]


def test_an_elmo_reads_the_characters_of_words(read, elmo, make):
    examples = tagged(1, 9, 10)
    made, origins, _ = read(examples, config.TagForm(TAGS), objectives.Tagging("elmo"), elmo)
    spelt, mask = words.sentences([" ".join(examples[i]["tokens"]) for i in origins], made["characters"].shape[-1])
    width = mask.shape[1]
    assert (made["mask"][:, :width] == mask).all() and not made["mask"][:, width:].any()
    assert (made["characters"][:, :width][mask > 0] == spelt[mask > 0]).all()
    for row, i in enumerate(origins):
        tags = [TAGS.index(tag) for tag in examples[i]["tags"]]
        assert made["tags"][row].tolist() == [-1, *tags, *[-1] * (15 - len(tags))]


QUESTIONS = ["who is strong ?", "the whales swim in naïve seas and the unaffable seas", "when ?"]


def asked(seed, count, longest=60):
    """Questions with contexts and answers of whole words, some with none."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        context = rng.choice(WORDS, rng.integers(3, longest)).tolist()
        begin = int(rng.integers(len(context)))
        text = " ".join(context[begin : begin + int(rng.integers(1, 6))])
        answers = {"text": [text], "answer_start": [len(" ".join(context[:begin])) + (begin > 0)]}
        if number % 5 == 4:
            answers = {"text": [], "answer_start": []}
        found.append({"question": QUESTIONS[number % 3], "context": " ".join(context), "answers": answers})
    return found


def run_qas_labels(encoding, answers):
    """The rule of `prepare_train_features` in transformers' examples/pytorch/question-answering/run_qa.py, reread."""
    inside = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    if not answers["text"]:
        return 0, 0
    begin = answers["answer_start"][0]
    end = begin + len(answers["text"][0])
    offsets = encoding.offsets
    if not (offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end):
        return 0, 0
    first = max(i for i in inside if offsets[i][0] <= begin)
    last = min(i for i in inside if offsets[i][1] >= end)
    return first, last


@pytest.mark.parametrize("name", ["bert", "roberta", "bart"])
def test_windows_and_answers_are_those_of_run_qa(read, bert, name):
    vocabulary, rows = bert if name == "bert" else ROBERTA, "encoder_decoder" if name == "bart" else "encoder"
    examples = asked(0, 21)
    objective = objectives.SpanExtraction(rows=rows, stride=5, question_length=18)
    made, origins, opened = read(examples, config.AnswerForm(), objective, vocabulary, 32)
    tokenizer = theirs(vocabulary, 32, stride=5, strategy="only_second")
    documents = list(dict.fromkeys(origins))
    answered = 0
    for document, i in zip(range(len(documents)), documents, strict=True):
        example = examples[i]
        first = tokenizer.encode(example["question"], example["context"])
        encodings = [first, *first.overflowing]
        found = opened.rows_of(document)
        assert len(found) == len(encodings)
        for item, encoding in zip(found, encodings, strict=True):
            assert made["tokens"][item].tolist() == encoding.ids
            span = int(made["span_starts"][item]), int(made["span_ends"][item])
            assert span == run_qas_labels(encoding, example["answers"])
            window = opened.window(item)
            inside = [n for n, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
            assert (window.offset, window.size) == (inside[0], len(inside))
            if span != (0, 0):
                answered += 1
                begins, ends = opened.context_offsets(document)
                a, b = (at - window.offset + window.first for at in span)
                assert opened.context(document)[begins[a] : ends[b]] == example["answers"]["text"][0]
    assert answered > 10 and len(made["tokens"]) > len(documents)


def test_a_note_tells_of_answers_that_no_window_holds(read, bert):
    context = "the union is strong and the union is strong and the union is strong"
    answers = {"text": [context, "union"], "answer_start": [0, 4]}
    examples = [
        {"question": "who ?", "context": context, "answers": answers},
        {"question": "who is strong and who is strong and who ?", "context": "the union", "answers": []},
    ]
    objective = objectives.SpanExtraction(stride=2, question_length=6)
    made, _, opened = read(examples, config.AnswerForm(), objective, bert)
    assert not made["span_starts"].any()
    assert opened.notes("a") == [
        "1 of the 2 examples of 'a' have a question that is too long and are truncated",
        "1 answers of 'a' fit into no window: their rows count as unanswerable",
    ]


def test_all_of_a_label_set_is_read_by_name_or_number(read, bert):
    labels = ("no", "yes")
    examples = [{"text": "the union", "label": label} for label in ("no", "yes", 0, 1)]
    made, origins, _ = read(examples, config.ClassForm(labels), objectives.Classification(), bert)
    assert made["label"].tolist() == [i % 2 for i in origins]
    # Names that are numbers are names.
    examples = [{"text": "the union", "label": label} for label in ("2", 1, 2)]
    made, origins, _ = read(examples, config.ClassForm(("1", "2")), objectives.Classification(), bert)
    assert made["label"].tolist() == [(1, 0, 1)[i] for i in origins]


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


def test_a_cache_is_another_where_its_form_is(make, bert):
    examples = [{"text": "the union", "label": "no"}, {"text": "whales", "label": "yes"}]
    run = make(examples, config.ClassForm(("no", "yes")), objectives.Classification(), bert)
    preparation.prepare(run, show_progress=False)
    first = cache.read_manifest(f"{run.data.cache_dir}/a")["identity"]
    source = dataclasses.replace(run.data.sources["a"], form=config.ClassForm(("yes", "no")))
    swapped = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))
    preparation.prepare(swapped, show_progress=False)
    assert cache.read_manifest(f"{run.data.cache_dir}/a")["identity"] != first


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=6), max_size=8)
)
@hypothesis_settings(max_examples=60)
def test_every_word_has_the_tokens_between_its_ends(found):
    """Whatever the words are: tokens of a word lie in it, and the first one at or after its begin is its first."""
    vocabulary = gpt2()
    text = " ".join(found)
    ((ids, begins, ends),) = vocabulary.encode_spans([text])
    assert list(ids) == list(vocabulary.encode(text))
    assert (np.diff(begins) >= 0).all() and (begins <= ends).all()
    at = 0
    for word in found:
        inside = [
            i for i, (begin, end) in enumerate(zip(begins, ends, strict=True)) if at < end and begin < at + len(word)
        ]
        assert inside and begins[inside[0]] == at and ends[inside[-1]] == at + len(word)
        at += len(word) + 1


def gpt2():
    if "gpt2" not in _LOADED:
        _LOADED["gpt2"] = vocabularies.load_plain(config.VocabularyConfig(BPE))
    return _LOADED["gpt2"]


_LOADED: dict[str, vocabularies.Vocabulary] = {}


def one_hot(values, size):
    return [np.eye(size)[value] for value in values]


def test_figures_of_what_is_right_are_1(read, bert):
    """Scores that are the labels', of every form; of answers over all windows."""
    labels = ("no", "yes")
    examples = [{"text": text, "label": i % 2, "score": i / 2} for i, text in enumerate(texts_of(0, 9, 6))]
    made, _, rows = read(examples, config.ClassForm(labels), objectives.Classification(), bert)
    right = dict.fromkeys(metrics.names(objectives.Classification(), labels), 1.0)
    assert metrics.compute_metrics(rows, one_hot(made["label"], 2), labels) == pytest.approx(right)
    wrong = metrics.compute_metrics(rows, one_hot(1 - made["label"], 2), labels)
    assert wrong == pytest.approx({"accuracy": 0.0, "matthews": -1.0, "f1": 0.0})
    made, _, rows = read(examples, config.ScoreForm(), objectives.Regression(), bert)
    found = metrics.compute_metrics(rows, made["score"][:, None])
    assert found == pytest.approx({"pearson": 1.0, "spearman": 1.0, "mse": 0.0})
    assert metrics.compute_metrics(rows, np.ones((9, 1)))["pearson"] == 0.0


def test_words_that_are_cut_off_count_as_outside(read, bert):
    examples = tagged(0, 17, 19)
    made, origins, rows = read(examples, config.TagForm(TAGS), objectives.Tagging(), bert)
    outputs = [np.where(tags[:, None] >= 0, np.eye(5)[tags], np.eye(5)[1]) for tags in made["tags"]]
    lost = 0
    for item, i in enumerate(origins):
        told = metrics.predict_tags(rows, item, outputs[item], TAGS)
        kept = int((made["tags"][item] >= 0).sum())
        assert told == examples[i]["tags"][:kept] + ["O"] * (len(told) - kept)
        assert len(told) == len(examples[i]["tokens"])
        lost += sum(tag != "O" for tag in examples[i]["tags"][kept:])
    found = metrics.compute_metrics(rows, outputs, TAGS)
    words = sum(len(example["tokens"]) for example in examples)
    assert lost and found["token_accuracy"] == pytest.approx(1 - lost / words)
    assert found["strict_recall"] < 1 and found["recall"] < 1
    assert list(found) == ["token_accuracy", "precision", "recall", "f1"] + [
        f"strict_{name}" for name in ("precision", "recall", "f1")
    ]
    parts = metrics.compute_metrics(rows, outputs, ("NOUN", *TAGS[1:]))
    assert list(parts) == metrics.names(objectives.Tagging(), ("NOUN", *TAGS[1:])) == ["token_accuracy"]


def test_the_answer_is_found_in_whichever_window_holds_it(read, bert):
    examples = asked(0, 21)
    objective = objectives.SpanExtraction(stride=5, question_length=18, unanswerable=True)
    made, origins, rows = read(examples, config.AnswerForm(), objective, bert, 32)
    outputs = np.zeros((rows.num_rows, 32, 2), np.float32)
    for item in range(rows.num_rows):
        outputs[item, made["span_starts"][item], 0] = outputs[item, made["span_ends"][item], 1] = 5.0
    # A window without the answer says so, but another, with it, does not.
    found = metrics.answers(rows, outputs)
    for document, i in enumerate(dict.fromkeys(origins)):
        assert found[document].text == "".join(examples[i]["answers"]["text"])
    assert metrics.compute_metrics(rows, outputs) == {"exact_match": 1.0, "f1": 1.0}
    nothing = metrics.compute_metrics(rows, np.eye(32)[0][None, :, None].repeat(rows.num_rows, 0).repeat(2, 2))
    assert nothing["exact_match"] == nothing["f1"] == pytest.approx(4 / 21)


@pytest.mark.parametrize(
    ("labels", "label", "found"),
    [
        (("true", "false"), True, 0),
        (("true", "false"), False, 1),
        (("false", "true"), "true", 1),
        (("no", "yes"), 1, 1),
        (("2", "1"), 1, 1),
        (("no", "yes"), True, None),
        (("0.5", "1.5"), 1, None),
        (("1.0", "2.0"), 1, None),
        (("1.0", "2.0"), 2.0, 1),
        (("1e0", "2e0"), 1, None),
        ((".5", "1.5"), 1, None),
        (("no", "None"), None, None),
        (("no", "yes"), 1.0, None),
        (("no", "['yes']"), ["yes"], None),
        (("no", "{'a': 1}"), {"a": 1}, None),
    ],
)
def test_a_label_is_its_name_or_a_number_where_no_name_is_one(labels, label, found):
    def read():
        return labelled.record(config.ClassForm(labels), "a:1", {"text": "a", "label": label}).values["label"]

    if found is None:
        with pytest.raises(BadRow, match=r"not in form.labels"):
            read()
    else:
        assert read() == found


CLASSES, TEXT = config.ClassForm(("no", "yes")), {"text": "the union", "label": "no"}
MISTAKES = [
    (
        CLASSES,
        {"text": "a", "label": "yess"},
        r"a.jsonl:1 has \"yess\" in 'label', which is not in form.labels: did you mean",
    ),
    (CLASSES, {"text": "a", "label": 2}, "has 2 in 'label', which is not in form.labels"),
    (CLASSES, {"texts": "a", "label": 1}, "has no field 'text': did you mean 'texts'"),
    (CLASSES, {"text": 3, "label": 1}, "has 3 in 'text': expected a text"),
    (config.ScoreForm(), {"text": "a", "score": "1"}, "in 'score': expected a number"),
    (
        config.TagForm(TAGS),
        {"tokens": ["a", "b"], "tags": ["O"]},
        "2 words and 1 tags: expected a tag for each word",
    ),
    (config.TagForm(TAGS), {"tokens": ["a", " "], "tags": ["O", "O"]}, "has an empty word"),
    (config.ChoiceForm(2), {"question": "a", "choices": ["b"], "label": 0}, "has 1 choices, but form.number is 2"),
    (
        config.ChoiceForm(2),
        {"question": "a", "choices": ["b", "c"], "label": 2},
        "'label': expected 0 to 1, or the text of",
    ),
    (
        config.AnswerForm(),
        {"question": "a", "context": "the union", "answers": [{"text": "union", "start": 3}]},
        r"has the answer \"union\" at offset 3, but the context has \" unio\" there: fix the offset",
    ),
    (
        config.AnswerForm(),
        {"question": "a", "context": "b", "answers": {"text": ["b"]}},
        "expected a list of texts and starts",
    ),
    *[
        (
            config.AnswerForm(),
            {"question": "a", "context": "bb b", "answers": answers},
            "expected a list of texts and starts",
        )
        for answers in (
            {"text": ["b"], "answer_start": [True]},
            {"text": "bb", "answer_start": [0, 1]},
            {"text": ["b"], "answer_start": 0},
            {"text": ["b"], "answer_start": [0.0]},
            [{"text": "b", "start": False}],
            [{"text": ["b"], "start": 0}],
            [{"text": "b"}],
            "b",
            None,
        )
    ],
    (config.ScoreForm(), {"text": "a", "score": True}, "in 'score': expected a number"),
    (config.ScoreForm(), {"text": "a", "score": None}, "in 'score': expected a number"),
    (
        config.TagForm(TAGS),
        {"tokens": "ab", "tags": ["O", "O"]},
        "\\\"ab\\\" in 'tokens': expected a list of texts",
    ),
    (CLASSES, {"text": " ", "label": 0}, "jsonl:1 has no text: remove this row"),
    (config.TagForm(("O", "B-C")), {"tokens": [], "tags": []}, "jsonl:1 has no text"),
]
OBJECTIVES = {
    "classes": objectives.Classification(),
    "score": objectives.Regression(),
    "tags": objectives.Tagging(),
    "choice": objectives.MultipleChoice(),
    "span": objectives.SpanExtraction(stride=1, question_length=3),
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"text": "the union", "label": "no", "label": "yes"}',
            r"a\.jsonl:1 is not valid JSON \('label' comes twice\)",
        ),
        ('{"text": "the union", "label": NaN}', r"a\.jsonl:1 is not valid JSON \(NaN is no JSON\)"),
        ('{"text": "the union", "label": 1e999}', r"a\.jsonl:1 is not valid JSON \(1e999 is beyond all numbers\)"),
    ],
)
def test_ambiguous_json_is_rejected(make, bert, tmp_path, line, message):
    run = make([TEXT], CLASSES, OBJECTIVES["classes"], bert)
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        preparation.prepare(run, show_progress=False)


@pytest.mark.parametrize(("form", "row", "said"), MISTAKES, ids=[said[:30] for *_, said in MISTAKES])
def test_a_bad_row_is_said(make, bert, form, row, said):
    run = make([row], form, OBJECTIVES[form.kind], bert)
    with pytest.raises(UserError, match=said) as told:
        preparation.prepare(run, show_progress=False)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("file", ["a.jsonl", "b.jsonl"])
@pytest.mark.parametrize("content", ["", "\n"])
def test_a_file_without_a_row_is_named(file, content, make, bert, tmp_path):
    """Either file of a source with a validation file."""
    run = make([TEXT], CLASSES, OBJECTIVES["classes"], bert)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=rf"no row of source 'a' \(.*/{file}\) has text: check its path"):
        preparation.prepare(run, show_progress=False)


def changed(run, **sections):
    for section, fields in sections.items():
        run = dataclasses.replace(run, **{section: dataclasses.replace(getattr(run, section), **fields)})
    return run


def test_parts_that_do_not_fit_are_said(make, bert):
    run = make([TEXT], CLASSES, OBJECTIVES["classes"], bert)
    source = run.data.sources["a"]
    pair = {"a": dataclasses.replace(source, form=dataclasses.replace(CLASSES, pair="b"))}
    other = {"a": source, "b": dataclasses.replace(source, form=config.ClassForm(("yes", "no")))}
    span = {"a": dataclasses.replace(source, form=config.AnswerForm())}
    choices = {"a": dataclasses.replace(source, form=config.ChoiceForm(3))}
    mistakes = [
        ({"data": {"length": 3}}, "length is 3: rows of 1 texts with 2 special tokens need at least 4"),
        (
            {"data": {"length": 4, "sources": pair}},
            "length is 4: rows of 2 texts with 3 special tokens need at least 5",
        ),
        ({"data": {"sources": other}}, "sources 'a' and 'b' have different form.labels"),
        (
            {"data": {"sources": span}},
            "'a' has form.kind span: objective 'classification' reads form.kind classes",
        ),
        ({"data": {"sources": {"a": config.JsonLines("x")}}}, "source 'a' is not a labeled source"),
        ({"data": {"layout": config.Blocks()}}, "'classification' does not read config.data.layout 'blocks'"),
        ({"objective": {"rows": "encoder_decoder"}}, "rows is encoder_decoder, config.model.kind is 'encoder'"),
        ({"vocabulary": {"cls": None}}, "labelled examples need special ids around them"),
    ]
    for changes, said in mistakes:
        with pytest.raises(UserError, match=said):
            config.from_dict(config.to_dict(changed(run, **changes)))
    asks = dataclasses.replace(changed(run, data={"sources": span}), objective=objectives.SpanExtraction())
    heads = [
        (
            ("no", "yes", "maybe"),
            r"task has 3 labels \(no, yes, maybe\), source 'a' 2 \(no, yes\): they must be the same",
        ),
        (("yes", "no"), "heads.task.labels has 'yes' where form.labels of source 'a' has 'no'"),
    ]
    for labels, said in heads:
        model = dataclasses.replace(run.model, heads=(("task", models.ClassesHead(labels=labels)),))
        with pytest.raises(UserError, match=said):
            config.from_dict(config.to_dict(dataclasses.replace(run, model=model)))
    with pytest.raises(UserError, match="length is 16, too short for windows to advance: set at least 196"):
        config.from_dict(config.to_dict(asks))
    chooses = dataclasses.replace(changed(run, data={"sources": choices}), objective=objectives.MultipleChoice())
    with pytest.raises(UserError, match=r"num_choices is 2, the source has form.number 3"):
        config.from_dict(config.to_dict(chooses))
    decodes = dataclasses.replace(
        run, objective=objectives.Classification("decoder"), model=model_for("decoder", 50260)
    )
    with pytest.raises(UserError, match=r"with bos, have sep between texts, end with cls: set config.vocabulary.bos"):
        config.from_dict(config.to_dict(decodes))
    for arguments, said in (
        ({"rows": "decoder", "both_orders": True, "lm_coefficient": -1.0}, "lm_coefficient is -1.0"),
        ({"lm_coefficient": 0.5}, "lm_coefficient is 0.5, with rows for encoder"),
        ({"both_orders": True}, "both_orders needs rows for a decoder"),
    ):
        with pytest.raises(UserError, match=said):
            objectives.Classification(**arguments)
    with pytest.raises(UserError, match="rows is decoder: tagging supports encoder, encoder_decoder, elmo"):
        objectives.Tagging("decoder")
    with pytest.raises(UserError, match="list at least two different labels"):
        config.ClassForm(("a", "a"))


def test_an_unknown_field_of_a_form_is_said(make, bert):
    tree = config.to_dict(make([TEXT], CLASSES, OBJECTIVES["classes"], bert))
    tree["data"]["sources"]["a"]["form"]["lable"] = "label"
    with pytest.raises(UserError, match=r"lable.*did you mean 'label'"):
        config.from_dict(tree)


def test_each_row_of_an_example_costs_what_a_row_does():
    """Pairs in both orders, and choices, are two rows each; next tokens cost a softmax where they are told."""
    model = model_for("decoder", 50260)

    def costs(objective, form):
        source = config.LabelledJsonLines("a", form)
        run = config.Run(
            model=model,
            objective=objective,
            data=config.DataConfig("cache", 16, {"a": source}, layout=config.LabelledLayout()),
            vocabulary=GPT,
            optimizer=config.AdamWConfig(),
            schedule=config.ConstantSchedule(1e-3),
            train=config.TrainConfig(steps=5, batch_size=4),
        )
        (stage,) = config.resolve_phases(run)
        batch = reader.blank_batch(config.reader_config(run), 16)
        assert phase_costs.num_tokens(run, stage) == 4 * batch["tokens"].size
        return phase_costs.model_flops(run, stage)

    pair = config.ClassForm(("x", "y"), pair="b")
    one = costs(objectives.Classification("decoder"), pair)
    assert costs(objectives.Classification("decoder", both_orders=True), pair) == 2 * one
    assert costs(objectives.MultipleChoice("decoder"), config.ChoiceForm(2)) == 2 * one
    told = costs(objectives.Classification("decoder", lm_coefficient=0.5), pair)
    assert told - one == 3 * 2 * 4 * 16 * 8 * 50260


def test_a_verb_says_a_bad_row_in_one_line(verb, make, bert, tmp_path):
    run = make([{"text": "a", "label": "maybe"}], CLASSES, OBJECTIVES["classes"], bert)
    tree = json.dumps(config.to_dict(run))
    page = f"import json\nfrom plm_jax import config\n\n\ndef get_config():\n    tree = json.loads({tree!r})\n"
    (tmp_path / "page.py").write_text(f"{page}    return config.to_config_dict(config.from_dict(tree))\n")
    finished = verb("prepare", f"--config={tmp_path}/page.py")
    assert finished.status == 2
    assert finished.errors == [
        f"error: {tmp_path}/a.jsonl:1 has \"maybe\" in 'label', which is not in form.labels: choose from: no, yes"
    ]


def test_a_choice_may_be_told_by_its_text(read, bert):
    examples = [
        {"question": "the union is", "choices": ["strong", "naive"], "label": label}
        for label in (0, 1, "strong", "naive")
    ]
    made, origins, _ = read(examples, config.ChoiceForm(2), OBJECTIVES["choice"], bert)
    assert made["label"].tolist() == [i % 2 for i in origins]
