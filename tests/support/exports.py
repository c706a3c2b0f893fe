"""Vocabularies of all kinds over a few thousand sentences, models of all families, and lines to encode."""

import dataclasses
import functools
import gzip
import io
import json
import pathlib
import random

import jax
import numpy as np
import sentencepiece
import tokenizers

import plm_jax
from plm_jax import config, models
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import sentences, training
from plm_jax.hub import families
from plm_jax.hub.chatglm2 import ChatGlmFamily
from plm_jax.hub.fields import Fixed
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry

SIZE, SENTINELS = 1600, 6
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
LLAMA = BERT | {"num_key_value_heads": 1, "head_dim": 4}
GPT = {"n_embd": 8, "n_layer": 1, "n_head": 2}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
BART = {"d_model": 8} | {
    f"{stack}_{name}": size
    for stack in ("encoder", "decoder")
    for name, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 8}.items()
}
CHATGLM = {"hidden_size": 8, "ffn_hidden_size": 8, "num_layers": 1, "num_attention_heads": 2, "kv_channels": 4}
# Values that all published ChatGLMs share.
CHATGLM_FIXED = {field.name: field.value for field in ChatGlmFamily.fields if isinstance(field, Fixed)}
# A small config.json and the names of the models' special ids, by family.
ENCODER, BLANKS = ("pad", "cls", "sep", "mask"), ("pad", "eos", "cls", "mask", "sop", "eop", "gmask", "smask")
FRAMED = ("pad", "bos", "eos", "mask")
FAMILIES = {
    "bert": (BERT, ENCODER),
    "albert": (BERT | {"embedding_size": 4}, ENCODER),
    "electra": (BERT | {"embedding_size": 4}, ENCODER),
    "distilbert": ({"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}, ENCODER),
    "roberta": (BERT | {"type_vocab_size": 1}, FRAMED),
    "xlm-roberta": (BERT | {"type_vocab_size": 1}, FRAMED),
    "camembert": (BERT | {"type_vocab_size": 1}, FRAMED),
    "xlm-roberta-xl": (BERT | {"type_vocab_size": 1}, FRAMED),
    "xlm": ({"emb_dim": 8, "n_layers": 1, "n_heads": 2, "n_langs": 3}, ENCODER),
    "xlnet": ({"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8}, ENCODER),
    "bart": (BART, FRAMED),
    "t5": (T5, ("pad", "eos")),
    "mt5": (T5, ("pad", "eos")),
    "gpt2": (GPT, ("eos",)),
    "openai-gpt": (GPT, ("eos",)),
    "llama": (LLAMA, ("bos", "eos")),
    "glm": (LLAMA, ("eos",)),
    "chatglm": (CHATGLM | {"multi_query_group_num": 1} | CHATGLM_FIXED, ("bos", "eos")),
    "glm_original": ({"hidden_size": 8, "num_layers": 1, "num_attention_heads": 2}, BLANKS),
    "chatglm_6b": (CHATGLM | {"inner_hidden_size": 8}, ("mask", "sop", "eop", "gmask")),
}
ROBERTAS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
IDS = {
    name: i
    for i, name in enumerate(("pad", "unk", "bos", "eos", *("cls", "sep", "mask", "sop", "eop", "gmask", "smask")))
}
ABOVE = {name: SIZE + i for i, name in enumerate(name for name in IDS if name != "unk")}
PUBLISHED = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "byte_fallback": False}
SYMBOLS = ["[CLS]", "[SEP]", "[MASK]", "<|startofpiece|>", "<|endofpiece|>", "[gMASK]", "[sMASK]"]


@functools.cache
def corpus(name: str, count: int) -> list[str]:
    """Returns the first sentences of a corpus of the package."""
    texts = []
    with gzip.open(pathlib.Path(plm_jax.__file__).parent / "data" / "corpora" / f"{name}.jsonl.gz", "rt") as file:
        for line in file:
            tree = json.loads(line)
            texts += [s for s in sentences.split(tree.get("text") or tree.get("sentence")) if s.strip()]
            if len(texts) >= count:
                return texts[:count]
    return texts


@functools.cache
def encode(kind: str, folder: pathlib.Path, texts: tuple[str, ...]) -> list[list[int]]:
    """Returns plm_jax's ids of texts."""
    spec, _, case = vocabulary(kind, folder)
    loaded = vocabularies.load(section(spec, case))
    return [[int(i) for i in loaded.encode(text)] for text in texts]


def section(spec: str, case: str) -> config.VocabularyConfig:
    """Returns the config of a vocabulary, including the case of WordPiece or SentencePiece."""
    is_pieces = spec.startswith("sentencepiece:")
    return config.VocabularyConfig(spec, **({"lowercase": case == "uncased"} if is_pieces else {"train_kind": case}))


def texts() -> list[str]:
    """Returns the texts that vocabularies are trained on."""
    return [*corpus("sotu", 1500), *corpus("tang_poems_zh", 100)]


def _train(folder, spec: str, kind: str = "", **ids) -> config.VocabularyConfig:
    spec = spec.format(folder=folder)
    section = config.VocabularyConfig(spec, train_size=SIZE, train_kind=kind, **ids)
    training.train(texts(), section)
    return section


def _published(folder, rule: str, has_sentinels: bool = False) -> str:
    """Trains a SentencePiece model with published settings: normalized Unicode, joined spaces, no bytes."""
    model = io.BytesIO()
    sentinels = [f"<extra_id_{k}>" for k in reversed(range(SENTINELS))] if has_sentinels else []
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()),
        model_writer=model,
        vocab_size=2500,
        normalization_rule_name=rule,
        control_symbols=SYMBOLS,
        hard_vocab_limit=False,
        minloglevel=2,
        **PUBLISHED,
    )
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    for sentinel in sentinels:
        proto.pieces.add(piece="▁" + sentinel, score=0.0, type=4)
    path = folder / "published.model"
    path.write_bytes(proto.SerializeToString())
    return f"sentencepiece:{path}"


def _json(folder) -> str:
    """Writes a third-party tokenizer.json: BPE over words and their ends, like GPT-1's."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.BPEDecoder()
    names = ["<pad>", "<unk>", "<s>", "</s>", *SYMBOLS]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=names, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tree = json.loads(tokenizer.to_str())
    ids = tree["model"]["vocab"]
    ends = sorted(token for token in ids if len(token) == 1 + len("</w>") and token.endswith("</w>"))
    ids.update(zip(ends, sorted(map(ids.__getitem__, ends)), strict=True))  # The trainer numbers them at random.
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return f"json:{folder}/tokenizer.json"


KINDS = (
    *("unigram", "piece_bpe", "nfkc", "lowercased", "own_sentinels", "folded"),
    *("uncased", "cased", "gpt2", "roberta", "tiktoken", "json", "words", "bytes"),
)


@functools.cache
def vocabulary(kind: str, folder: pathlib.Path) -> tuple[str, dict[str, int], str]:
    """Returns a vocabulary's spec, its special ids in the file or above it, and its case if it has one."""
    folder = folder / kind
    folder.mkdir()
    lowercase = kind if kind in ("uncased", "cased") else ""
    if kind in ("unigram", "piece_bpe"):
        algorithm = "unigram" if kind == "unigram" else "bpe"
        return _train(folder, "sentencepiece:{folder}/v.model", algorithm, **IDS).spec, IDS, ""
    if kind == "folded":
        return _train(folder, "sentencepiece:{folder}/v.model", lowercase=True, **IDS).spec, IDS, "uncased"
    if kind in ("nfkc", "lowercased", "own_sentinels"):
        rule = "nmt_nfkc_cf" if kind == "lowercased" else "nmt_nfkc"
        symbols = ("pad", "unk", "bos", "eos", "cls", "sep", "mask", "sop", "eop", "gmask", "smask")
        return _published(folder, rule, kind == "own_sentinels"), {name: i for i, name in enumerate(symbols)}, ""
    if lowercase:
        ids = {name: i for name, i in IDS.items() if name not in ("bos", "eos")}
        ids = {name: i for i, name in enumerate(ids)}
        above = {"bos": SIZE, "eos": SIZE + 1}
        return _train(folder, "wordpiece:{folder}/v.txt", kind, **ids).spec, ids | above, lowercase
    if kind == "gpt2":
        section = _train(folder, "bpe:{folder}/v.json,{folder}/m.txt", eos=SIZE - 1)
        return section.spec, ABOVE | {"eos": SIZE - 1}, ""
    if kind == "roberta":
        return _train(folder, "bpe:{folder}/v.json,{folder}/m.txt", **IDS).spec, IDS, ""
    if kind == "tiktoken":
        return _train(folder, "tiktoken:{folder}/v.tiktoken").spec, ABOVE, ""
    if kind == "json":
        return _json(folder), IDS, ""
    if kind == "words":
        ids = {"bos": 0, "eos": 1, "unk": 2}
        return _train(folder, "words:{folder}/v.txt", **ids).spec, ABOVE | ids, ""
    return "bytes", {name: 256 + i for i, name in enumerate(ABOVE)}, ""


@functools.cache
def pretrained(family: str, kind: str, folder: pathlib.Path) -> Pretrained:
    """Returns a model of zeros with a vocabulary."""
    spec, ids, case = vocabulary(kind, folder)
    names = FAMILIES[family][1]
    special_ids = {f"{name}_token_id": ids[name] for name in names}
    if case:
        special_ids["lowercase"] = case == "uncased"
    if family in ("t5", "mt5"):
        special_ids["sentinels"] = SENTINELS
        special_ids["decoder_start_token_id"] = ids["pad"]
    if family == "llama":
        special_ids["begins_with_bos"] = True
    model, params = _model(family, ids["pad"] if family in ROBERTAS else 0)
    return Pretrained(model, params, special_ids, spec, family)


@functools.cache
def _model(family: str, pad: int):
    """Returns a small model of a family and parameters of zeros."""
    fields = FAMILIES[family][0] | {"vocab_size": 2600, "padded_vocab_size": 2600}
    fields |= {"max_position_embeddings": 64, "n_positions": 64}
    if family in ROBERTAS:
        fields |= {"pad_token_id": pad, "max_position_embeddings": pad + 64}
    model = families.registered()[family].to_settings(fields)
    if family in ROBERTAS:
        model = dataclasses.replace(model, pooler=models.NoHead())
    return model, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), registry.shapes(model))


