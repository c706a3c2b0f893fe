"""Sources of examples: from files and seqio's tasks through the cache to the rows that the reader gives."""

import dataclasses
import hashlib
import itertools
import json
import re

import numpy as np
import pytest

from plm_jax import config, models, objectives
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.data.layouts import inputs_targets
from plm_jax.data.sources import files, tasks
from plm_jax.runs import preparation
from tests.support import splits
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader, unstack
from tests.support.tiny import TEXT

EOS, PAD = 256, 257
WORDS = TEXT.split()
IDS = {"eos": EOS, "pad": PAD, "bos": 258, "mask": 259, "sentinels": 8}
SPANS = objectives.SpanCorruption()


def write_examples(path, count=120, seed=0):
    """Rows with a word and its upper case; half of the words are two."""
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            word = " ".join(rng.choice(WORDS, 1 + number % 2))
            file.write(json.dumps({"word": f"{word} {number}", "tags": [word.upper()]}) + "\n")


@pytest.fixture
def run(make_run, tmp_path):
    """`run(objective, length, **examples)` returns a run over texts and examples, mixed one to two."""
    write_examples(tmp_path / "up.jsonl")
    (tmp_path / "text.txt").write_text("\n".join(" ".join(WORDS[i % 19 :]) for i in range(60)))
    every = {
        "text": config.TextFiles(str(tmp_path / "text.txt"), document="line"),
        "up": config.TableInputsTargets(str(tmp_path / "up.jsonl"), "upper: {word}", "{tags[0]}"),
    }

    def make(objective=SPANS, length=24, sources=("text", "up"), layout=(), **fields):
        data = {
            "sources": {name: every[name] for name in sources},
            "mixture": {name: rate for name, rate in (("text", 1.0), ("up", 2.0)) if name in sources},
            "length": length,
            "validation_fraction": 0.1,
            "inputs_targets": config.InputsTargetsConfig(**fields),
            "layout": config.Blocks(**dict(layout)),
        }
        return make_run("a", vocab_size=272, objective=objective, data=data, **IDS)

    return make


@pytest.fixture
def prepared(run):
    """`prepared(…)`, with the arguments of `run`, returns the run and its reader."""

    def make(*args, **kwargs):
        prepared_run = run(*args, **kwargs)
        preparation.prepare(prepared_run, show_progress=False)
        return prepared_run, open_reader(prepared_run)

    return make


def all_examples(tmp_path):
    """Returns (inputs, targets) of all examples, as bytes."""
    rows = [json.loads(line) for line in (tmp_path / "up.jsonl").read_text().splitlines()]
    return [(f"upper: {row['word']}".encode(), row["tags"][0].encode()) for row in rows]


def held_out(tmp_path):
    """Returns the (inputs, targets) of the held-out examples."""
    examples = all_examples(tmp_path)
    _, are_held_out = splits.held_out([inputs.decode() for inputs, _ in examples], 0.1)
    return set(itertools.compress(examples, are_held_out))


def pieces(row):
    """(inputs, targets) of each example of an encoder-decoder's row, as bytes."""
    numbers = row.get("segment_ids", row["mask"])
    of_targets = row.get("decoder_segment_ids", row["target_weights"].astype(int))
    for number in range(1, numbers.max() + 1):
        parts = row["tokens"][numbers == number], row["targets"][of_targets == number]
        assert all(part[-1] == EOS for part in parts)
        yield tuple(bytes(part[:-1].astype(np.uint8)) for part in parts)


def test_the_cache_has_inputs_and_targets_split_by_the_inputs(prepared, tmp_path):
    run, opened = prepared()
    source = opened.sources["up"]
    assert source.has_inputs_targets and not opened.sources["text"].has_inputs_targets
    examples = set()
    for name, split in source.splits.items():
        assert len(split.sentences) == 2 * split.num_documents
        for (start, stop), cut in zip(itertools.pairwise(split.documents), split.sentences[1::2], strict=True):
            example = tuple(bytes(split.tokens(a, b).astype(np.uint8)) for a, b in ((start, cut), (cut, stop)))
            assert (example in held_out(tmp_path)) == (name == "validation")
            examples.add(example)
        assert split.num_bytes == split.num_tokens
    assert examples == set(all_examples(tmp_path))
    sources = run.data.sources | {"up": config.TextFiles("up.jsonl")}
    with pytest.raises(UserError, match="the cache of 'up' was prepared for another kind of source"):
        open_reader(changed(run, data={"sources": sources}))


