"""seqio tasks give the trainer's rows: of every objective, and of every layout."""

import itertools
import os

import numpy as np
import pytest
import seqio

from plm_jax import config, models, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import adapters, reader, vocabularies
from plm_jax.data.layouts import noising
from plm_jax.data.tensorflow_side import tf
from plm_jax.data.vocabularies import words
from tests.support import caches
from tests.support.data import changed

IDS = {"pad": 80, "bos": 81, "eos": 82, "unk": 83, "cls": 84, "sep": 85, "mask": 86, "sop": 87, "eop": 88}
IDS |= {"smask": 89, "gmask": 90, "dblock": 91, "sentinels": 8}
SIZE, LENGTH, SPELT = 100, 18, 5
# As the cache of these tests has it.
WORD_INITIAL = np.arange(SIZE) % 2 == 0
BLOCKS, APART = config.Blocks(), config.Blocks(attend_across_documents=False)
MASKED = objectives.MaskedLM(rate=0.3)
CASES = {
    "causal": (objectives.Causal(), BLOCKS),
    "causal_apart": (objectives.Causal(), APART),
    "masked_lm": (MASKED, BLOCKS),
    "static_masks": (objectives.MaskedLM(rate=0.3, duplicates=2), BLOCKS),
    "ngrams": (objectives.MaskedLM(rate=0.3, whole_words=3), BLOCKS),
    "span_masked_lm": (objectives.SpanMaskedLM(rate=0.3), BLOCKS),
    "replaced_token": (objectives.ReplacedToken(), BLOCKS),
    "translation_lm": (objectives.TranslationLM(rate=0.3), BLOCKS),
    "span_corruption": (objectives.SpanCorruption(noise_density=0.4), BLOCKS),
    "replace_spans": (objectives.ReplaceSpans(), BLOCKS),
    "drop_tokens": (objectives.DropTokens(), BLOCKS),
    "mask_tokens": (objectives.MaskTokens(), BLOCKS),
    "deshuffling": (objectives.Deshuffling(), BLOCKS),
    "prefix_lm": (objectives.PrefixLM(), BLOCKS),
    "full_lm": (objectives.FullLM(), BLOCKS),
    "decoder_prefix_lm": (objectives.DecoderPrefixLM(), BLOCKS),
    "decoder_span_corruption": (objectives.DecoderTextToText(objectives.SpanCorruption(0.4), prefix=True), BLOCKS),
    "ul2": (objectives.UL2(), BLOCKS),
    "denoising": (objectives.Denoising(insert=0.1, rotate=0.5), BLOCKS),
    "blank_infilling": (objectives.BlankInfilling(sentence_rate=0.4, document_rate=0.3), BLOCKS),
    "next_sentence": (MASKED, config.SentencePairs()),
    "sentence_order": (objectives.MaskedLM(rate=0.3, whole_words=3), config.SentencePairs(task="sentence_order")),
    "single_sentences": (MASKED, config.SentencePairs(parts="sentences")),
    "full_sentences": (MASKED, config.FullSentences()),
    "doc_sentences": (MASKED, config.FullSentences(cross_documents=False)),
    "streams": (objectives.BidirectionalLM(), config.Streams()),
    "pair_streams": (objectives.PermutationLM(num_predict=6), config.PairStreams()),
}


def documents(seed=0, number=25):
    """(tokens, sentence starts) of documents of 1 to 40 tokens."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 41, number)
    return [
        (rng.integers(0, 80, n).astype(np.int32), np.unique(np.append(rng.integers(0, n, n // 6), 0)).astype(np.int32))
        for n in sizes
    ]


@pytest.fixture
def opened(tmp_path, make_run):
    """`opened(objective, layout)` returns the trainer's reader over the documents; each token is a word."""

    def opened(objective, layout):
        spelling = tmp_path / "vocabulary" / "words.txt"
        spelling.parent.mkdir()
        spelling.write_text("".join(f"w{i}\n" for i in range(SIZE)))
        vocabulary = {"kind": "words", "files": {"words.txt": storage.sha256(str(spelling))}, **IDS}
        caches.write(tmp_path, "a", {"train": documents()}, SIZE, vocabulary, WORD_INITIAL)
        run = make_run("a", data={"length": LENGTH, "layout": layout}, train={"seed": 5}, objective=objective, **IDS)
        if isinstance(layout, config.Streams):
            embedding = models.CharacterCNNConfig(SIZE, 2, 2, ((1, 4),), max_characters=SPELT, highway_layers=1)
            run = changed(run, model=models.ElmoConfig(embedding=embedding))
        # The model of the run is not that of every objective.
        return reader.Reader(config.reader_config(changed(run, vocabulary={"spec": "words:words.txt"})))

    return opened


