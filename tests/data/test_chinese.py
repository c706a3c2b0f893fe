"""Chinese from text to masked words: poems that come with the package, through each kind of vocabulary."""

import gzip
import itertools
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plm_jax
from plm_jax import config, objectives
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.prepare import reading, segmenters
from plm_jax.data.vocabularies import sentences
from plm_jax.runs import preparation
from tests.support.data import assert_rejected, changed, open_reader

POEMS = pathlib.Path(plm_jax.__file__).parent / "data/corpora/tang_poems_zh.jsonl.gz"
NUMBER = 200
BERT = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCABULARIES = {
    "wordpiece": {"spec": "wordpiece:vocab.txt", "train_size": 2200, **BERT},
    "sentencepiece": {"spec": "sentencepiece:v.model", "train_size": 2900, **BERT},
    "bpe": {"spec": "bpe:vocab.json,merges.txt", "train_size": 800, **BERT},
}
SEGMENTER = "tests.data.test_chinese:halves"
WORDS = objectives.MaskedLM(whole_words=1, mask_share=1.0, random_share=0.0)
LAYOUTS = {"blocks": config.Blocks(), "pairs": config.SentencePairs(), "whole_sentences": config.FullSentences()}


def halves(text):
    """Words of two characters, marks by themselves: 四海一|. → 四海, 一."""
    parts = "".join(c if c.isalpha() else f"\n{c}\n" for c in text).split("\n")
    return [part[i : i + 2] for part in parts for i in range(0, len(part), 2)]


def everything(text):
    return [text]


