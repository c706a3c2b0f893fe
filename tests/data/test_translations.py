"""Rows of translation language modeling against rules written from the description of XLM."""

import dataclasses
import itertools

import numpy as np
import pytest

from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from tests.support import caches
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader, unstack

EOS, PAD, MASK, SIZE, LENGTH = 1, 2, 5, 1000, 24
TYPES = {"en": 4, "es": 1}
IDS = {"eos": EOS, "cls": EOS, "sep": EOS, "pad": PAD, "mask": MASK}


def xlm_row(x, y, length):
    """Returns `</s> x </s></s> y </s>` with positions that restart at y, and the language of each half."""
    while len(x) + len(y) > length - 4:  # The rule of this package: XLM's batches are as long as their longest pair.
        longer = x if len(x) > len(y) else y
        longer.pop()
    halves = [[EOS, *x, EOS], [EOS, *y, EOS]]
    positions = [position for half in halves for position in range(len(half))]
    languages = [TYPES[name] for name, half in zip(TYPES, halves, strict=True) for _ in half]
    return [*halves[0], *halves[1]], positions, languages


@pytest.fixture(scope="module")
def pairs():
    """20,000 pairs of texts, some too long for a row and some empty; no token is special."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 16, (20_000, 2))
    return [[rng.integers(10, SIZE, size).tolist() for size in of_pair] for of_pair in sizes]


@pytest.fixture(scope="module")
def written(tmp_path_factory, pairs):
    """Folder of the caches of the pairs and of two sources of text."""
    folder = tmp_path_factory.mktemp("pairs")
    records = [(list(itertools.chain(*pair)), [0, len(pair[0])]) for pair in pairs]
    splits, vocabulary = {"train": records[:100], "validation": records}, {**IDS, "bos": None, "unk": None}
    caches.write(folder, "pairs", splits, SIZE, vocabulary, texts=[*TYPES])
    for column, name in enumerate(TYPES):
        caches.write(folder, name, {"train": [(pair[column], [0]) for pair in pairs[:500]]}, SIZE, vocabulary)
    return folder


@pytest.fixture
def run(make_run, written):
    """Returns a run over the pairs and two sources of text; keywords change sections."""

    def make(**sections):
        run = make_run(["en", "es"], SIZE, objective=objectives.TranslationLM(), kind="encoder", **IDS)
        model = dataclasses.replace(run.model, pooler=models.NoHead())
        model = dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, token_types=5))
        sources = {"pairs": config.RecordTable("pairs.jsonl", tuple(TYPES))} | run.data.sources
        data = dataclasses.replace(
            run.data,
            cache_dir=str(written),
            length=LENGTH,
            sources=sources,
            token_types=TYPES,
            layout=config.Translations(),
            mixture={"pairs": 2.0, "en": 1.0, "es": 1.0},
        )
        return changed(dataclasses.replace(run, model=model, data=data), **sections)

    return make


def restored(row):
    """Returns the tokens of a row before masking."""
    tokens, real = row["tokens"].copy(), row["target_weights"] > 0
    tokens[row["target_positions"][real]] = row["targets"][real]
    return tokens


def test_rows_of_pairs_keep_the_laws_of_xlm(run, pairs):
    only_pairs = run(data={"sources": {"pairs": run().data.sources["pairs"]}, "mixture": {}})
    masked, special, replaced = [], [], []
    batches = open_reader(only_pairs).in_order("validation", 1000, name="pairs")
    rows = [row for batch in batches for row in unstack(batch)]
    assert len(rows) == len(pairs) == 20_000
    for row, (x, y) in zip(rows, pairs, strict=True):
        tokens, positions, languages = xlm_row(list(x), list(y), LENGTH)
        size = len(tokens)
        assert restored(row).tolist() == tokens + [PAD] * (LENGTH - size)
        assert row["mask"].tolist() == [1] * size + [0] * (LENGTH - size)
        assert row["positions"][:size].tolist() == positions
        assert row["token_types"][:size].tolist() == languages
        targets = row["target_positions"][row["target_weights"] > 0]
        is_target = np.isin(np.arange(size), targets)
        assert not is_target[0] and len(set(targets.tolist())) == len(targets) and max(targets, default=0) < size
        second = positions.index(0, 1)
        masked.append((is_target[1:second].sum(), second - 1, is_target[second:].sum(), size - second))
        special.append((is_target[second], is_target[second - 1], is_target[size - 1]))
        replaced += [(row["tokens"][target], tokens[target]) for target in targets]
    first, first_of, second, second_of = np.sum(masked, axis=0)
    # Both halves and each `</s>` but the first are predicted at the rate; 4.5 standard errors.
    shares = [(first / first_of, first_of), (second / second_of, second_of)]
    for share, number in [*shares, *((share, len(rows)) for share in np.mean(special, axis=0))]:
        assert abs(share - 0.15) < 4.5 * (0.15 * 0.85 / number) ** 0.5
    read, target = np.array(replaced).T
    for share, expected in ((np.mean(read == MASK), 0.8), (np.mean(read == target), 0.1)):
        assert abs(share - expected) < 4.5 * (expected * (1 - expected) / len(read)) ** 0.5


def test_texts_are_swapped_at_the_rate(run, pairs):
    swapped = run(data={"sources": {"pairs": run().data.sources["pairs"]}, "mixture": {}})
    swapped = changed(swapped, data={"layout": config.Translations(swapped=0.3)})
    batches, numbers = open_reader(swapped).in_order("validation", 1000, max_batches=3), []
    for row, (x, y) in zip(itertools.chain(*map(unstack, batches)), pairs[:3000], strict=True):
        languages = row["token_types"].tolist()
        numbers.append(languages[0] == TYPES["es"])
        first, second = (y, x) if numbers[-1] else (x, y)
        tokens, _, _ = xlm_row(list(first), list(second), LENGTH)
        assert restored(row)[: len(tokens)].tolist() == tokens and {languages[0], languages[-1]} == set(TYPES.values())
    assert abs(np.mean(numbers) - 0.3) < 4.5 * (0.21 / len(numbers)) ** 0.5


def test_a_mixture_has_rows_of_pairs_and_of_one_language(run):
    mixed = run()
    reader, names = open_reader(mixed), set()
    for step in range(5):
        batch = reader.batch(step, range(4))
        assert_like_blank(mixed, batch)
        for k, row in zip(reader.numbers(step), unstack(batch), strict=True):
            name, types, positions = reader.origin(k)[0], row["token_types"].tolist(), row["positions"].tolist()
            if name == "pairs":
                assert sorted(set(types)) == [1, 4] and positions.count(0) == 2
            else:
                assert types == [TYPES[name]] * LENGTH and positions == list(range(LENGTH))
                assert row["mask"].all() and 0 not in row["target_positions"][row["target_weights"] > 0]
            names.add(name)
    assert names == {"pairs", "en", "es"}


def test_rows_without_token_types_have_none(run):
    batch = open_reader(run(data={"token_types": {}})).batch(0, range(4))
    assert "token_types" not in batch and "positions" in batch


def test_each_document_is_found_in_its_row(run):
    reader = open_reader(run(data={"mixture": {"pairs": 1.0}, "sources": {"pairs": run().data.sources["pairs"]}}))
    (k,) = itertools.islice(reader.examples_with("pairs", 7, 25), 1)
    assert reader.origin(k) == ("pairs", [7])


@pytest.mark.parametrize(
    ("message", "sections"),
    [
        (
            "needs two texts, and source 'pairs' has en:",
            {"data": {"sources": {"pairs": config.RecordTable("p", ("en",))}}},
        ),
        (
            "objective 'classification' does not read config.data.layout 'translations'",
            {"objective": objectives.Classification()},
        ),
        ("token_types does not name 'es'", {"data": {"token_types": {"en": 0}}}),
        ("translations need special ids", {"vocabulary": {"sep": None}}),
        ("length is 5: translations need at least 6", {"data": {"length": 5}}),
        (
            "rows of config.data.layout.text 'blocks' do not have the arrays",
            {"data": {"layout": config.Translations(text=config.Blocks(attend_across_documents=False))}},
        ),
    ],
)
def test_what_does_not_fit_is_rejected(message, sections, run):
    if "sources" in sections.get("data", {}):
        sections["data"]["mixture"] = {}
    assert_rejected(message, run(), **sections)


def test_segmenters_of_records_are_rejected(run):
    with pytest.raises(UserError, match="segmenters names 'pairs', a source of records"):
        run(data={"segmenters": {"pairs": "jieba:lcut"}})


def test_records_and_text_need_a_mixture(run):
    assert_rejected(
        "source 'pairs' has records and other sources have text.*set config.data.mixture", run(data={"mixture": {}})
    )