def randomized(model: Pretrained, seed: int = 0, scale: float = 1.0, dtype=np.float32) -> Pretrained:
    """Returns the model with normally distributed parameters."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: (scale * rng.standard_normal(leaf.shape)).astype(dtype), model.params)
    return dataclasses.replace(model, params=params)


@functools.cache
def lines(count: int, seed: int = 0) -> tuple[str, ...]:
    """Returns lines of speeches, a novel, reviews, poems, code and random characters, some with irregular spaces."""
    rng = random.Random(seed)
    code = [
        line.rstrip("\n")
        for path in sorted((pathlib.Path(plm_jax.__file__).parent / "models").glob("*.py"))
        for line in path.read_text().splitlines()
    ]
    letters = [
        *"abcdefghij  ..--==__\t\n\u3000é你好😀<>/[]{}0123456789▁ﬁＡ½",
        "e\u0301",
        "E\u0323\u0302",
        "👩‍👩‍👧",
        "\r\n",
        "\x00",
    ]
    noise = ["".join(rng.choices(letters, k=rng.randrange(50))) for _ in range(count)]
    every = [corpus("sotu", 9000)[1500:], corpus("moby_dick", 3000), corpus("movie_sentiment", 3000)]
    every += [corpus("tang_poems_zh", 2000), code, noise]
    samples = []
    for k in range(count):
        line = rng.choice(every[k % len(every)])
        if rng.random() < 0.1:
            line = line.replace(" ", rng.choice(["  ", " \t", "\n", "   "]))
        samples.append(rng.choice(["", "", "", " ", "  "]) + line + rng.choice(["", "", "", " "]))
    return tuple(samples)