def test_only_rows_with_a_true_field_are_read(tmp_path):
    rows = [{"inputs": str(i), "targets": "t", "kept": i % 2 == 0} for i in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = config.TableInputsTargets(str(tmp_path / "a.jsonl"))
    assert [record.text for record in files.read(source)] == ["0", "1", "2", "3"]
    some = dataclasses.replace(source, only="kept")
    assert [(record.text, record.row_number) for record in files.read(some)] == [("0", 1), ("2", 3)]
    assert files.definition(some)["only"] == "kept"
    with pytest.raises(UserError, match=r"a.jsonl:1 has no field 'keep': did you mean 'kept'"):
        list(files.read(dataclasses.replace(source, only="keep")))
    for value in ("false", 2, 1.0, None, []):  # Each is true or false in Python.
        (tmp_path / "b.jsonl").write_text(json.dumps(rows[0] | {"kept": value}))
        with pytest.raises(UserError, match=r"b.jsonl:1 has .* in 'kept': use true, false, 1 or 0"):
            list(files.read(dataclasses.replace(some, path=str(tmp_path / "b.jsonl"))))


def test_templates_write_booleans_as_json_does(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "is it", "answer": true}')
    source = config.TableInputsTargets(str(tmp_path / "a.jsonl"), "{question}", "{answer}")
    assert [(record.text, *record.other_texts) for record in files.read(source)] == [("is it", "true")]


def test_the_reviews_are_those_that_people_agreed_on():
    """Compares texts and labels with the SHA-256 of the first version of the file."""
    run = config.from_dict(pages.load("demo").module.get_config("t5-tasks"))
    path = run.data.sources["sentiment"].path.replace("package:", "plm_jax/")
    source = dataclasses.replace(run.data.sources["sentiment"], path=path)
    reviews = [(record.text, *record.other_texts) for record in files.read(source)]
    assert len(reviews) == 9173
    digest = hashlib.sha256(json.dumps(reviews, ensure_ascii=False).encode()).hexdigest()
    assert digest == "2347307af1adead2785aa14834aa8949ce81faf45063af52eee620633be0bba4"


@pytest.mark.parametrize(("target_length", "packed"), [(None, False), (12, True)])
def test_texts_and_examples_share_a_batch(prepared, tmp_path, packed, target_length):
    run, opened = prepared(length=30, target_length=target_length, packed=packed)
    batch = opened.batch(0, range(12))
    assert_like_blank(run, batch)
    assert batch["targets"].shape[1] == (target_length or SPANS.target_length(30))
    assert ("segment_ids" in batch) == packed
    limit = batch["targets"].shape[1] - 1
    known = {(inputs[:29], targets[:limit]) for inputs, targets in all_examples(tmp_path)}
    num_examples = 0
    for k in range(300):
        row = opened.example(k)
        if row["targets"][0] < EOS:  # The targets of a text begin with a sentinel.
            assert set(pieces(row)) <= known
            num_examples += 1
        elif packed:
            assert set(row["segment_ids"].tolist()) <= {0, 1}
    num_train = len(all_examples(tmp_path)) - len(held_out(tmp_path))
    rate = 2 * opened.num_rows("train")["up"] / num_train  # In rows, where that of the text is 1.
    assert abs(num_examples - 300 * rate / (1 + rate)) <= 1


def test_rates_count_examples_as_seqio_does_which_mixes_before_it_packs(prepared):
    run, opened = prepared(length=64, target_length=20, packed=True)
    texts, rows, examples = 0, 0, 0
    for k in range(4000):
        row = opened.example(k)
        if row["targets"][0] < EOS:
            rows, examples = rows + 1, examples + int(row["segment_ids"].max())
        else:
            texts += 1
    assert examples > 1.5 * rows
    assert examples / texts == pytest.approx(2.0, rel=0.01)
    # Without rates all sources go through an epoch in the same time, whatever their rows hold.
    opened = open_reader(changed(run, data={"mixture": {}}))
    num_rows = opened.num_rows("train")
    num_examples = sum(opened.example(k)["targets"][0] < EOS for k in range(sum(num_rows.values())))
    assert abs(num_examples - num_rows["up"]) <= 1


@pytest.mark.parametrize(("length", "target_length", "packed"), [(24, 8, False), (64, 20, True), (40, 9, True)])
def test_each_epoch_and_the_validation_have_every_example_once(
    prepared, tmp_path, monkeypatch, length, target_length, packed
):
    monkeypatch.setattr(inputs_targets, "BLOCK_EXAMPLES", 50)
    _, opened = prepared(length=length, sources=["up"], target_length=target_length, packed=packed)
    limits = np.array([length, target_length])
    examples = {False: [], True: []}
    for example in all_examples(tmp_path):
        cut = tuple(part[: limit - 1] for part, limit in zip(example, limits, strict=True))
        examples[example in held_out(tmp_path)].append(cut)
    order = opened._segments[0].orders["up"]
    for epoch in range(2):
        rows = [opened.example(k) for k in range(epoch * order.num_items, (epoch + 1) * order.num_items)]
        read = [list(pieces(row)) for row in rows]
        assert sorted(itertools.chain(*read)) == sorted(examples[False])
        assert (max(map(len, read)) > 1) == packed
    rows = itertools.chain(*map(unstack, opened.in_order("validation", 4)))
    read = [list(pieces(row)) for row in rows if row["mask"].any()]
    assert sorted(itertools.chain(*read)) == sorted(examples[True])
    if packed:  # No row has room for the first example of the next one; blocks of 50 end rows, too.
        split = opened.sources["up"].splits["train"]
        layout = opened.rows("train", "up", length)
        counts = np.array(inputs_targets._lengths(split, 0, split.num_documents))
        sizes = np.minimum(counts + 1, limits[:, None])
        for first, last in itertools.pairwise(layout._first.tolist()):
            assert (sizes[:, first:last].sum(axis=1) <= limits).all()
            if last < split.num_documents and last % 50:
                assert (sizes[:, first : last + 1].sum(axis=1) > limits).any()


@pytest.mark.parametrize("attend", [True, False])
def test_a_decoder_reads_texts_and_examples_in_one_batch(prepared, tmp_path, attend):
    layout = {"attend_across_documents": attend}
    run, opened = prepared(objectives.Causal(), length=32, target_length=9, layout=layout)
    batch = opened.batch(0, range(12))
    assert_like_blank(run, batch)
    assert ("segment_ids" in batch) != attend
    known = {(inputs[:24], targets[:8]) for inputs, targets in all_examples(tmp_path)}
    num_examples = 0
    for k in range(60):
        row = opened.example(k)
        if row["target_weights"][0] == 0 and bytes(row["tokens"][:6].astype(np.uint8)) == b"upper:":
            at = np.flatnonzero(row["target_weights"])
            assert row["targets"][at[-1]] == EOS
            inputs = bytes(row["tokens"][: at[0] + 1].astype(np.uint8))
            assert (inputs, bytes(row["targets"][at[:-1]].astype(np.uint8))) in known
            num_examples += 1
    assert abs(num_examples - 40) <= 1


def test_a_run_reports_how_many_examples_are_truncated(prepared):
    _, opened = prepared(length=24, target_length=8, sources=["up"])
    (note,) = opened.notes()
    share = re.fullmatch(r"(.*)% of the examples of 'up' are longer than a row and are truncated", note)[1]
    split = opened.sources["up"].splits["train"]
    inputs, targets = inputs_targets._lengths(split, 0, split.num_documents)
    assert 0 < float(share) < 100
    assert float(share) == pytest.approx(100 * np.mean((inputs > 23) | (targets > 7)), abs=0.051)
    _, opened = prepared(length=64, target_length=30, sources=["up"])
    assert opened.notes() == []


def test_a_phase_of_another_length_continues_in_the_epoch(prepared, tmp_path):
    run, _ = prepared(sources=["up"], length=40, target_length=12)
    phases = (config.PhaseConfig(until=0.1), config.PhaseConfig(until=1.0, length=30))
    opened = open_reader(changed(run, train={"phases": phases}))
    first = run.train.steps // 10 * run.train.batch_size
    number = opened._segments[0].orders["up"].num_items
    inputs = [next(iter(pieces(opened.example(k))))[0][:29] for k in range(number)]
    expected = [inputs[:29] for inputs, _ in set(all_examples(tmp_path)) - held_out(tmp_path)]
    assert first < number and sorted(inputs) == sorted(expected)


@pytest.mark.parametrize(
    ("message", "objective", "fields"),
    [
        ("objective 'full_lm' does not train on: set config.objective.kind", objectives.FullLM(), {}),
        (r"set config\.data\.inputs_targets\.target_length", objectives.Causal(), {}),
        ("target_length is 25, with rows of 24: must be between 2 and 24", objectives.Causal(), {"target_length": 25}),
        ("target_length is 1, with rows of 24: must be between 2 and", objectives.Causal(), {"target_length": 1}),
        ("target_length is 4, with rows of 24: must be at least", SPANS, {"target_length": 4}),
        ("allows one example per row", objectives.DecoderPrefixLM(), {"target_length": 9, "packed": True}),
    ],
)
def test_bad_configs_are_rejected(run, message, objective, fields):
    assert_rejected(message, run(objective, **fields))


def test_only_models_without_absolute_positions_read_packed_examples(run):
    packed = run(length=64, target_length=20, packed=True)

    def sections(position):
        return {"model": {"attention": dataclasses.replace(packed.model.attention, head_dim=8, position=position)}}

    message = "packed examples share a row, but the model uses absolute positions"
    assert_rejected(message, packed, **sections(models.LearnedPositions(64)))
    for position in (models.RelativeBias(), models.Rotary(), models.Rotary2D()):
        accepted = changed(packed, **sections(position))
        assert config.from_dict(config.to_dict(accepted)) == accepted


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"a\.jsonl:2 is not a JSON object"),
        ('{"words": "x", "tags": ["y"]}', r"a\.jsonl:2 has no field 'word': did you mean 'words'"),
        ('{"word": 1.5, "tags": []}', r"a\.jsonl:2 does not fit the source's inputs and targets: "),
        ('{"word": null, "tags": ["y"]}', r"a\.jsonl:2 does not fit .*: 'word' is null, neither text nor a number"),
        ('{"word": 1, "tags": [["y"]]}', r"a\.jsonl:2 .*: 'tags\[0\]' is \["),
        ('{"word": 1' + "0" * 400 + ', "tags": [1]}', r"a\.jsonl:2 does not fit .*too large"),
        (r'{"word": 1, "tags": ["\ud83d"]}', r"a\.jsonl:2 has half of a surrogate pair"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"word": 2.5, "tags": [7]}\n' + line + "\n")
    source = config.TableInputsTargets(str(tmp_path / "a.jsonl"), "upper: {word:.1f}", "{tags[0]}")
    examples = tasks.examples(tasks.task("a", source), "train")
    assert next(examples)[:2] == ("upper: 2.5", "7")
    with pytest.raises(UserError, match=message) as caught:
        list(examples)
    assert "\n" not in str(caught.value)


