"""Saved Hugging Face directories in transformers' AutoTokenizer: each family with each kind of vocabulary."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers

transformers = pytest.importorskip("transformers")

import plm_jax  # noqa: E402
from plm_jax import config  # noqa: E402
from plm_jax.data import vocabularies  # noqa: E402
from plm_jax.models import registry  # noqa: E402
from plm_jax.runs import checkpoint_formats, transfer  # noqa: E402
from tests.support import exports, moods  # noqa: E402


def opened(path, **options):
    """ChatGLM's config names its authors' code, which must not be needed here."""
    return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)


@pytest.mark.parametrize(("number", "family"), list(enumerate(exports.FAMILIES)))
def test_ids_equal_on_thousand_lines(number, family, vocabulary_folder, tmp_path):
    """Covers two kinds of vocabulary per family, and each kind with two or three families."""
    for kind in {exports.KINDS[index % len(exports.KINDS)] for index in (number, 5 * number + 3)}:
        model, lines = exports.pretrained(family, kind, vocabulary_folder), exports.lines(1000)
        checkpoint_formats.save(str(tmp_path / kind), model, "huggingface")
        tokenizer = opened(tmp_path / kind)
        ids = tokenizer(list(lines), add_special_tokens=False).input_ids
        assert ids == exports.encode(kind, vocabulary_folder, lines)
        for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
            assert getattr(tokenizer, f"{name}_token_id") == model.special_ids.get(f"{name}_token_id")


@pytest.mark.parametrize("kind", ["unigram", "piece_bpe", "cased", "roberta", "tiktoken"])
def test_special_tokens_can_be_encoded_as_text(kind, vocabulary_folder, tmp_path):
    checkpoint_formats.save(str(tmp_path), exports.pretrained("glm_original", kind, vocabulary_folder), "huggingface")
    texts = ("The [MASK] of", "a</s> b", "<pad><s> [CLS]x", "<0x41> <|startofpiece|>")
    tokenizer = opened(tmp_path, split_special_tokens=True)
    assert tokenizer(list(texts), add_special_tokens=False).input_ids == exports.encode(kind, vocabulary_folder, texts)
    (mask,) = opened(tmp_path)("[MASK]" if kind != "roberta" else "<mask>", add_special_tokens=False).input_ids
    assert mask == exports.vocabulary(kind, vocabulary_folder)[1]["mask"]


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "t5", "bart"])
def test_model_and_tokenizer_open_together(family, vocabulary_folder, tmp_path):
    checkpoint_formats.save(str(tmp_path), exports.pretrained(family, "unigram", vocabulary_folder), "huggingface")
    tokenizer, model = opened(tmp_path), transformers.AutoModel.from_pretrained(tmp_path)
    batch = tokenizer(["The state of the Union", "is strong"], padding=family not in ("gpt2", "llama"))
    assert {*batch} == {"input_ids", "attention_mask"} | ({"token_type_ids"} if family == "bert" else set())
    assert max(map(max, batch["input_ids"])) < model.config.vocab_size
    assert tokenizer.padding_side == ("left" if family == "llama" else "right")


@pytest.mark.parametrize(
    ("name", "first"), [("XLMRoberta", ()), ("Camembert", ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"))]
)
def test_sentencepiece_of_roberta_like_families(name, first, tmp_path):
    """Tokenizers built like the published ones: ids that no file of SentencePiece has, the mask last, any language."""
    lines = [*exports.lines(1000), "Привет, мир!", "Straße in Köln", "¿Qué pasa, señor?", "日本語のテキスト"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = [*first, "<s>", "<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=5000, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    pieces = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    theirs = getattr(transformers, f"{name}Tokenizer")(vocab=[*pieces, ("<mask>", 0.0)])
    ids = {f"{each}_token_id": getattr(theirs, f"{each}_token_id") for each in ("bos", "eos", "pad")}
    sizes = exports.BERT | {"type_vocab_size": 1, "vocab_size": len(theirs), "max_position_embeddings": 70}
    model = getattr(transformers, f"{name}ForMaskedLM")(getattr(transformers, f"{name}Config")(**sizes, **ids)).eval()
    for part in (model, theirs):
        part.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert [lm.special_ids[each] for each in ids] == list(ids.values())
    expected = theirs(lines, add_special_tokens=False).input_ids
    assert [list(lm.tokenizer.encode(line)) for line in lines] == expected
    assert lm.special_ids["mask_token_id"] == theirs.mask_token_id == len(theirs) - 1
    lm.save(tmp_path / "ours")
    again = opened(tmp_path / "ours")
    assert type(again) is type(theirs) and again(lines).input_ids == theirs(lines).input_ids


def byte_level(lines, special):
    """Returns a byte-level BPE, as in ModernBERT and EuroBERT, trained on lines."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet))
    added = [tokenizers.AddedToken(token, lstrip=token == "[MASK]", special=True) for token in special]
    tokenizer.add_special_tokens(added)
    return tokenizer


