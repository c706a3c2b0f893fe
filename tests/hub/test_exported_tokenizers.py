"""Saved tokenizers produce plm_jax's ids in `tokenizers`, for each family and each kind of vocabulary.

Further pairs are in test_auto_tokenizers.py, which needs transformers.
"""

import io
import json
import random
from dataclasses import replace

import jax
import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.configs import demo
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import exported, training
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats
from tests.support import exports

# Each family and each kind at least once.
PAIRS = [
    (family, exports.KINDS[i % len(exports.KINDS)]) for i, family in enumerate([*exports.FAMILIES, "gpt2", "bart"])
] + [("albert", "folded"), ("albert", "lowercased"), ("t5", "folded")]


def save(pretrained, path, run=None):
    checkpoint_formats.save(str(path), replace(pretrained, run=run), "huggingface")
    return tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_ids_equal_and_survive_loading(family, kind, vocabulary_folder, tmp_path):
    model, lines = exports.pretrained(family, kind, vocabulary_folder), exports.lines(300)
    saved = save(model, tmp_path / "saved")
    want = exports.encode(kind, vocabulary_folder, lines)
    assert [each.ids for each in saved.encode_batch(lines, add_special_tokens=False)] == want
    again = plm_jax.load(tmp_path / "saved")
    assert again._pretrained.vocabulary.partition(":")[0] == model.vocabulary.partition(":")[0]
    assert [[int(i) for i in again.vocabulary.encode(line)] for line in lines] == want
    special = {name: i for name, i in model.special_ids.items() if name in again.special_ids}
    assert {name: again.special_ids[name] for name in special} == special
    assert {name for name in model.special_ids if name.startswith(("bos", "eos", "pad", "cls", "mask"))} <= {*special}
    # Again after loading and saving.
    assert save(again._pretrained, tmp_path / "again").to_str() == saved.to_str()


@pytest.mark.parametrize("kind", exports.KINDS)
def test_ids_of_random_texts_equal(kind, vocabulary_folder):
    """Covers special tokens that the library encodes as text. With normalization, it differs from SentencePiece for
    characters with several combining marks.
    """
    model = exports.pretrained("glm_original", kind, vocabulary_folder)
    loaded = vocabularies.load(exports.section(model.vocabulary, exports.vocabulary(kind, vocabulary_folder)[2]))
    normalizes = kind in ("nfkc", "lowercased", "own_sentinels")
    excluded = ("Cs", "Mn", "Me", "Mc", "Cf") if normalizes else ("Cs",)
    letters = st.characters(exclude_categories=excluded)
    if kind == "folded":  # Python and the library may have different versions of Unicode.
        letters = st.characters(exclude_categories=("Cs", "Cn"), max_codepoint=0x2FFF)
    special = st.sampled_from(
        ["[MASK]", "</s>", "<0x41>", "<extra_id_0>", "[CLS]", "<|startofpiece|>", "  ", " a", "\n"]
    )
    tree, _ = exported.export(loaded, {}, None)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tree))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(st.text(letters, max_size=12), special), max_size=6).map("".join))
    def holds(text):
        tokenizer.encode_special_tokens = True
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == [int(i) for i in loaded.encode(text)]

    holds()


def template(tokenizer, *texts):
    encoded = tokenizer.encode(*texts)
    return encoded.ids, encoded.type_ids


@pytest.mark.parametrize(
    ("family", "single", "pair", "types"),
    [
        ("bert", "cls A sep", "cls A sep B sep", True),
        ("distilbert", "cls A sep", "cls A sep B sep", False),
        ("xlm", "cls A sep", "cls A sep B sep", False),
        ("xlnet", "A sep cls", "A sep B sep cls", True),
        ("roberta", "bos A eos", "bos A eos eos B eos", False),
        ("bart", "bos A eos", "bos A eos eos B eos", False),
        ("t5", "A eos", "A eos B eos", False),
        ("llama", "bos A", "bos A bos B", False),
        ("gpt2", "A", "A B", False),
        ("glm_original", "cls A eos", "cls A eos B eos", False),
        ("chatglm_6b", "A", "A B", False),
    ],
)
def test_texts_are_framed_as_in_training(family, single, pair, types, vocabulary_folder, tmp_path):
    tokenizer = save(exports.pretrained(family, "unigram", vocabulary_folder), tmp_path)
    texts = {"A": "the state", "B": "of the Union"}
    text_ids = {name: exports.encode("unigram", vocabulary_folder, (text,))[0] for name, text in texts.items()}

    def ids(parts):
        return [i for name in parts.split() for i in text_ids.get(name, [exports.IDS.get(name)])]

    assert template(tokenizer, texts["A"])[0] == ids(single)
    got, kinds = template(tokenizer, texts["A"], texts["B"])
    assert got == ids(pair)
    second, last = len(text_ids["B"]) + 1, [2] * (family == "xlnet")
    first = len(got) - second - len(last)
    assert kinds == ([0] * first + [1] * second + last if types else [0] * len(got))
    if family != "glm_original":  # Its prompts always have a blank, and those of ChatGLM-6B have one at the end.
        lm = plm_jax.load(tmp_path)
        if family not in ("bert", "distilbert", "roberta", "xlm", "xlnet"):
            end = [lm.special_ids["gmask_token_id"]] if family == "chatglm_6b" else []
            assert lm.strategy.encode(texts["A"]) == ids(single) + end


