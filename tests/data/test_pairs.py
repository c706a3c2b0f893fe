"""Sentence pairs against the published procedure, followed one document, one sentence and one token at a time."""

import itertools
import shutil
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import index, sentence_pairs
from tests.support.data import assert_rejected, open_reader, unstack

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
VOCAB_SIZE = 60_000
SPECIAL = objectives.Special(pad=PAD, cls=CLS, sep=SEP, mask=MASK, vocab_size=VOCAB_SIZE)
MASKED = objectives.MaskedLM()
MASKED_LM = objectives.get("masked_lm", SPECIAL)
# Sizes of the corpus of which shares are computed.
DOCUMENTS, SENTENCES, TOKENS = 2000, 4, 125


@pytest.fixture
def paired(make_run):
    """`paired(names, data=…, train=…)` returns a masked-LM run over sentence pairs in rows of 16."""

    def paired(names, data=(), train=(), masked=MASKED):
        data = {"layout": config.SentencePairs(duplicates=3), "length": 16, **dict(data)}
        return make_run(names, VOCAB_SIZE, None, data, train, masked, pad=PAD, cls=CLS, sep=SEP, mask=MASK)

    return paired


def corpus(seed, num_documents, longest_sentence=9):
    """Sentence lengths of some documents."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest_sentence + 1, rng.integers(1, 15)).tolist() for _ in range(num_documents)]


def opened(source, length, split="train", seed=0, **settings):
    return config.SentencePairs(**settings).open(layouts.RowRequest.of(source, split, length, MASKED_LM, seed))


def examples(layout, items=None):
    """(A, B, label) of items, of all by default; what surrounds A and B is checked."""
    pairs = []
    for item in range(layout._passes[-1]) if items is None else items:
        example = layout.example(item, layouts.generator(5, "draws", item))
        assert {(v.dtype, v.shape) for k, v in example.items() if k != "pair_label"} == {
            (np.dtype(np.int32), (layout._length,))
        }
        assert (example["pair_label"].dtype, example["pair_label"].shape) == (np.int32, ())
        tokens = example["tokens"].tolist()
        sep = tokens.index(SEP)
        end = tokens.index(SEP, sep + 1)
        a, b = tokens[1:sep], tokens[sep + 1 : end]
        padding = layout._length - end - 1
        assert a and b and tokens == [CLS, *a, SEP, *b, SEP] + [PAD] * padding
        assert example["mask"].tolist() == [1] * (end + 1) + [0] * padding
        assert example["token_types"].tolist() == [0] * (sep + 1) + [1] * (end - sep) + [0] * padding
        assert min(a) >= FIRST and a == list(range(a[0], a[0] + len(a))) and b == list(range(b[0], b[0] + len(b)))
        pairs.append((a, b, int(example["pair_label"])))
    return pairs


def published_walk(document, target, draws):
    """One document's pairs: (sentences of A, sentences of B or None, tokens wanted of a random B)."""
    parts, chunk, length, i = [], [], 0, 0
    while i < len(document):
        chunk.append(i)
        length += document[i]
        if i == len(document) - 1 or length >= target:
            where, whether = draws[chunk[0]]
            cut = 1 if len(chunk) == 1 else 1 + int(where * (len(chunk) - 1))
            a = chunk[:cut]
            if len(chunk) == 1 or whether < 0.5:
                parts.append((a, None, target - sum(document[j] for j in a)))
                i -= len(chunk) - cut
            else:
                parts.append((a, chunk[cut:], None))
            chunk, length = [], 0
        i += 1
    return parts


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(2, 30),
    st.integers(0, 99),
)
def test_all_documents_at_once_are_each_document_in_turn(documents, longest, seed):
    rng = np.random.default_rng(seed)
    targets = rng.integers(2, longest, len(documents), endpoint=True)
    draws = rng.random((sum(map(len, documents)), 2))
    sentences = np.cumsum([0, *itertools.chain(*documents)])
    firsts = np.cumsum([0, *map(len, documents)])
    expected = []
    for document, target, first in zip(documents, targets, firsts, strict=False):
        for a, b, missing in published_walk(document, target, draws[first:]):
            length_b = sum(document[j] for j in b) if b else -max(1, missing)
            expected.append((sentences[first + a[0]], sum(document[j] for j in a), length_b))
    columns = sentence_pairs.walk(sentences, firsts, targets, draws)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 40))
