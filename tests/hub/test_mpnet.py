"""MPNet in Hugging Face's format: long rows, published size, limits, and its tokenizer."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.configs import mpnet
from plm_jax.hub import families, huggingface, tensor_layout
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry

# Rows longer than 128 tokens, from which all distances share a bucket.
LENGTH = 150
CASES = {
    "deep": {"num_hidden_layers": 3, "max_position_embeddings": LENGTH + 2},
    "odd heads": {"hidden_size": 21, "num_attention_heads": 7, "max_position_embeddings": 201, "layer_norm_eps": 0.1},
    "one head": {"num_attention_heads": 1, "hidden_act": "gelu_new", "max_position_embeddings": 200, "vocab_size": 61},
}
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = (
    "the state ##s of un ##ion ! , ё ж ##ж привет 你 好 cafe e ##te i ist gut ##en 1 2 ##2 # ##e ##a a < > / mask s"
)
TEXTS = [
    "The states of the UNION, unions!",
    "Café été I İst guten",
    "Привет жж Ё",
    "你好the 你 states",
    "1222 # #e aea <s> </s> union <mask> the",
    "x\u0301 unknown \u200bs 🤗",
    "",
]


def count(model):
    return sum(math.prod(shape) for shape in tensor_layout.shapes_of(model).values())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_long_rows_equal_transformers(case, seed, reference, tmp_path):
    import torch

    torch_model = reference.make("MPNetForMaskedLM", **CASES[case])
    with torch.no_grad():  # Biases of scores that matter.
        generator = torch.Generator().manual_seed(seed)
        torch_model.mpnet.encoder.relative_attention_bias.weight.normal_(std=2.0, generator=generator)
    torch_model.save_pretrained(tmp_path / "theirs")
    lm, rng = plm_jax.load(tmp_path / "theirs"), np.random.default_rng(seed)
    lengths = np.array([[LENGTH], [LENGTH // 3], [7]])
    mask = (np.arange(LENGTH) < lengths).astype(np.int64)
    mask[1] = mask[1, ::-1]  # Padding before the text.
    tokens = np.where(mask == 1, rng.integers(3, torch_model.config.vocab_size, mask.shape), 1)
    with torch.no_grad():
        expected = torch_model(torch.tensor(tokens), attention_mask=torch.tensor(mask)).logits.numpy()
    np.testing.assert_allclose(lm.logits(tokens, mask)[mask == 1], expected[mask == 1], atol=1e-4)
    lm.save(tmp_path / "ours")
    again = type(torch_model).from_pretrained(tmp_path / "ours")
    reference.assert_same_state(torch_model, again)


def test_published_size():
    """The counts are those of transformers for microsoft/mpnet-base."""
    fields = {"max_position_embeddings": 514, "layer_norm_eps": 1e-5, "vocab_size": 30527}
    model = families.registered()["mpnet"].to_settings(fields)
    assert dataclasses.replace(model, pooler=models.NoHead()) == mpnet.model(*mpnet.SIZES["base"])
    assert count(dataclasses.replace(model, head=models.NoHead(), pooler=models.Pooler(0))) == 109_486_464
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    with torch.device("meta"):
        theirs = transformers.MPNetForMaskedLM(transformers.MPNetConfig(**fields))
    assert count(dataclasses.replace(model, pooler=models.NoHead())) == theirs.num_parameters()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": 16}, r"position\.buckets must be 32"),
        ({"max_distance": 64}, "max_distance"),
        ({"offset": 3}, "offset"),
    ],
)
def test_what_transformers_fixes_is_refused_on_export(changes, message):
    model = families.registered()["mpnet"].to_settings({})
    position = dataclasses.replace(model.attention.position, **changes)
    model = dataclasses.replace(model, attention=dataclasses.replace(model.attention, position=position))
    with pytest.raises(UserError, match=rf"MPNet cannot store this model \(.*{message}"):
        families.family_of(model, "mpnet")


def test_what_transformers_fixes_is_refused_on_reading(tmp_path):
    with pytest.raises(UserError, match="relative_attention_num_buckets is 16: must be 32"):
        families.registered()["mpnet"].to_settings({"relative_attention_num_buckets": 16})
    fields = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    model = dataclasses.replace(families.registered()["mpnet"].to_settings(fields), pooler=models.NoHead())
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(model))
    with pytest.raises(UserError, match="requires pad_token_id = 1, but this model has 0"):
        huggingface.write(str(tmp_path), Pretrained(model, params, {"pad_token_id": 0}, None, "mpnet"))


@pytest.mark.parametrize("lower", [True, False])
def test_tokenizer_ids_equal_transformers(lower, reference, tmp_path):
    import transformers

    tokens = [*SYMBOLS, *PIECES.split(), *([] if lower else ["The", "Caf", "##é"]), "<mask>"]
    model = reference.make("MPNetForMaskedLM", vocab_size=len(tokens), max_position_embeddings=40)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    theirs = transformers.MPNetTokenizer(vocab=vocabulary, do_lower_case=lower)
    theirs.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert [lm.special_ids[f"{name}_token_id"] for name in ("bos", "pad", "eos", "mask")] == [0, 1, 2, len(tokens) - 1]
    lm.save(tmp_path / "ours")
    ours, again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours"), plm_jax.load(tmp_path / "ours")
    plain = [text for text in TEXTS if "<" not in text]
    for text in plain:
        expected = theirs(text).input_ids
        assert [0, *lm.vocabulary.encode(text), 2] == [0, *again.vocabulary.encode(text), 2] == expected, text
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids, text
        assert ours(text, plain[0]).input_ids == theirs(text, plain[0]).input_ids
    assert ours.pad_token == "<pad>" and ours.mask_token == "<mask>"


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_embeds_like_sentence_transformers(pooling, normalize, reference, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    tokens = [*SYMBOLS, *PIECES.split(), "<mask>"]
    model = reference.make("MPNetModel", vocab_size=len(tokens), max_position_embeddings=22)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    lm, lines = plm_jax.load(tmp_path / "theirs"), [text for text in TEXTS if "<" not in text] + ["the union " * 30]
    lm.save(tmp_path / "ours", "sentence-transformers", pooling=pooling, normalize=normalize)
    expected = library.SentenceTransformer(str(tmp_path / "ours"), device="cpu").encode(lines)
    np.testing.assert_allclose(lm.embed(lines, pooling, normalize=normalize), expected, atol=1e-5)


def test_fills_masks_like_transformers(reference, tmp_path):
    import torch

    tokens = [*SYMBOLS, *PIECES.split(), "<mask>"]
    model = reference.make("MPNetForMaskedLM", vocab_size=len(tokens), max_position_embeddings=40)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    lm = plm_jax.load(tmp_path)
    (filled,) = lm.fill("the <mask> of the union", top_k=3)
    ids = [0, *lm.vocabulary.encode("the"), len(tokens) - 1, *lm.vocabulary.encode("of the union"), 2]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, 2].softmax(-1).topk(3).values
    np.testing.assert_allclose([each.probability for each in filled.candidates[0]], expected, atol=1e-5)
