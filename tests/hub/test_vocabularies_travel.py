"""Vocabularies of transformers' models are loaded and saved, and transformers' tokenizers read them."""

import io
import json
import warnings

import numpy as np
import pytest
import sentencepiece
import seqio
from tokenizers.pre_tokenizers import ByteLevel

import plm_jax
from plm_jax.data import vocabularies
from plm_jax.runs import checkpoint_formats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import moods, reference, tiny  # noqa: E402

TEXT = "the state of the union is strong and we the people stand"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "state", "##ly"]


def pieces(vocab_size, text=TEXT, **options):
    """Returns the bytes of a SentencePiece model trained on a sentence."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 30), model_writer=model, vocab_size=vocab_size, minloglevel=2, **options
    )
    return model.getvalue()


def travel(folder, architecture, files, **fields):
    """Saves a model with transformers and again with plm_jax. Returns plm_jax's model and transformers' tokenizer."""
    reference.make(architecture, **fields).save_pretrained(folder / "theirs")
    for name, content in files.items():
        (folder / "theirs" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    lm = plm_jax.load(folder / "theirs")
    lm.save(folder / "ours")
    return lm, transformers.AutoTokenizer.from_pretrained(folder / "ours")


def lines(words):
    return "\n".join(words) + "\n"


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("words", [["é", "e", "the"], ["é", "e", "the", "The"]])
def test_case_follows_tokenizer_config(words, lower, tmp_path):
    """Independent of the letters in vocab.txt."""
    tokenizer_config = json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": lower})
    travel(tmp_path, "BertModel", {"vocab.txt": lines([*WORDS[:5], *words]), "tokenizer_config.json": tokenizer_config})
    for path in (tmp_path / "theirs", tmp_path / "ours"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        want = tokenizer("The é É", add_special_tokens=False).input_ids
        assert want == [7, 6, 6] if lower else want[1:] == [5, 1]
        assert plm_jax.load(path).vocabulary.encode("The é É") == want


@pytest.mark.parametrize(
    "fields",
    [
        *({"tokenizer_class": name} for name in ("BertTokenizer", "TokenizersBackend", "PreTrainedTokenizerFast")),
        {},
        {"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]},
        {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]},
    ],
)
def test_a_tokenizer_without_token_types_is_reported(fields, tmp_path):
    reference.make("BertModel", type_vocab_size=2).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text(lines(WORDS))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"sep_token": "[SEP]"} | fields))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plm_jax.load(tmp_path)
    reported = any("returns no token types" in str(warning.message) for warning in caught)
    assert reported == ("token_type_ids" not in theirs("the", "state"))


def test_commands_print_a_warning_once_without_its_source(verb, tmp_path):
    checkpoint_formats.save(str(tmp_path / "model"), moods.pretrained(tiny.BERT), "huggingface")
    path = tmp_path / "model/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids"]}))
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in moods.rows(40, 0)))
    arguments = "--text=text", "--label=label", f"--workdir={tmp_path}/run", "--config.train.epochs=0.1"
    finished = verb("finetune", f"--train={table}", f"--checkpoint={tmp_path}/model", *arguments)
    assert finished.status == 0, finished.err
    (line,) = [line for line in finished.err.splitlines() if "token types" in line]
    assert line.startswith(f"warning: {path}: this tokenizer returns no token types")
    assert "Warning:" not in finished.err and "self.gen" not in finished.err


@pytest.mark.parametrize("cased", [False, True])
def test_albert_vocabulary_is_preserved(cased, tmp_path):
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    model = pieces(31 if cased else 27, TEXT.title() if cased else TEXT, **ids)
    lm, tokenizer = travel(tmp_path, "AlbertModel", {"spiece.model": model})
    assert {key: lm.special_ids[f"{key}_token_id"] for key in ("cls", "sep", "mask")} == {"cls": 2, "sep": 3, "mask": 4}
    expected = sentencepiece.SentencePieceProcessor(model_proto=model).encode("The State" if cased else "the state")
    assert tokenizer("The State").input_ids == [2, *expected, 3]
    assert tokenizer.mask_token_id == 4


def test_xlnet_vocabulary_and_rows_are_preserved(tmp_path):
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "user_defined_symbols": ["<eop>"]}
    model = pieces(33, **ids, control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"])
    with pytest.warns(UserWarning, match="letters with accents get other ids"):
        lm, tokenizer = travel(tmp_path, "XLNetModel", {"spiece.model": model})
    names = ("unk", "bos", "eos", "cls", "sep", "pad", "mask")
    for i, name in enumerate(names):
        assert name == "unk" or lm.special_ids[f"{name}_token_id"] == i
        assert getattr(tokenizer, f"{name}_token_id") == i
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert type(theirs).__name__ == "XLNetTokenizer" and tokenizer.padding_side == theirs.padding_side == "left"
    for texts in (("the state",), ("the state", "of the union")):
        expected, found = theirs(*texts, return_token_type_ids=True), tokenizer(*texts)
        assert (found.input_ids, found.token_type_ids) == (expected.input_ids, expected.token_type_ids)
    assert found.input_ids[-2:] == [4, 3] and found.token_type_ids[-3:] == [1, 1, 2]
    assert plm_jax.load(tmp_path / "ours").vocabulary.encode("the state") == theirs("the state").input_ids[:-2]


@pytest.mark.parametrize("begins", [True, False])
def test_llama_vocabulary_and_bos_are_preserved(begins, tmp_path):
    tokenizer_config = json.dumps({"add_bos_token": begins})
    files = {"tokenizer.model": pieces(37, model_type="bpe"), "tokenizer_config.json": tokenizer_config}
    lm, tokenizer = travel(tmp_path, "LlamaForCausalLM", files)
    want = tokenizer("the state").input_ids
    assert (want[0] == 1) == begins
    assert lm.strategy.encode("the state") == want


def test_text_needs_no_seqio(tmp_path, monkeypatch):
    lm, _ = travel(tmp_path, "LlamaForCausalLM", {"tokenizer.model": pieces(37, model_type="bpe")})

    def load(vocabulary):
        raise AssertionError("it would import TensorFlow")

    with monkeypatch.context() as patch:
        patch.setattr(vocabularies, "load", load)
        lm = plm_jax.load(tmp_path / "ours")
        (written,) = lm.generate("the state", max_new_tokens=2)
        encoded = lm.strategy.encode("the state")
        assert isinstance(written, str)
    assert isinstance(lm.vocabulary, seqio.Vocabulary) and encoded[-2:] == list(lm.vocabulary.encode("the state"))[-2:]


def byte_pairs(*merges):
    """Returns vocabulary files like RoBERTa's and BART's: special tokens, every byte, some merges, the mask."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), *map("".join, merges), "<mask>"]
    ids = {token: i for i, token in enumerate(tokens)}
    merged = ["#version: 0.2", *(f"{a} {b}" for a, b in merges)]
    return ids, {"vocab.json": json.dumps(ids), "merges.txt": lines(merged)}


def test_roberta_vocabulary_is_preserved_and_fills_like_transformers(tmp_path):
    ids, files = byte_pairs(("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "s"))
    fields = {"vocab_size": len(ids), "max_position_embeddings": 40}
    _, tokenizer = travel(tmp_path, "RobertaForMaskedLM", files, **fields)
    lm = plm_jax.load(tmp_path / "ours")
    input_ids = tokenizer("the state of the<mask> is the<mask>.", return_tensors="pt").input_ids
    assert input_ids[0, 0] == 0 and input_ids[0, -1] == 2
    with torch.no_grad():
        logits = reference.make("RobertaForMaskedLM", **fields)(input_ids).logits[0]
    at = torch.nonzero(input_ids[0] == ids["<mask>"])[:, 0]
    expected = logits[at].softmax(-1).topk(3)
    (filled,) = lm.fill("the state of the <mask> is the [MASK].", top_k=3)
    got = [[candidate.probability for candidate in of_mask] for of_mask in filled.candidates]
    np.testing.assert_allclose(got, expected.values, atol=1e-5)
    input_ids[0, at] = expected.indices[:, 0]
    assert filled.text == tokenizer.decode(input_ids[0, 1:-1])