def test_seqio_tasks_of_texts_and_of_tokens(tmp_path, monkeypatch):
    """Tokens give the text that seqio keeps beside them, else what the task's vocabulary makes of them."""
    (tmp_path / "more_tasks.py").write_text(
        "import functools, seqio, tensorflow as tf\n"
        "texts = {'inputs': ['say a', 'say b'], 'targets': ['A', 'B'], 'number': [1, 2]}\n"
        "source = seqio.FunctionDataSource(lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices(texts),"
        " splits=['train', 'validation'])\n"
        "text = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)\n"
        "byte = seqio.Feature(seqio.ByteVocabulary())\n"
        "tokenize = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)\n"
        "for name, feature, steps in (('as_text', text, []), ('kept', byte, [seqio.preprocessors.tokenize]),\n"
        "    ('tokens', byte, [tokenize, seqio.preprocessors.append_eos])):\n"
        "    seqio.TaskRegistry.add('more_' + name, source=source, preprocessors=steps,\n"
        "        output_features={'inputs': feature, 'targets': feature})\n"
        "bare = lambda dataset: dataset.map(lambda row: {'targets': row['targets']})\n"
        "seqio.TaskRegistry.add('more_documents', source=source, preprocessors=[bare],\n"
        "    output_features={'targets': text})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    users.trust(["more_tasks"])
    for name in ("as_text", "kept", "tokens"):
        task = tasks.task("x", config.SeqioInputsTargets(f"more_{name}", "more_tasks"))
        read = list(tasks.examples(task, "validation"))
        assert [(example.inputs, example.targets) for example in read] == [("say a", "A"), ("say b", "B")]
        assert [example.row["number"] for example in read] == [1, 2]
    with pytest.raises(UserError, match="task 'more_documents' has no feature 'inputs': "):
        next(tasks.examples(tasks.task("x", config.SeqioInputsTargets("more_documents", "more_tasks")), "train"))
    with pytest.raises(UserError, match="registers no task 'more_token': did you mean 'more_tokens'"):
        tasks.task("x", config.SeqioInputsTargets("more_token", "more_tasks"))


def test_a_vocabulary_is_trained_on_inputs_and_targets(run, tmp_path):
    vocabulary = config.VocabularyConfig(f"words:{tmp_path}/words.txt", train_size=400, bos=0, eos=1, unk=2)
    preparation.prepare(changed(run(sources=["up"], target_length=9), vocabulary=vocabulary), show_progress=False)
    assert {"upper:", "the", "THE"} <= set((tmp_path / "words.txt").read_text().split())


@pytest.mark.parametrize("packed", [False, True])
def test_documents_of_rows_are_their_examples(prepared, packed):
    """Compares the numbers in the texts of examples with their lines in the file."""
    _, opened = prepared(length=48, packed=packed)
    rows, origin = {}, opened.sources["up"].origin
    for k in range(200):
        name, documents = opened.origin(k)
        if name == "up":
            text = bytes(token for token in opened.example(k)["tokens"].tolist() if token < 256).decode()
            lines = [origin("train", document)[1] - 1 for document in documents]
            assert lines == list(map(int, re.findall(r"\d+", text)))
            for document in documents:
                rows.setdefault(document, []).append(k)
    assert any(len(opened.origin(k)[1]) > 1 for of in rows.values() for k in of) == packed
    for document in range(opened.sources["up"].splits["train"].num_documents):
        assert list(opened.examples_with("up", document, 50)) == rows.get(document, [])
