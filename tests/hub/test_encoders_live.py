"""BERT's kin, RoBERTa, ALBERT and DistilBERT, side by side with transformers, on random weights."""

import io
import json

import numpy as np
import pytest
import sentencepiece

import plm_jax
from plm_jax.models import settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

WHOLE = {"roberta": "RobertaForMaskedLM", "albert": "AlbertForPreTraining", "distilbert": "DistilBertForMaskedLM"}
CONFIGS = {
    "roberta_odd_heads_tanh_gelu": {"hidden_size": 21, "num_attention_heads": 7, "hidden_act": "gelu_new"},
    "roberta_three_types_untied": {"type_vocab_size": 3, "tie_word_embeddings": False, "num_hidden_layers": 1},
    "roberta_other_padding": {"pad_token_id": 4, "max_position_embeddings": 13, "layer_norm_eps": 0.1},
    "albert_one_group_odd_heads": {"num_hidden_layers": 3, "hidden_size": 21, "num_attention_heads": 7},
    "albert_groups_of_two_untied": {
        "num_hidden_layers": 4,
        "num_hidden_groups": 2,
        "inner_group_num": 2,
        "tie_word_embeddings": False,
    },
    "albert_wide_tables_unshared": {"embedding_size": 19, "num_hidden_groups": 2, "hidden_act": "relu"},
    "distilbert_odd_heads_tanh": {"dim": 21, "n_heads": 7, "activation": "tanh"},
    "distilbert_one_layer_untied": {"n_layers": 1, "tie_word_embeddings": False},
}


def make(architecture, **fields):
    config_class = getattr(transformers, architecture).config_class
    return theirs.randomised(
        getattr(transformers, architecture), config_class(**{**theirs.SIZES[config_class.model_type], **fields})
    )


def logits_of(outputs):
    return outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    family = name.partition("_")[0]
    model = make(WHOLE[family], **CONFIGS[name])
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    real = theirs.MASK == 1
    np.testing.assert_allclose(lm.logits(**inputs)[real], logits_of(want)[real], atol=1e-4)
    hidden = np.asarray(lm.hidden_states(**inputs))
    wanted = want["hidden_states"][:: lm.config.stack.inner]
    assert hidden.shape == wanted.shape
    np.testing.assert_allclose(hidden[:, real], wanted[:, real], atol=1e-4)
    # Padding has its position and its token type too.
    np.testing.assert_allclose(hidden[0], wanted[0], atol=1e-4)
    if family == "albert":
        np.testing.assert_allclose(lm.logits(**inputs, head="sentence_pair"), want["sop_logits"], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = getattr(transformers, WHOLE[family]).from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(logits_of(theirs.run(again)[1]), logits_of(want))
    bias = {"roberta": "lm_head.bias", "albert": "predictions.bias"}.get(family)
    theirs.assert_same_state(model, again, unused=[] if lm.config.head.tied else [bias])
    written, original = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    common = written.keys() & original.keys()
    assert {key: written[key] for key in common} == {key: original[key] for key in common}
    assert len(common) > 15


@pytest.mark.parametrize(
    ("architecture", "head", "pooler"),
    [
        ("RobertaModel", False, settings.Pooler(0)),
        ("AlbertForMaskedLM", True, settings.NoHead()),
        ("AlbertModel", False, settings.Pooler(0)),
        ("DistilBertModel", False, settings.NoHead()),
    ],
)
def test_a_file_with_some_of_the_heads_gives_those(architecture, head, pooler, tmp_path):
    model = make(architecture)
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert isinstance(lm.config.head, settings.VocabularyHead) == head
    assert lm.config.pooler == pooler
    assert lm.num_parameters == model.num_parameters()
    lm.save(tmp_path / "ours")
    again = getattr(transformers, architecture).from_pretrained(tmp_path / "ours")
    assert again.config.architectures == [architecture]
    theirs.assert_same_state(model, again)


@pytest.mark.parametrize("family", WHOLE)
def test_the_encoder_of_a_fine_tuned_model_loads(family, tmp_path):
    model = make(WHOLE[family].replace("ForPreTraining", "ForMaskedLM").replace("MaskedLM", "SequenceClassification"))
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="left out: classifier"):
        lm = plm_jax.load(tmp_path)
    inputs, want = theirs.run(model)
    hidden, real = np.asarray(lm.hidden_states(**inputs)), theirs.MASK == 1
    np.testing.assert_allclose(hidden[:, real], want["hidden_states"][:, real], atol=1e-4)


BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def byte_pairs():
    """A vocabulary as RoBERTa's: special tokens first, every byte, some merges, the mask last."""
    others = [chr(256 + i) for i in range(256 - len(BYTES))]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "s")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *map(chr, BYTES), *others, *map("".join, merges), "<mask>"]
    return {token: i for i, token in enumerate(tokens)}, merges


def test_roberta_fills_what_transformers_fills(tmp_path):
    ids, merges = byte_pairs()
    model = make("RobertaForMaskedLM", vocab_size=len(ids), max_position_embeddings=40)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "theirs" / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges))
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    lm, tokenizer = plm_jax.load(tmp_path / "ours"), transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    given = tokenizer("the state of the<mask> is the<mask>.", return_tensors="pt").input_ids
    assert given[0, 0] == 0 and given[0, -1] == 2
    with torch.no_grad():
        logits = model(given).logits[0]
    at = torch.nonzero(given[0] == ids["<mask>"])[:, 0]
    wanted = logits[at].softmax(-1).topk(3)
    (filled,) = lm.fill("the state of the <mask> is the [MASK].", top_k=3)
    got = [[candidate.probability for candidate in of_mask] for of_mask in filled.candidates]
    np.testing.assert_allclose(got, wanted.values, atol=1e-5)
    given[0, at] = wanted.indices[:, 0]
    assert filled.text == tokenizer.decode(given[0, 1:-1])


@pytest.mark.parametrize("cased", [False, True])
def test_a_sentence_piece_vocabulary_travels_along(cased, tmp_path):
    text, model = "the state of the union is strong and we the people stand", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.title() if cased else text] * 30),
        model_writer=model,
        vocab_size=31 if cased else 27,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    make("AlbertModel").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "spiece.model").write_bytes(model.getvalue())
    lm = plm_jax.load(tmp_path / "theirs")
    assert {key: lm.special_ids[f"{key}_token_id"] for key in ("cls", "sep", "mask")} == {"cls": 2, "sep": 3, "mask": 4}
    lm.save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    wanted = pieces.encode("The State" if cased else "the state")
    assert tokenizer("The State").input_ids == [2, *wanted, 3]
    assert tokenizer.mask_token_id == 4


def test_a_word_piece_vocabulary_travels_along(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "state", "##ly"]
    make("DistilBertModel").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(words) + "\n")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("The stately").input_ids == [2, 5, 6, 7, 3]