def test_truncation_is_one_token_at_a_time(num_a, num_b, room):
    a, b = num_a, num_b
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert sentence_pairs.truncate(num_a, num_b, room) == (a, b)


def test_each_pass_is_the_whole_text_in_order(write_sentences, monkeypatch):
    """Sentences of one token leave nothing to truncate, so A, and B where it is next, join to the text."""
    documents = [[1] * n for n in np.random.default_rng(0).integers(1, 60, 80)]
    monkeypatch.setattr(index, "BLOCK_SENTENCES", 100)
    layout = opened(write_sentences({"train": documents}), 16, duplicates=4)
    text = list(range(FIRST, FIRST + sum(map(sum, documents))))
    borders = np.cumsum([FIRST, *map(sum, documents)])
    cuts = []
    for first, end in itertools.pairwise(layout._passes):
        pairs = examples(layout, range(first, end))
        assert [t for a, b, label in pairs for t in (a if label else a + b)] == text
        cuts.append(tuple(a[0] for a, _, _ in pairs))
        for a, b, label in pairs:
            of_a, of_b = np.searchsorted(borders, (a[0], b[0]), side="right")
            assert (of_a != of_b) == label and (label or b[0] == a[-1] + 1)
            assert of_a == np.searchsorted(borders, a[-1], side="right")
            assert of_b == np.searchsorted(borders, b[-1], side="right")
    assert len(set(cuts)) == 4
    assert layout.num_rows == layout._passes[1]


def test_parts_are_whole_sentences_unless_truncated(write_sentences):
    documents = corpus(1, 150)
    starts = set(np.cumsum([FIRST, *itertools.chain(*documents)]).tolist())
    borders = np.cumsum([FIRST, *map(sum, documents)])
    pairs = examples(opened(write_sentences({"train": documents}), 24, duplicates=5, short_probability=0.0))
    truncated = [len(a) + len(b) == 21 for a, b, _ in pairs]
    assert 0.2 < np.mean(truncated) < 0.9
    for (a, b, _), full in zip(pairs, truncated, strict=True):
        assert len(a) + len(b) <= 21
        if not full:
            assert {a[0], a[-1] + 1, b[0], b[-1] + 1} <= starts
            assert b[-1] + 1 in borders, "only a document's end makes a short row"
    assert any(label and b[-1] + 1 not in borders for (a, b, label) in pairs)


def test_half_of_the_truncated_tokens_go_from_the_front(write_sentences):
    """Sentences longer than a row: A and B are one each, and all but 10 and 11 of their 40 tokens go."""
    pairs = examples(opened(write_sentences({"train": [[40, 40]] * 300}), 24, duplicates=1, short_probability=0.0))
    assert {(len(a), len(b), label) for a, b, label in pairs} == {(11, 10, 1)}
    front = np.array([((a[0] - FIRST) % 40, (b[0] - FIRST) % 40) for a, b, _ in pairs])
    for column, removed in zip(front.T, (29, 30), strict=True):
        assert abs(column.mean() - removed / 2) < 5 * np.sqrt(removed / 4 / len(pairs))
        assert abs(column.var() / (removed / 4) - 1) < 0.35
    assert abs(np.corrcoef(front.T)[0, 1]) < 5 / np.sqrt(len(pairs))


