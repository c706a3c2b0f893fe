"""Directories whose vocabulary is a `tokenizer.json`, or a tiktoken file under the name of SentencePiece's."""

import base64
import json
import shutil

import jax
import pytest
import tokenizers
from flax import linen as nn

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import tokenizer_json
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests import golden

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def tokenizer():
    """Byte-level BPE like LLaMA 3's: a beginning token before each text, special tokens above the vocabulary."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "th", "the"]
    merges = [("t", "h"), ("th", "e")]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(letters)}, merges))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens([BOS, EOS])
    template = tokenizers.processors.TemplateProcessing(f"{BOS} $A", None, [(BOS, 29)])
    bpe.post_processor = tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(), template])
    return bpe


@pytest.fixture(params=["llama", "gpt1"])
def directory(request, tmp_path):
    """A model whose only vocabulary file is tokenizer.json."""
    folder = tmp_path / request.param
    shutil.copytree(golden.FOLDER / request.param, folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"bos_token_id": 29, "eos_token_id": 30}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "TokenizersBackend",
                "bos_token": BOS,
                "eos_token": {"__type": "AddedToken", "content": EOS},
            }
        )
    )
    return folder


def test_tokenizer_json_is_a_vocabulary(directory):
    lm = plm_jax.load(directory)
    assert lm.vocabulary.vocab_size == 31
    assert list(lm.vocabulary.encode("the cat")) == tokenizer().encode("the cat", add_special_tokens=False).ids
    assert lm.vocabulary.decode([29, 28, 26, 2, 0, 19]) == BOS + "the cat"
    assert lm.special_ids["begins_with"] == [29] and lm.special_ids["eos_token_id"] == 30


def test_tokenizer_json_is_saved_with_the_model(directory, tmp_path):
    lm = plm_jax.load(directory)
    for form in ("huggingface", "plm_jax"):
        lm.save(tmp_path / form, format=form)
        again = plm_jax.load(tmp_path / form)
        assert again.special_ids == lm.special_ids
        assert list(again.vocabulary.encode("the cat")) == list(lm.vocabulary.encode("the cat"))
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    assert (other.bos_token_id, other.eos_token_id) == (29, 30)
    assert other("the cat")["input_ids"] == tokenizer().encode("the cat").ids


def test_family_vocabulary_is_preferred(tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(golden.FOLDER / "bert", folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("[UNK]\n[MASK]\nthe\n")
    assert plm_jax.load(folder).vocabulary.vocab_size == 3


def test_special_ids_of_tokenizer_json():
    bpe = tokenizer()
    special_ids = tokenizer_json.special_ids
    file = bpe.to_str().encode()
    framed = {"begins_with": [29], "ends_with": []}
    assert special_ids([file], {"bos_token": BOS, "mask_token": None}) == {"bos_token_id": 29, **framed}
    assert special_ids([file], {"bos_token": EOS}) == {"bos_token_id": 30, **framed}
    bpe.post_processor = tokenizers.processors.ByteLevel()
    bpe.add_special_tokens(["<extra_id_1>", "<extra_id_0>"])
    assert special_ids([bpe.to_str().encode()], {}) == {"sentinels": 2, "begins_with": [], "ends_with": []}
    assert tokenizer_json.tokenizer_config(
        [file], {"bos_token_id": 29, "eos_token_id": [30, 5], "pad_token_id": 7}
    ) == {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    for damaged in (b"{", b"[]"):
        with pytest.raises(UserError, match="is damaged"):
            special_ids([damaged], {})


def test_llama_3_reads_tiktoken(tmp_path):
    """The file has the name of SentencePiece's, and special tokens are above it."""
    path = tmp_path / "tokenizer.model"
    tokens = [*(bytes([i]) for i in range(256)), b"th", b"the", b" the"]
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(tokens)))
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(264, 8),
        attention=models.AttentionConfig(2, 4, models.Rotary(length=32)),
        feed_forward=models.FeedForwardConfig(8, "silu", gated=True, bias=False),
        norm=models.NormConfig(1e-5, kind="rms"),
        stack=models.StackConfig(1),
        head=models.VocabularyHead(tied=False),
    )
    params = nn.unbox(registry.init_params(registry.build(model), jax.random.key(0)))
    ids = {"bos_token_id": 259, "eos_token_id": [260, 261], "begins_with_bos": True}
    LanguageModel(model, params, vocabulary_spec=f"tiktoken:{path}", special_ids=ids, family="llama").save(
        tmp_path / "hf"
    )
    assert (tmp_path / "hf/tokenizer.model").read_bytes() == path.read_bytes()
    lm = plm_jax.load(tmp_path / "hf")
    frame = {"begins_with": [259], "separates_with": [259], "ends_with": []}
    assert lm.special_ids == ids | frame | {"max_length": lm.config.max_length}
    assert list(lm.vocabulary.encode("the the")) == [257, 258]
    assert lm.vocabulary.vocab_size == 262, "the special tokens may be generated"
    assert lm.vocabulary.decode([259, 257, 258, 261]) == "the the"
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json"))
    assert [saved.id_to_token(i) for i in (259, 260)] == [BOS, EOS]