@pytest.mark.parametrize("kind", ["unigram", "piece_bpe", "nfkc", "cased", "roberta"])
@pytest.mark.parametrize("text", ["The [MASK] of the Union", "[MASK] is strong.", "The state [MASK], and so on"])
def test_prompt_with_blank_has_equal_ids(kind, text, vocabulary_folder, tmp_path):
    tokenizer = save(exports.pretrained("bert", kind, vocabulary_folder), tmp_path)
    lm = plm_jax.load(tmp_path)
    mask = tokenizer.id_to_token(lm.special_ids["mask_token_id"])
    assert template(tokenizer, text.replace("[MASK]", mask))[0] == lm.strategy.encode(text)


def test_sentinels_have_ids_of_t5(vocabulary_folder, tmp_path):
    tokenizer = save(exports.pretrained("t5", "unigram", vocabulary_folder), tmp_path)
    size, lm = exports.SIZE + exports.SENTINELS, plm_jax.load(tmp_path)
    assert [tokenizer.token_to_id(f"<extra_id_{k}>") for k in range(exports.SENTINELS)] == [
        size - 1 - k for k in range(exports.SENTINELS)
    ]
    text = "We the <extra_id_0> of the United <extra_id_1>."
    assert template(tokenizer, text)[0] == lm.strategy.encode(text)
    assert lm.special_ids["sentinels"] == exports.SENTINELS


@pytest.mark.parametrize("name", ["bert", "t5", "glm"])
def test_demo_models_have_equal_ids(name, tmp_path):
    run = demo.RUNS[name]()
    section = replace(run.vocabulary, spec=f"sentencepiece:{tmp_path}/v.model", train_size=1024)
    training.train(exports.corpus("sotu", 1500), section)
    run = replace(run, vocabulary=section)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), registry.shapes(run.model))
    ids = {f"{name}_token_id": getattr(section, name) for name in config.SPECIALS if name != "unk"}
    ids |= {"sentinels": section.sentinels or None}
    model = Pretrained(run.model, params, {k: v for k, v in ids.items() if v is not None}, section.spec)
    tokenizer = save(model, tmp_path / "saved", run)
    lines, ours = exports.lines(300), vocabularies.load(section)
    want = [[int(i) for i in ours.encode(line)] for line in lines]
    assert [each.ids for each in tokenizer.encode_batch(lines, add_special_tokens=False)] == want
    again = plm_jax.load(tmp_path / "saved")
    assert [[int(i) for i in again.vocabulary.encode(line)] for line in lines] == want
    described = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    for special in ("pad", "bos", "eos", "unk", "cls", "sep", "mask"):
        token = described.get(f"{special}_token")
        assert (token and tokenizer.token_to_id(token)) == getattr(section, special)