def poems():
    """Without their titles, behind which there is white space, of which WordPiece tells nothing."""
    with gzip.open(POEMS, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"].partition("\n\n")[2] for line in itertools.islice(file, NUMBER)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """`prepared(name, make_run)` returns a run over a cache of poems with a segmenter, in a kind of vocabulary."""
    folder = tmp_path_factory.mktemp("poems")
    with gzip.open(folder / "poems.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in poems())
    runs = {}
    users.trust([SEGMENTER.partition(":")[0]])

    def make(name, make_run):
        if name not in runs:
            fields = VOCABULARIES[name]
            spec = vocabularies.within(fields["spec"], str(folder / name))
            data = {
                "cache_dir": str(folder / name),
                "length": 32,
                "sources": {"poems": config.TextTable(str(folder / "poems.jsonl.gz"))},
                "segmenters": {"poems": SEGMENTER},
                "validation_fraction": 0.1,
            }
            run = make_run("x", vocab_size=fields["train_size"], objective=WORDS, data=data)
            runs[name] = changed(run, vocabulary=config.VocabularyConfig(**fields | {"spec": spec}))
            preparation.prepare(runs[name], show_progress=False)
        return runs[name]

    return make


@pytest.fixture(params=VOCABULARIES)
def run(request, prepared, make_run):
    return prepared(request.param, make_run)


def documents(run):
    """Yields the tokens, sentence starts and word starts of each stored document."""
    for split in cache.open_source(run.data.cache_dir, "poems").splits.values():
        for a, b in itertools.pairwise(split.documents):
            yield (
                split.tokens(a, b),
                split.sentences[(split.sentences >= a) & (split.sentences < b)] - a,
                split.starts("word_starts", a, b),
            )


def test_poems_are_stored_with_their_sentences_and_words(run):
    vocabulary = vocabularies.load(run.vocabulary)
    texts, unknown = {}, 0
    for text in poems():
        texts[tuple(vocabulary.encode(text))] = text
    for tokens, sentence_starts, word_starts in documents(run):
        text = texts.pop(tuple(tokens.tolist()))
        unknown += np.count_nonzero(tokens == vocabulary.unk_id)

        def parts(starts, tokens=tokens):
            ends = [*starts[1:], len(tokens)]
            return [vocabulary.decode(tokens[a:b]).replace(" ", "") for a, b in zip(starts, ends, strict=True)]

        if "[UNK]" in vocabulary.decode(tokens):
            continue
        if not isinstance(vocabulary, vocabularies.SentencePiece):  # Whose pieces may reach over an end.
            assert parts(sentence_starts) == sentences.split(text)
        if isinstance(vocabulary, vocabularies.WordPiece):
            assert parts(word_starts) == list(filter(None, halves(text)))
    assert not texts and unknown < 300


def test_wordpiece_has_single_characters_and_bytes_per_token_are_printed(prepared, make_run, capsys, tmp_path):
    run = changed(prepared("wordpiece", make_run), data={"cache_dir": str(tmp_path)})
    preparation.prepare(run, show_progress=False)
    splits = cache.open_source(str(tmp_path), "poems").splits.values()
    ratio = sum(split.num_bytes for split in splits) / sum(split.num_tokens for split in splits)
    assert f" {ratio:.2f} bytes per token" in capsys.readouterr().out and 2.9 < ratio < 3.1
    assert all(len(token) == 1 for token in vocabularies.load(run.vocabulary).table["tokens"][5:])


def words_of(example, vocabulary):
    """Returns the positions of each word of a row, and the words between special tokens."""
    starts = np.zeros(len(example["tokens"]), np.bool_)
    starts[example["word_starts"]] = True
    special = np.isin(example["tokens"], [BERT["cls"], BERT["sep"], BERT["pad"]])
    begins = starts | special | np.insert(special[:-1], 0, True)
    spans = np.split(np.arange(len(begins)), np.flatnonzero(begins)[1:])
    stretches = itertools.groupby(spans, lambda span: bool(special[span[0]]))
    texts = [
        [vocabulary.decode(example["tokens"][span]).replace(" ", "") for span in of]
        for is_special, of in stretches
        if not is_special
    ]
    return [span for span in spans if not special[span[0]]], texts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_of_the_segmenter_are_masked_together(prepared, make_run, layout):
    run = changed(prepared("wordpiece", make_run), data={"layout": LAYOUTS[layout]})
    vocabulary, opened = vocabularies.load(run.vocabulary), open_reader(run)
    assert vocabulary.word_initial[vocabulary.encode(poems()[0])].all(), "only the segmenter joins characters"
    known = "".join("|" + "|".join(filter(None, halves(text))) for text in poems()) + "|"
    rows, several = opened.rows("train", "poems", run.data.length), 0
    for item in range(40):
        row = rows.example(item, np.random.default_rng(item))
        spans, stretches = words_of(row, vocabulary)
        for words in stretches:  # The first and the last may be cut.
            if len(words) > 2 and "[UNK]" not in "".join(words):
                assert "|" + "|".join(words[1:-1]) + "|" in known
        noised = opened.objective(row, np.random.default_rng(item))
        masked = set(noised["target_positions"][noised["target_weights"] > 0].tolist())
        for span in map(set, map(np.ndarray.tolist, spans)):
            assert span <= masked or not span & masked
            several += len(span) > 1 and span <= masked
    assert several > 30


def test_without_a_segmenter_each_piece_of_sentencepiece_is_a_word(prepared, make_run, tmp_path):
    run = unsegmented(prepared("sentencepiece", make_run), tmp_path)
    sizes, left_out = word_sizes(run)
    assert np.mean(sizes) < 1.1 and left_out == 0  # Where ▁ alone began words: 20.3 pieces and 98 %.
    assert open_reader(run).notes() == []


def test_words_that_are_too_long_to_be_masked_are_reported(prepared, make_run, tmp_path):
    """To byte-level BPE a line without spaces is one word."""
    run = unsegmented(prepared("bpe", make_run), tmp_path)
    opened = open_reader(run)
    (note,) = opened.notes()
    sizes, left_out = word_sizes(run)
    assert np.mean(sizes) > 10 and left_out > 0.5
    assert note.startswith(f"{left_out:.1%} of the tokens in rows of 32 are never masked") and "segmenters" in note
    never = sum(not opened.example(k)["target_weights"].any() for k in range(100))
    assert never > 50
    assert open_reader(changed(run, objective=objectives.MaskedLM())).notes() == []


def unsegmented(run, folder):
    """Returns the run over another cache, whose words are those of the vocabulary."""
    data = {"cache_dir": str(folder), "segmenters": {}}
    run = changed(run, data=data, train={"batch_size": 4, "steps": 50})
    preparation.prepare(run, show_progress=False)
    return run


def word_sizes(run):
    """The words' sizes in the run's 200 rows, and the share of tokens in words of more than 5, 15 % of a row of 32."""
    opened, sizes = open_reader(run), []
    for k in range(200):
        made = opened.example(k)
        tokens, real = made["tokens"].copy(), made["target_weights"] > 0
        tokens[made["target_positions"][real]] = made["targets"][real]
        begins = opened.sources["poems"].word_initial[tokens]
        is_text = ~np.isin(tokens, list(BERT.values())[2:])
        size = 0
        for text, begin in zip(is_text.tolist(), begins.tolist(), strict=True):
            if size and (begin or not text):
                sizes.append(size)
                size = 0
            size += text
        sizes += [size] if size else []
    sizes = np.array(sizes)
    return sizes, sizes[sizes > 5].sum() / sizes.sum()


def test_the_cache_has_words_only_where_there_is_a_segmenter(prepared, make_run, tmp_path):
    run = prepared("bpe", make_run)
    plain = unsegmented(run, tmp_path)
    source = cache.open_source(str(tmp_path), "poems")
    assert source.segmenter is None and not source.splits["train"].has("word_starts")
    assert not list(tmp_path.glob("*/*/word_starts.npy"))
    vocabulary = vocabularies.load(run.vocabulary)
    assert reading.identity(plain.data, "poems", vocabulary) != reading.identity(run.data, "poems", vocabulary)
    open_reader(plain)
    for asked, other in ((run, plain), (plain, run)):
        with pytest.raises(UserError, match=r"segmenters has .* for 'poems', but the cache was made with"):
            open_reader(changed(asked, data={"cache_dir": other.data.cache_dir}))
    assert_rejected("segmenters names 'poem': did you mean 'poems'", run, data={"segmenters": {"poem": SEGMENTER}})


@given(words=st.lists(st.text("ab中文。 ", min_size=1, max_size=3), max_size=8))
def test_cuts_join_to_the_text(words):
    text = "".join(words)
    cuts = segmenters.boundaries(text, [word.strip() for word in words], "x")
    parts = [text[a:b].strip() for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert [word for word in parts if word] == [word.strip() for word in words if word.strip()]


def test_bad_segmenters_are_rejected():
    users.trust(["tests.data.test_chinese", "nowhere.at_all", "json", ""])
    assert segmenters.load(SEGMENTER)("白日依山盡。 黃河") == [2, 4, 5, 6]
    assert segmenters.load("tests.data.test_chinese:everything")(" 白日 ") == []
    for name in ("nowhere.at_all:cut", "json:nothing", "json", ""):
        with pytest.raises(UserError, match="write a Python function as module:function"):
            segmenters.load(name)
    with pytest.raises(UserError, match="'json:__name__', which is not a function"):
        segmenters.load("json:__name__")
    for words, message in (
        (["黃河"], "returns '黃河' where the text continues '白日依山盡'"),
        (["白日"], "the segmenter x omits '依山盡'"),
        ([("白日", "n")], r"the segmenter x returns .*: return a list of strings"),
        (None, r"the segmenter x returns .*: return a list of strings"),
    ):
        with pytest.raises(UserError, match=message):
            segmenters.boundaries("白日依山盡", words, "x")
