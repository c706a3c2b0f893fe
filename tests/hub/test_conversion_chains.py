"""Chains of conversions preserve tokenizers, weights, labels and settings in all formats."""

import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import config, models
from plm_jax.configs import demo
from plm_jax.hub import elmo, families, files, tasks
from plm_jax.hub.pretrained import Pretrained
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats, model_text
from tests.support import exports, tiny

FORMATS = ("huggingface", "plm_jax")
# Converts a Hugging Face directory from each format to each format.
EVERY_CONVERSION = ("huggingface", "plm_jax", "plm_jax", "huggingface")
# Another kind of vocabulary for each family.
SOURCES = {name: exports.KINDS[i % len(exports.KINDS)] for i, name in enumerate(exports.FAMILIES)}
TEXTS = ("the film", "", "The state of the Union.", "  two  spaces ")
LABELS = {
    "classes": ("bad", "good", "neither"),
    "labels": ("bad", "good", "neither"),
    "score": ("stars",),
    "tags": ("O", "B-A", "I-A"),
    "span": (),
    "choice": (),
}
HEADS = [
    (family, kind) for family, of in families.registered().items() for kind in of.tasks if family in exports.FAMILIES
]


def converted(source, folder, chain=EVERY_CONVERSION):
    """Converts a directory to one format after another. Yields the formats so far and the new directory."""
    for length in range(1, len(chain) + 1):
        path = folder / "-".join(chain[:length])
        checkpoint_formats.convert(str(source), str(path), chain[length - 1])
        yield chain[:length], path
        source = path


def observed(path):
    """Returns everything that a conversion keeps, as this package reads it."""
    with checkpoint_formats.opened(path) as pretrained:
        weights = {name: np.asarray(leaf, np.float32) for name, leaf in pretrained.flat().items()}
        types = {name: str(leaf.dtype) for name, leaf in pretrained.flat().items()}
        vocabulary = model_text.vocabulary(pretrained)
        encoded = [[int(i) for i in vocabulary.encode(text)] for text in TEXTS]
        frame = model_text.frame(pretrained.model, pretrained.special_ids, pretrained.run)
        return weights, pretrained.model, pretrained.special_ids, pretrained.family, types, encoded, frame


def assert_same(one, other, where):
    assert one[1:] == other[1:], where
    assert one[0].keys() == other[0].keys(), where
    assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0]), where


def hub_content(path):
    """Returns the files of a Hugging Face directory: JSON as trees, tensors as float32 arrays."""
    trees = {path.name: json.loads(path.read_text()) for path in path.glob("*.json")}
    with files.opened(str(path)) as tensors:
        return trees, {name: np.asarray(tensor[...], np.float32) for name, tensor in tensors.items()}


def assert_same_hub_content(source, path):
    (trees, tensors), (again, copied) = hub_content(source), hub_content(path)
    assert again == trees
    assert copied.keys() == tensors.keys() and all(np.array_equal(copied[name], tensors[name]) for name in tensors)


def check(source, folder, chain=EVERY_CONVERSION):
    """Asserts that conversions of a directory change nothing."""
    want = observed(source)
    for formats, path in converted(source, folder, chain):
        assert_same(observed(path), want, formats)
        if formats[-1] == "huggingface":
            assert_same_hub_content(source, path)


@pytest.mark.parametrize("family", SOURCES)
def test_conversion_chains_are_exact(family, vocabulary_folder, tmp_path):
    dtype = [np.float32, jnp.bfloat16, np.float16][len(family) % 3]
    model = exports.randomized(exports.pretrained(family, SOURCES[family], vocabulary_folder), dtype=dtype)
    source = tmp_path / "source"
    checkpoint_formats.save(str(source), model, "huggingface")
    # Generation settings in a separate file and in config.json, and a field that plm_jax does not read.
    (source / "generation_config.json").write_text(json.dumps({"num_beams": 3, "max_length": 40, "eos_token_id": 5}))
    described = json.loads((source / "config.json").read_text())
    further = {"length_penalty": 2.0, "task_specific_params": {"summarization": {"prefix": "a: "}}, "mine": [1, None]}
    (source / "config.json").write_text(json.dumps(described | further))
    check(source, tmp_path)


@pytest.mark.parametrize(("family", "kind"), HEADS)
def test_labels_and_problem_types_are_preserved(family, kind, vocabulary_folder, tmp_path):
    model = exports.pretrained(family, SOURCES[family], vocabulary_folder)
    head = tasks.new(kind, model.model, LABELS[kind], families.registered()[family])
    settings_ = model.model.with_task(head)
    if hasattr(settings_, "head"):
        settings_ = replace(settings_, head=models.NoHead())
    shapes = registry.shapes(settings_)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    model = exports.randomized(replace(model, model=settings_, params=params))
    checkpoint_formats.save(str(tmp_path / "source"), model, "huggingface")
    assert tasks.head_of(observed(tmp_path / "source")[1]) == head
    check(tmp_path / "source", tmp_path, ("plm_jax", "huggingface"))


def frameless_run(vocabulary_folder):
    """The demo's BERT, whose rows are blocks of text without special tokens, and its vocabulary."""
    spec, ids, _ = exports.vocabulary("unigram", vocabulary_folder)
    section = config.VocabularyConfig(
        spec, **{name: ids[name] for name in ("pad", "unk", "bos", "eos", "cls", "sep", "mask")}
    )
    return replace(demo.bert(), model=replace(tiny.BERT, pooler=models.NoHead()), vocabulary=section)