def byte_fallback(lines, special):
    """Returns a BPE whose unknown characters are bytes, as in Gemma's tokenizer, which mmBERT has."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.decoder = tokenizers.decoders.Replace("▁", " ")
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, special_tokens=[*special, *of_bytes])
    tokenizer.train_from_iterator([line.replace(" ", "▁") for line in lines], trainer)
    return tokenizer


CLS, BOS = {"cls": "[CLS]", "sep": "[SEP]"}, {"bos": "<bos>", "eos": "<eos>"}


@pytest.mark.parametrize(
    ("family", "make", "names", "frame"),
    [
        (
            "ModernBert",
            byte_level,
            {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"},
            "[CLS] $A [SEP]",
        ),
        (
            "ModernBert",
            byte_fallback,
            {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "mask": "<mask>"},
            "<bos> $A <eos>",
        ),
        ("EuroBert", byte_level, {"bos": "<|begin|>", "eos": "<|end|>", "mask": "<|mask|>"}, "<|begin|> $A <|end|>"),
        ("Cohere", byte_level, {"pad": "<PAD>", "bos": "<BOS>", "eos": "<EOS>"}, "<BOS> $A"),
    ],
)
def test_tokenizer_json_of_recent_families(family, make, names, frame, tmp_path):
    """Tokenizers built like the published ones, of which there is only a tokenizer.json."""
    lines = [*exports.lines(1000), "Привет, мир!", "Straße in Köln", "¿Qué pasa, señor?", "日本語 😀", " e\u0301  "]
    special = [*names.values(), "<unk>"]
    tokenizer = make(lines, special)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=frame, special_tokens=[(token, tokenizer.token_to_id(token)) for token in special]
    )
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in names.items()}
    )
    sizes = exports.BERT | {"vocab_size": len(theirs), "max_position_embeddings": 70}
    sizes = {name: size for name, size in sizes.items() if name != "type_vocab_size"}
    ids = {f"{name}_token_id": theirs.convert_tokens_to_ids(token) for name, token in names.items()}
    form = "ForCausalLM" if family == "Cohere" else "ForMaskedLM"
    fields = {"logit_scale": 1.0} if family == "Cohere" else {}
    settings = getattr(transformers, f"{family}Config")(**sizes, **fields, **{"pad_token_id": 0} | ids)
    for part in (getattr(transformers, f"{family}{form}")(settings), theirs):
        part.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert [list(lm.tokenizer.encode(line)) for line in lines] == theirs(lines, add_special_tokens=False).input_ids
    assert {name: lm.special_ids[f"{name}_token_id"] for name in names} == {
        name: ids[f"{name}_token_id"] for name in names
    }
    lm.save(tmp_path / "ours")
    assert opened(tmp_path / "ours")(lines).input_ids == theirs(lines).input_ids


# Published directories have the files of the family and no tokenizer.json.
PUBLISHED = [
    ("bert", "uncased", ("vocab.txt",), {}),
    ("distilbert", "uncased", ("vocab.txt",), {}),
    ("electra", "cased", ("vocab.txt",), {"do_lower_case": False}),
    ("gpt2", "gpt2", ("vocab.json", "merges.txt"), {}),
    ("bart", "roberta", ("vocab.json", "merges.txt"), {}),
    ("t5", "nfkc", ("spiece.model",), {"extra_ids": 6}),
    ("albert", "lowercased", ("spiece.model",), {}),
    ("albert", "uncased", ("vocab.txt",), {"tokenizer_class": "BertTokenizer"}),
]


def test_uncased_albert_normalizes_like_transformers(vocabulary_folder, tmp_path):
    checkpoint_formats.save(str(tmp_path), exports.pretrained("albert", "folded", vocabulary_folder), "huggingface")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    lm, theirs = plm_jax.load(tmp_path), opened(tmp_path)
    assert lm.special_ids["lowercase"] and type(theirs).__name__ == "AlbertTokenizer"
    # The class joins white space and replaces doubled quotes, unlike ALBERT's original code.
    lines = [" ".join(line.split()) for line in exports.corpus("sotu", 2500)[1500:] if line.isascii()]
    lines = [line for line in lines if "''" not in line and "``" not in line]
    lines += [f"Élève naïve à Zürich. {line.upper()}" for line in lines[:100]]
    lines += [line.replace("a", "A\u0301").replace("e", "ê") for line in lines[:100]]
    want = theirs(lines, add_special_tokens=False).input_ids
    assert [[int(i) for i in lm.vocabulary.encode(line)] for line in lines] == want


@pytest.mark.parametrize(("family", "kind", "names", "described"), PUBLISHED)
def test_published_directory_keeps_its_ids(family, kind, names, described, vocabulary_folder, tmp_path):
    model = exports.pretrained(family, kind, vocabulary_folder)
    checkpoint_formats.save(str(tmp_path / "theirs"), model, "huggingface")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(described))
    lm = plm_jax.load(tmp_path / "theirs")
    assert all((tmp_path / "theirs" / name).exists() for name in names)
    lm.save(tmp_path / "ours")
    # English letters only: transformers' classes differ from SentencePiece for other letters and unusual spaces.
    lines = exports.lines(1000)
    if names == ("spiece.model",):
        lines = [line for line in exports.corpus("sotu", 2500)[1500:] if line.isascii()]
    theirs, ours = opened(tmp_path / "theirs"), opened(tmp_path / "ours")
    assert ours(list(lines)).input_ids == theirs(list(lines)).input_ids


@pytest.mark.parametrize(("family", "kind", "texts"), [("gpt2", "gpt2", 1), ("llama", "tiktoken", 2)])
def test_decoder_classifier_ignores_padding(family, kind, texts, vocabulary_folder, tmp_path):
    torch = pytest.importorskip("torch")
    model = exports.pretrained(family, kind, vocabulary_folder)
    special_ids = {name: i for name, i in model.special_ids.items() if name.startswith(("bos", "eos", "begins"))}
    form = config.ClassForm(moods.LABELS, **({"text": "text", "pair": "text"} if texts == 2 else {}))
    sources = {"mood": config.LabeledTable("mood.jsonl", form, "held_out.jsonl")}
    page = dataclasses.replace(moods.RUN, data=dataclasses.replace(moods.RUN.data, sources=sources))
    run = transfer.adapted(page, dataclasses.replace(model, special_ids=special_ids), "source")
    (tmp_path / "run/vocabulary").mkdir(parents=True)
    for path in vocabularies.files(run.vocabulary.spec):
        shutil.copy(path, tmp_path / "run/vocabulary")
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(run.model))
    of_run = exports.randomized(checkpoint_formats.of_run(run, params, str(tmp_path / "run")))
    checkpoint_formats.save(str(tmp_path / "hf"), of_run, "huggingface")
    tokenizer = opened(tmp_path / "hf", padding_side="right")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert tokenizer.pad_token_id == theirs.config.pad_token_id is not None
    lines = ["The state of the Union", "is strong", "!", "", "and we stand together, all of us!!"]
    rows = list(zip(lines, reversed(lines), strict=True)) if texts == 2 else lines
    lm = plm_jax.load(tmp_path / "hf")
    with torch.no_grad():
        batch = theirs(**tokenizer(rows, padding=True, return_tensors="pt")).logits.numpy()
        single = [theirs(**tokenizer([row], return_tensors="pt")).logits.numpy() for row in rows]
    np.testing.assert_allclose(batch, np.concatenate(single), atol=1e-5)
    ours = [lm.logits(tokenizer([row]).input_ids, head="task") for row in rows]
    np.testing.assert_allclose(batch, np.concatenate(ours), atol=1e-4)