def test_short_documents_are_a_tenth_and_short_throughout(write_sentences, monkeypatch):
    num, longest = 1000, 13
    monkeypatch.setattr(index, "BLOCK_SENTENCES", 200)
    layout = opened(write_sentences({"train": [[1] * 50] * num}), 16, duplicates=1)
    sizes = {}
    for a, b, label in examples(layout):
        if b[-1] + 1 != FIRST + (a[0] - FIRST) // 50 * 50 + 50 and not label:
            sizes.setdefault((a[0] - FIRST) // 50, set()).add(len(a) + len(b))
    assert all(len(targets_of_document) == 1 for targets_of_document in sizes.values())
    targets = np.array([min(targets_of_document) for targets_of_document in sizes.values()])
    share = 0.1 * (longest - 2) / (longest - 1)
    assert abs(np.mean(targets < longest) - share) < 5 * np.sqrt(share / len(targets))
    assert set(targets) == set(range(2, longest + 1))


def test_where_a_is_cut_is_uniform(write_sentences):
    layout = opened(write_sentences({"train": [[1] * 13] * 3000}), 16, duplicates=1, short_probability=0.0)
    sizes = [len(a) for a, b, label in examples(layout) if not label and (a[0] - FIRST) % 13 == 0]
    counts = np.bincount(sizes, minlength=13)[1:]
    assert len(counts) == 12 and (np.abs(counts - len(sizes) / 12) < 5 * np.sqrt(len(sizes) / 12)).all()


def labels_of_long_documents(folder, task):
    """Returns the label of each pair and the document of its first sentence; a row fits any whole document."""
    size = SENTENCES * TOKENS
    split = types.SimpleNamespace(
        documents=size * np.arange(DOCUMENTS + 1),
        sentences=TOKENS * np.arange(SENTENCES * DOCUMENTS),
        num_documents=DOCUMENTS,
        num_tokens=size * DOCUMENTS,
        tokens=lambda start, stop: FIRST + np.arange(start, stop) // TOKENS,
    )
    source = cache.CachedSource(str(folder), "i", {}, {"train": split}, None)
    layout = opened(source, 512, task=task, duplicates=1, short_probability=0.0)
    examples = [layout.example(item, layouts.generator(1, "draws", item)) for item in range(layout.num_rows)]
    labels = np.array([example["pair_label"] for example in examples])
    return labels, (np.array([example["tokens"][1] for example in examples]) - FIRST) // SENTENCES


def test_random_next_sentences_are_more_than_half(tmp_path):
    """Compares a million tokens with the closed form.

    Of n sentences a next sentence takes all; a random one only the first part, and the rest makes pairs again.
    """
    is_random, document = labels_of_long_documents(tmp_path, "next_sentence")
    random_pairs, all_pairs = [0.0, 1.0], [0.0, 1.0]
    for n in range(2, SENTENCES + 1):
        random_pairs.append(0.5 * (1 + np.mean(random_pairs[1:n])))
        all_pairs.append(1 + 0.5 * np.mean(all_pairs[1:n]))
    for weights, mean in ((is_random, random_pairs[-1]), (None, all_pairs[-1])):
        counts = np.bincount(document, weights, DOCUMENTS)
        assert abs(counts.mean() - mean) < 4 * counts.std() / DOCUMENTS**0.5
    assert random_pairs[-1] / all_pairs[-1] > 0.55


def test_partners_are_uniform_over_other_documents_and_their_sentences(write_sentences):
    """A document of many sentences is no likelier than one of a few."""
    documents = [[30] * 4, [1] * 40, [2] * 5]
    layout = opened(write_sentences({"train": documents}), 12, duplicates=1)
    item = 0
    assert examples(layout, [item])[0][2] == 1
    rows = [layout.example(item, layouts.generator(1, "b", k))["tokens"] for k in range(2000)]
    first = np.array([tokens[tokens.tolist().index(SEP) + 1] - FIRST - 120 for tokens in rows])
    assert first.min() >= 0
    of_second = first < 40
    assert abs(of_second.mean() - 0.5) < 5 * np.sqrt(0.25 / 2000)
    assert len(set(first[of_second].tolist())) == 40


def test_partners_begin_in_the_same_stretch_or_anywhere_if_there_is_none(write_sentences, monkeypatch):
    """Stretches of 100 tokens: documents 0 to 3 begin in the first, 4 (running on through the third) in the second."""
    monkeypatch.setattr(sentence_pairs, "STRETCH_TOKENS", 100)
    begins = np.array([0, 30, 60, 90, 120, 320])
    layout = opened(
        write_sentences({"train": [[10] * (size // 10) for size in (30, 30, 30, 30, 200, 30)]}), 16, duplicates=1
    )
    expected = {0: {1, 2, 3}, 3: {0, 1, 2}, 4: {0, 1, 2, 3, 5}, 5: {0, 1, 2, 3, 4}}
    for document, partners in expected.items():
        rngs = (layouts.generator(1, "b", k) for k in range(200))
        starts = [layout._partners.draw(int(begins[document]) + 15, 5, rng)[0] for rng in rngs]
        assert set(np.searchsorted(begins, starts, side="right") - 1) == partners
    document_of_row = np.searchsorted(begins, layout._starts, side="right") - 1
    partners = {0: {1, 2, 3}, 1: {0, 2, 3}, 2: {0, 1, 3}, 3: {0, 1, 2}, 4: {0, 1, 2, 3, 5}, 5: {0, 1, 2, 3, 4}}
    for document in range(6):
        rows = [
            row
            for row, first in enumerate(document_of_row.tolist())
            if first == document or (layout._lengths_b[row] < 0 and document in partners[first])
        ]
        assert sorted(np.concatenate([*layout.rows_with(document)]).tolist()) == rows


def test_one_document_is_its_own_partner(write_sentences):
    pairs = examples(opened(write_sentences({"train": [[3, 4, 5]]}), 16))
    assert sum(label for _, _, label in pairs) > 5


def test_the_index_is_made_once_for_each_seed_and_length(write_sentences, tmp_path):
    source = write_sentences({"train": corpus(0, 40)})
    first = opened(source, 16)
    (folder,) = (tmp_path / "a/index").iterdir()
    stamp = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = opened(source, 16)
    assert stamp == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    np.testing.assert_array_equal(first._starts, again._starts)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    opened(source, 16, seed=1), opened(source, 20), opened(source, 16, duplicates=2)
    assert len(list((tmp_path / "a/index").iterdir())) == 4
    shutil.rmtree(folder)
    opened(source, 16)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "starts.npy").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"starts\.npy is damaged"):
        opened(source, 16)


def test_the_index_of_another_maker_is_taken(write_sentences, tmp_path, monkeypatch):
    """A second maker that ends first leaves its files, and nothing else stays behind."""
    source = write_sentences({"train": corpus(0, 40)})
    make = index._write

    def outrun(*args):
        monkeypatch.setattr(index, "_write", make)
        opened(source, 16)
        make(*args)

    monkeypatch.setattr(index, "_write", outrun)
    late = opened(source, 16)
    assert len(list((tmp_path / "a/index").iterdir())) == 1
    np.testing.assert_array_equal(late._starts, opened(source, 16)._starts)


def test_every_pair_of_a_pass_once_an_epoch(write_sentences):
    layout = opened(write_sentences({"train": corpus(0, 200)}), 16, duplicates=3)
    order = layouts.Order(layout, 300, 0, "a")
    items = [order.item(k) for k in range(2 * order.num_items)]
    bounds = [*layout._passes, *(order.num_items + p for p in layout._passes[1:])]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        begin = layout._passes[number % 3]
        assert sorted(items[first:end]) == list(range(begin, begin + end - first))
        windows = layout._starts[items[first:end]] // 300
        assert (np.diff(windows) != 0).sum() == len(set(windows.tolist())) - 1
    assert items[: order.num_items] != items[order.num_items :]


def unmasked(example):
    """A row's tokens before masking."""
    tokens = example["tokens"].copy()
    real = example["target_weights"] > 0
    tokens[example["target_positions"][real]] = example["targets"][real]
    return tokens


def test_example_k_does_not_depend_on_earlier_reads(write_sentences, paired):
    for name in "ab":
        write_sentences({"train": corpus(ord(name), 60)}, name)
    phases = (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, length=32, batch_size=3))
    run = paired("ab", {"mixture": {"a": 0.3, "b": 0.7}}, {"phases": phases})
    examples = list(map(open_reader(run).example, range(175)))
    assert [len(e["tokens"]) for e in examples] == [16] * 100 + [32] * 75
    other = open_reader(run)
    for k in np.random.default_rng(0).permutation(175):
        np.testing.assert_equal(other.example(int(k)), examples[k])
    batch = next(other.batches(30))
    assert batch["pair_label"].tolist() == [int(e["pair_label"]) for e in examples[115:118]]


def test_as_many_fixed_masks_as_passes_repeat_each_epoch(write_sentences, paired):
    """Corresponds to `--config.objective.duplicates=10` for BERT's ten passes; otherwise only the pairs repeat."""
    write_sentences({"train": corpus(0, 30)})
    for objective, is_repeated in ((objectives.MaskedLM(duplicates=3), True), (MASKED, False)):
        reader = open_reader(paired("a", masked=objective))
        num = reader._segments[0].orders["a"].num_items  # Of all passes.
        rows = [tuple(np.concatenate([*reader.example(k).values()], axis=None)) for k in range(2 * num)]
        first, second = set(rows[:num]), set(rows[num:])
        assert len(first) > 100
        assert first == second if is_repeated else len(first & second) < 0.1 * len(first)


def test_a_longer_phase_continues_where_the_shorter_one_stopped(write_sentences, paired):
    """At most the window at the border is read at both lengths."""
    source = write_sentences({"train": corpus(0, 400)})
    per_epoch = [opened(source, n, seed=3, duplicates=3).num_rows for n in (16, 64)]
    steps = per_epoch[0] // 2 // 4
    left = per_epoch[1] - round(4 * steps / per_epoch[0] * per_epoch[1])
    total = steps + left // 4
    phases = (config.PhaseConfig(until=steps / total), config.PhaseConfig(until=1.0, length=64))
    reader = open_reader(paired("a", {"window_tokens": 500}, {"phases": phases, "steps": total}))
    windows = [(unmasked(reader.example(k))[1] - FIRST) // 500 for k in range(4 * total)]
    before, after = set(windows[: 4 * steps]), set(windows[4 * steps :])
    assert len(before & after) <= 2 < len(before) and len(before | after) >= source.splits["train"].num_tokens // 500


def test_validation_is_the_first_pass_in_order(write_sentences, paired):
    source = write_sentences({"train": corpus(0, 9), "validation": [[1] * 30] * 11})
    reader = open_reader(paired("a"))
    assert reader.num_rows("validation") == {"a": opened(source, 16, "validation", seed=3, duplicates=3).num_rows}
    text = []
    for row in itertools.chain(*map(unstack, reader.in_order("validation", 4))):
        tokens, end = unmasked(row), int(row["mask"].sum()) - 1
        part = row["token_types"][:end] <= (0 if row["pair_label"] else 1)
        text += [t for t in tokens[:end][part].tolist() if t >= FIRST]
    assert text == list(range(FIRST, FIRST + 330))


def test_bad_configs_are_rejected(make_run, paired):
    run = paired("a")
    causal = make_run("a", vocab_size=VOCAB_SIZE).model
    two_classes = "need a model with a pooler of two classes"
    for message, sections in (
        ("trains models of kind 'decoder', but config.model.kind is 'encoder'", {"objective": objectives.Causal()}),
        ("'causal' adds its own special tokens", {"objective": objectives.Causal(), "model": causal}),
        (two_classes, {"model": {"pooler": models.NoHead()}}),
        (two_classes, {"model": {"pooler": models.Pooler(classes=0)}}),
        ("set config.vocabulary.cls and", {"vocabulary": {"sep": None}}),
        ("config.data.length is 4: sentence pairs need", {"data": {"length": 4}}),
        (
            r"layout\.duplicates is 0: must be between 1",
            {"data": {"layout": config.SentencePairs(duplicates=0)}},
        ),
        (
            r"short_probability is 1.5: must be between",
            {"data": {"layout": config.SentencePairs(short_probability=1.5)}},
        ),
    ):
        assert_rejected(message, run, **sections)