def runs(vocabulary_folder):
    """Runs whose special tokens around texts differ from those of their family's published models."""
    bert = frameless_run(vocabulary_folder)
    gpt2 = replace(demo.gpt2(), model=tiny.MODEL, vocabulary=bert.vocabulary)
    gpt2 = replace(gpt2, data=replace(gpt2.data, length=64))
    t5 = replace(demo.t5(), model=tiny.T5, vocabulary=replace(bert.vocabulary, sentinels=6))
    begun = replace(gpt2, data=replace(gpt2.data, layout=replace(gpt2.data.layout, begin=("bos",))))
    return {"bert": bert, "gpt2": gpt2, "begun": begun, "t5": t5}


@pytest.mark.parametrize("name", ["bert", "gpt2", "begun", "t5"])
def test_texts_are_framed_equally_in_every_format(name, vocabulary_folder, tmp_path):
    run = runs(vocabulary_folder)[name]
    size = exports.SIZE + len(exports.IDS)
    run = replace(run, model=replace(run.model, embedding=replace(run.model.embedding, vocab_size=size)))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(run.model))
    (tmp_path / "run/vocabulary").mkdir(parents=True)
    (tmp_path / "run/vocabulary/v.model").write_bytes((vocabulary_folder / "unigram/v.model").read_bytes())
    of_run = exports.randomized(checkpoint_formats.of_run(run, params, str(tmp_path / "run")))
    prompts = ["the [MASK]"] if name == "bert" else ["the film", ""]
    lm = LanguageModel(run.model, params, run=run, vocabulary_spec=of_run.vocabulary, special_ids=of_run.special_ids)
    want = lm.strategy.frame, [lm.strategy.encode(prompt) for prompt in prompts]
    assert want[0] == {"bert": ([], []), "gpt2": ([], []), "begun": ([2], []), "t5": ([], [3])}[name]
    for first in FORMATS:
        checkpoint_formats.save(str(tmp_path / first), of_run, first)
        between = ("huggingface", "plm_jax") if first == "plm_jax" else ("plm_jax", "huggingface")
        for chain, path in converted(tmp_path / first, tmp_path / f"from_{first}", between):
            lm = plm_jax.load(path)
            assert (lm.strategy.frame, [lm.strategy.encode(prompt) for prompt in prompts]) == want, (first, chain)
            leaves = zip(jax.tree.leaves(lm.params), jax.tree.leaves(of_run.params), strict=True)
            assert all(np.array_equal(*pair) for pair in leaves)


def test_elmo_survives_bilm_and_plm_jax(tmp_path):
    shapes = registry.shapes(tiny.ELMO)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), shapes)
    words = [*("<S>", "</S>", "<UNK>"), *(f"w{i}" for i in range(tiny.ELMO.embedding.vocab_size - 3))]
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    elmo.write(str(tmp_path / "source"), Pretrained(tiny.ELMO, params, {}, f"words:{tmp_path}/words.txt"))
    want = observed(tmp_path / "source")
    for chain, path in converted(tmp_path / "source", tmp_path, ("bilm", "plm_jax", "plm_jax", "bilm")):
        assert_same(observed(path), want, chain)


# Forms in which third-party tokenizers store special tokens around texts.
def framed(tokenizers, ids):
    cls, sep = (("[CLS]", ids["cls"]), ("[SEP]", ids["sep"]))
    processors = tokenizers.processors
    return {
        "none": None,
        "template": processors.TemplateProcessing("$A [SEP]", "$A [SEP] [CLS] $B:1", [cls, sep]),
        "bert": processors.BertProcessing(sep, cls),
        "roberta": processors.RobertaProcessing(sep, cls),
        "sequence": processors.Sequence(
            [processors.ByteLevel(), processors.TemplateProcessing("[CLS] $A", None, [cls])]
        ),
    }


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("frame", ["none", "template", "bert", "roberta", "sequence"])
def test_third_party_tokenizer_is_copied_exactly(frame, named, vocabulary_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    import tokenizers

    ids = exports.vocabulary("uncased", vocabulary_folder)[1]
    source = tmp_path / "source"
    checkpoint_formats.save(
        str(source), exports.randomized(exports.pretrained("bert", "uncased", vocabulary_folder)), "huggingface"
    )
    trained = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    (first,), special = trained.encode("the", add_special_tokens=False).ids, framed(tokenizers, ids)[frame]
    # Tokens that the vocabulary's own file lacks.
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )
    wrapped.add_tokens(["<user>", "Unionpolitics"])
    wrapped.save_pretrained(source)
    tree = json.loads((source / "tokenizer.json").read_text())
    other = tokenizers.Tokenizer.from_str(json.dumps(tree))
    if special is None:
        tree["post_processor"] = None
        other = tokenizers.Tokenizer.from_str(json.dumps(tree))
    else:
        other.post_processor = special
    other.save(str(source / "tokenizer.json"))
    if named:
        path = source / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "BertTokenizer"}))

    def encodings(path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        pairs = [("the film", "<user> of the Unionpolitics"), ("the state", "")]
        return [
            *(dict(tokenizer(text, add_special_tokens=special)) for text in TEXTS for special in (False, True)),
            *(dict(tokenizer(*pair, add_special_tokens=special)) for pair in pairs for special in (False, True)),
            tokenizer.all_special_ids,
            tokenizer.padding_side,
        ]

    want = encodings(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chain, path in converted(source, tmp_path, ("huggingface", "plm_jax", "huggingface")):
            if chain[-1] == "plm_jax":
                continue
            assert encodings(path) == want, chain
            if not named and frame != "roberta":  # plm_jax adds the same special tokens as the library.
                lm = plm_jax.load(path)
                before, after = lm.strategy.frame
                assert [*before, first, *after] == other.encode("the").ids, chain