def read(objective, rows, layout=BLOCKS, with_sentences=True, **options):
    """The rows that a seqio task gives of documents in memory."""
    signature = dict.fromkeys(("targets", "sentence_starts")[: 1 + with_sentences], tf.TensorSpec([None], tf.int32))

    def dataset(split, shuffle_files):
        generate = lambda: (dict(zip(signature, row, strict=False)) for row in rows)  # noqa: E731
        return tf.data.Dataset.from_generator(generate, output_signature=signature)

    like = noising.blank(layout, LENGTH, objective, SPELT)
    vocabulary = seqio.PassThroughVocabulary(SIZE)
    seqio.TaskRegistry.remove("rows")
    task = seqio.TaskRegistry.add(
        "rows",
        source=seqio.FunctionDataSource(dataset, splits=["train"]),
        preprocessors=[adapters.preprocessor(objective, LENGTH, layout=layout, **options)],
        output_features={
            key: seqio.Feature(vocabulary, add_eos=False, dtype=tf.as_dtype(value.dtype), rank=value.ndim)
            for key, value in like.items()
        },
    )
    return list(task.get_dataset(sequence_length=None, split="train", shuffle=False).as_numpy_iterator())


@pytest.mark.parametrize("case", CASES)
def test_a_seqio_task_gives_the_readers_rows(opened, case):
    objective, layout = CASES[case]
    trainer = opened(objective, layout)
    spelling = words.characters([f"w{i}" for i in range(SIZE)], SPELT)
    options = {"seed": 5, "word_initial": WORD_INITIAL, "characters": spelling, "identity": "i"}
    rows = read(trainer.objective, documents(), layout, **options)
    expected = [{key: value[0] for key, value in batch.items()} for batch in trainer.in_order("train", 1)]
    assert len(rows) == len(expected) > 10
    for a, b in zip(rows, expected, strict=True):
        np.testing.assert_equal(a, b)


SPECIAL = objectives.Special(**{k: v for k, v in IDS.items() if k != "sentinels"}, vocab_size=SIZE)


def test_rows_are_made_of_groups_of_documents():
    """Makes rows of the first ten documents, then of the next; ignores empty ones; each group has separate noise."""
    objective, rows = objectives.BoundObjective(objectives.Causal(), SPECIAL), documents()
    empty = np.zeros(0, np.int32), np.zeros(0, np.int32)
    grouped = read(objective, [empty, *rows[:10], empty, *rows[10:]], num_documents=10)
    groups = [read(objective, rows[first : first + 10]) for first in (0, 10, 20)]
    np.testing.assert_equal(grouped, [row for group in groups for row in group])
    masked = objectives.BoundObjective(MASKED, SPECIAL)
    twice = read(masked, rows[:10] * 2, num_documents=10)
    first, second = twice[: len(twice) // 2], twice[len(twice) // 2 :]
    np.testing.assert_equal(first, read(masked, rows[:10]))
    assert any((a["target_positions"] != b["target_positions"]).any() for a, b in zip(first, second, strict=True))


def test_without_sentence_starts_a_document_is_one_sentence():
    objective = objectives.BoundObjective(objectives.Denoising(noise=objectives.denoising.NoNoise()), SPECIAL)
    documents = [(np.arange(1, 5, dtype=np.int32), None), (np.arange(5, 17, dtype=np.int32), None)]
    rows = read(objective, documents * 20, with_sentences=False, num_documents=2)
    text = np.arange(1, 17)
    expected = {(IDS["bos"], *order.tolist(), IDS["eos"]) for order in (text, np.roll(text, -4))}
    assert len(rows) == 20 and {tuple(row["tokens"].tolist()) for row in rows} == expected


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_sentences_of_any_vocabulary_are_permuted(kind):
    folder = os.path.join(os.path.dirname(vocabularies.__file__), os.pardir, "gpt2")
    files = "" if kind == "bytes" else f":{folder}/vocab.json,{folder}/merges.txt"
    vocabulary = vocabularies.load(kind + files)
    special = objectives.Special(pad=60_000, bos=60_001, eos=60_002)
    objective = objectives.get("denoising", special, noise=objectives.denoising.NoNoise())
    parts = "One two.", "\n\nThree, 4.5 ½!", " Four?"
    texts, orders = tf.data.Dataset.from_tensors({"text": "".join(parts)}).repeat(40), set()
    noise = adapters.preprocessor(objective, 40, num_documents=1)
    for row in noise(adapters.tokenize(vocabulary)(texts)).as_numpy_iterator():
        real, predicted = int(row["mask"].sum()) - 1, int(row["target_weights"].sum()) - 1
        assert vocabulary.decode(row["targets"][1:predicted]) == "".join(parts)
        orders.add(vocabulary.decode(row["tokens"][1:real]))
    assert orders == {"".join(order) for order in itertools.permutations(parts)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 0.7}, "need `token_counts`"),
        ({"mask_share": 0.0, "similar_share": 0.8, "whole_words": 1}, "need a table of similar words"),
    ],
)
def test_preprocessors_reject_missing_tables(settings, message):
    objective = objectives.get("masked_lm", objectives.Special(mask=86, vocab_size=SIZE), **settings)
    with pytest.raises(UserError, match=message):
        adapters.preprocessor(objective, LENGTH, word_initial=WORD_INITIAL)