def test_unsupported_vocabulary_is_rejected_before_writing(vocabulary_folder, tmp_path):
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(exports.texts()),
        model_writer=file,
        vocab_size=300,
        model_type="word",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "words.model").write_bytes(file.getvalue())
    model = exports.pretrained("gpt2", "unigram", vocabulary_folder)
    refused = replace(model, vocabulary=f"sentencepiece:{tmp_path}/words.model")
    with pytest.raises(UserError, match=r"a model of words or characters, .* save in format plm_jax"):
        save(refused, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    checkpoint_formats.save(str(tmp_path / "ours"), refused, "plm_jax")


def test_differing_ids_are_rejected_with_the_text(vocabulary_folder, monkeypatch, tmp_path):
    """Simulates a vocabulary with a rule that `tokenizers` lacks."""
    model = exports.pretrained("gpt2", "unigram", vocabulary_folder)

    def lowercased(vocabulary):
        tree, tokens, ids = exported._sentencepiece(vocabulary)
        tree["normalizer"]["normalizers"].insert(0, {"type": "Lowercase"})
        return tree, tokens, ids

    monkeypatch.setitem(exported._BUILDERS, "sentencepiece", lowercased)
    with pytest.raises(UserError, match=r"first for .The state of the Union.*: save in format plm_jax"):
        save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_special_id_of_text_is_no_special_token(vocabulary_folder, tmp_path):
    """Some fine-tuned GPT-2s use `!`, token 0, for padding; it remains a token of text."""
    model = exports.pretrained("gpt2", "roberta", vocabulary_folder)
    dot = exports.encode("roberta", vocabulary_folder, (".",))[0][0]
    model = replace(model, special_ids=model.special_ids | {"pad_token_id": dot})
    save(model, tmp_path / "saved")
    assert "pad_token" not in json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    framed = replace(exports.pretrained("t5", "roberta", vocabulary_folder), special_ids={"eos_token_id": dot})
    with pytest.raises(UserError, match=f"id {dot}, which is put around texts, is not a special token"):
        save(framed, tmp_path / "framed")


def test_unigram_ties_are_broken_equally(vocabulary_folder):
    """Sums of the scores are exact in SentencePiece's float32, so that rounding never breaks ties."""
    spec, _, _ = exports.vocabulary("unigram", vocabulary_folder)
    rng = random.Random(0)
    pieces = sentencepiece.SentencePieceProcessor(model_file=spec.partition(":")[2])
    assert all(pieces.get_score(i) * 1024 % 1 == 0 for i in range(len(pieces)))
    tree, _ = exported.export(vocabularies.load(spec), {}, None)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tree))
    prefixes = exports.corpus("sotu", 1500)
    texts = [
        rng.choice(prefixes) + "".join(rng.choices(["0", "00", ",000", "a", "an", "in", "s"], k=rng.randrange(2, 12)))
        for _ in range(3000)
    ]
    got = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert got == pieces.encode(texts)


@pytest.mark.parametrize(
    ("kind", "described", "lower"),
    [
        ("folded", {}, True),
        ("unigram", {}, False),
        ("unigram", {"do_lower_case": True, "keep_accents": False}, True),
        ("folded", {"do_lower_case": False, "keep_accents": True}, False),
    ],
)
def test_albert_normalizes_as_configured(kind, described, lower, vocabulary_folder, tmp_path):
    save(exports.pretrained("albert", kind, vocabulary_folder), tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(described))
    lm = plm_jax.load(tmp_path / "theirs")
    encode = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "theirs" / "spiece.model")).encode
    want = encode("elite state" if lower else "Élite State")
    assert list(lm.vocabulary.encode("Élite State")) == want
    lm.save(tmp_path / "ours", format="plm_jax")
    assert list(plm_jax.load(tmp_path / "ours").vocabulary.encode("Élite State")) == want


def test_ambiguous_accents_are_reported(vocabulary_folder, tmp_path):
    save(exports.pretrained("albert", "folded", vocabulary_folder), tmp_path)
    described, path = json.loads((tmp_path / "tokenizer_config.json").read_text()), tmp_path / "tokenizer_config.json"
    assert (described["do_lower_case"], described["keep_accents"]) == (True, False)
    path.write_text(json.dumps(described | {"keep_accents": True}))
    with pytest.raises(UserError, match="has keep_accents with do_lower_case: set keep_accents to false"):
        plm_jax.load(tmp_path)
    path.write_text(json.dumps(described | {"do_lower_case": False}))
    with pytest.warns(UserWarning, match="neither do_lower_case nor keep_accents"):
        plm_jax.load(tmp_path)


def test_run_with_normalized_text_is_saved_as_albert(vocabulary_folder, tmp_path):
    model = exports.pretrained("albert", "folded", vocabulary_folder)
    section = config.VocabularyConfig(model.vocabulary, lowercase=True, **exports.IDS)
    run = replace(demo.bert(), model=model.model, vocabulary=section)
    of_run = replace(model, special_ids={i: k for i, k in model.special_ids.items() if i != "lowercase"})
    tokenizer = save(of_run, tmp_path, run)
    (want,) = exports.encode("folded", vocabulary_folder, ("The State",))
    assert tokenizer.encode("The State", add_special_tokens=False).ids == want
    assert list(plm_jax.load(tmp_path).vocabulary.encode("The State")) == want
