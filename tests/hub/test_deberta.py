"""DeBERTa v1 to v3 against transformers: encoders, heads of tasks, files; and the mask decoder, which it lacks."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.configs import deberta
from plm_jax.hub import families, tensor_layout
from plm_jax.models import registry

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SIZES = {"vocab_size": 37, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
SIZES |= {"num_hidden_layers": 3, "max_position_embeddings": 24, "legacy": False}
V1 = {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False}
V3 = V1 | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 8}
OFF = {"relative_attention": False}
# Fields of `config.json`, by version and name of the variant.
CASES = {
    "": {
        "both": V1,
        "c2p_biased_types": V1 | {"pos_att_type": "c2p", "position_biased_input": True, "type_vocab_size": 2},
        "p2c_few_distances": V1 | {"pos_att_type": ["p2c"], "max_relative_positions": 5},
        "off_with_terms": OFF | {"pos_att_type": ["c2p"], "position_biased_input": True},
        "off": OFF | {"position_biased_input": False, "hidden_act": "relu"},
        "old_head": V1 | {"legacy": True},
    },
    "V2": {
        "v3": V3,
        "beyond_the_buckets": V3 | {"max_position_embeddings": 9},
        "unshared": V3 | {"share_att_key": False},
        "no_buckets": V3 | {"position_buckets": -1},
        "no_norm": V3 | {"norm_rel_ebd": "none", "layer_norm_eps": 0.1},
        "convolution": V3 | {"conv_kernel_size": 3, "conv_act": "gelu"},
        "wide_convolution_of_one_layer": V3 | {"conv_kernel_size": 5, "num_hidden_layers": 1},
        "off": V3 | OFF,
        "biased_types": V3 | {"position_biased_input": True, "type_vocab_size": 3},
        "c2p": V3 | {"pos_att_type": ["c2p"]},
        "unshared_p2c": V3 | {"pos_att_type": ["p2c"], "share_att_key": False},
        "no_terms": V3 | {"pos_att_type": []},
        "old_head": V3 | {"legacy": True, "hidden_act": "gelu_new"},
    },
}
NAMES = [(version, name) for version, cases in CASES.items() for name in cases]
LENGTHS = (20, 13, 4)


def of_transformers(version, fields, seed=0, form="ForMaskedLM", **more):
    """Returns a model with random weights, including norms and biases."""
    torch.manual_seed(seed)
    settings = getattr(transformers, f"Deberta{version}Config")(**SIZES | fields | more)
    theirs = getattr(transformers, f"Deberta{version}{form}")(settings).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


def padded_batch(fields, seed=0):
    """Returns tokens, mask and, if the model has any, token types [3, 20]."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    batch = {"tokens": rng.integers(1, SIZES["vocab_size"], mask.shape) * mask, "mask": mask}
    types = fields.get("type_vocab_size", 0)
    return batch | ({"token_types": rng.integers(0, types, mask.shape)} if types else {})


def run(theirs, batch):
    names = {"tokens": "input_ids", "mask": "attention_mask", "token_types": "token_type_ids"}
    with torch.no_grad():
        return theirs(**{names[key]: torch.tensor(value) for key, value in batch.items()}, output_hidden_states=True)


def assert_near(got, expected, mask, tolerance=1e-5):
    """Compares real positions; padding has other masks in transformers."""
    np.testing.assert_allclose(np.asarray(got)[mask > 0], expected.numpy()[mask > 0], atol=tolerance)


@pytest.mark.parametrize(("version", "name"), NAMES)
def test_it_equals_transformers_and_returns_bit_equal(version, name, tmp_path):
    fields = CASES[version][name]
    theirs, batch = of_transformers(version, fields, seed=len(name)), padded_batch(fields)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, expected = plm_jax.load(tmp_path / "theirs"), run(theirs, batch)
    assert_near(ours.logits(**batch), expected.logits, batch["mask"])
    for got, hidden in zip(ours.hidden_states(**batch), expected.hidden_states, strict=True):
        assert_near(got, hidden, batch["mask"])
    # Without relative attention, transformers has an unused norm of distances.
    unused = 2 * SIZES["hidden_size"] if fields.get("norm_rel_ebd") and not fields["relative_attention"] else 0
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert sum(leaf.size for leaf in jax.tree.leaves(ours.params)) == count - unused
    ours.save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs) and not again.config.legacy
    np.testing.assert_array_equal(run(again, batch).logits, expected.logits)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_relative_positions": 5},
        {"max_relative_positions": 30},
        {"max_relative_positions": 5, "position_biased_input": True},
        {"max_relative_positions": -1},
        {"max_relative_positions": 24},
    ],
)
@pytest.mark.parametrize("form", ["ForMaskedLM", "Model"])
def test_numbers_of_positions_and_of_distances_are_kept(fields, form, tmp_path):
    theirs = of_transformers("", V1 | fields, form=form)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = plm_jax.load(tmp_path / "theirs")
    assert ours.config.max_length == 24
    ours.save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert again.max_position_embeddings == 24
    reach = fields["max_relative_positions"]
    assert again.max_relative_positions in ({-1, 24} if reach in (-1, 24) else {reach})
    decoded = dataclasses.replace(ours.config, head=models.MaskDecoderHead(positions=7))
    assert decoded.max_length == 7


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("form", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_of_tasks_equal_transformers(version, form, tmp_path):
    fields = CASES[version]["both" if version == "" else "v3"]
    more = {} if form == "ForQuestionAnswering" else {"num_labels": 3}
    theirs, batch = of_transformers(version, fields, form=form, **more), padded_batch(fields)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, expected = plm_jax.load(tmp_path / "theirs"), run(theirs, batch)
    got = ours.logits(**batch, head="task")
    if form == "ForQuestionAnswering":
        for column, logits in enumerate((expected.start_logits, expected.end_logits)):
            assert_near(got[..., column], logits, batch["mask"])
    elif form == "ForTokenClassification":
        assert_near(got, expected.logits, batch["mask"])
    else:
        np.testing.assert_allclose(got, expected.logits, atol=1e-5)
    ours.save(tmp_path / "ours", format="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    for name in ("logits", "start_logits"):
        if name in expected:
            np.testing.assert_array_equal(run(again, batch)[name], expected[name])


def test_choices_equal_transformers(tmp_path):
    theirs = of_transformers("V2", V3, form="ForMultipleChoice")
    theirs.save_pretrained(tmp_path / "theirs")
    batch = padded_batch(V3)
    with torch.no_grad():
        expected = theirs(torch.tensor(batch["tokens"])[None], torch.tensor(batch["mask"])[None]).logits
    got = plm_jax.load(tmp_path / "theirs").logits(**batch, head="task")
    np.testing.assert_allclose(np.ravel(got), np.ravel(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "scan"),
    [("v3", True), ("v3", False), ("convolution", True), ("unshared", True)],
)
def test_mask_decoder_equals_last_layer_called_twice(name, scan, tmp_path):
    """The reference calls transformers' last layer with queries of its own; transformers has no mask decoder."""
    fields = CASES["V2"][name]
    theirs, batch = of_transformers("V2", fields, seed=1), padded_batch(fields)
    theirs.save_pretrained(tmp_path / "theirs")
    encoder = plm_jax.load(tmp_path / "theirs")
    head = models.MaskDecoderHead(transform="gelu_exact", bias=True, positions=24)
    model = dataclasses.replace(encoder.config, head=head).with_speed(scan_layers=scan)
    table = np.random.default_rng(0).normal(size=(24, SIZES["hidden_size"])).astype(np.float32)
    params = {**encoder.params, "stack": {**encoder.params["stack"], "position_embedding": table}}
    tokens, mask = torch.tensor(batch["tokens"]), torch.tensor(batch["mask"])
    with torch.no_grad():
        stack, hidden = theirs.deberta.encoder, run(theirs, batch).hidden_states[-2]
        inputs = {
            "attention_mask": stack.get_attention_mask(mask),
            "relative_pos": stack.get_rel_pos(hidden),
            "rel_embeddings": stack.get_rel_embedding(),
        }
        queries = hidden + torch.tensor(table[: tokens.shape[1]])
        for _ in range(2):
            queries, _ = stack.layer[-1](hidden, query_states=queries, **inputs)
        expected = theirs.lm_predictions(queries, theirs.deberta.embeddings.word_embeddings)
    module = registry.build(model)
    assert_near(module.apply({"params": params}, **batch, method="features"), queries, batch["mask"])
    assert_near(module.apply({"params": params}, **batch), expected, batch["mask"])


def test_states_are_those_of_the_encoder_without_the_mask_decoder(tmp_path):
    theirs, batch = microsofts(tmp_path, "position_embeddings") and of_transformers("V2", V3), padded_batch(V3)
    ours, expected = plm_jax.load(tmp_path / "theirs"), run(theirs, batch).hidden_states
    for got, hidden in zip(ours.hidden_states(**batch), expected, strict=True):
        assert_near(got, hidden, batch["mask"])
    assert np.abs(ours.logits(**batch) - run(theirs, batch).logits.numpy()).max() > 0.01
    with pytest.warns(match="transformers has no enhanced mask decoder"):
        ours.save(tmp_path / "ours", format="huggingface")


def microsofts(tmp_path, names):
    """Saves a model of transformers with more tensors, under Microsoft's names."""
    theirs = of_transformers("V2", V3)
    theirs.save_pretrained(tmp_path / "theirs")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "theirs/model.safetensors")
    rng, width = np.random.default_rng(3), SIZES["hidden_size"]
    shapes = {
        "deberta.embeddings.position_embeddings.weight": (24, width),
        "mask_predictions.LayerNorm.weight": (width,),
        "mask_predictions.LayerNorm.bias": (width,),
        "mask_predictions.dense.weight": (width, width),
        "mask_predictions.dense.bias": (width,),
        "mask_predictions.classifier.weight": (1, width),
        "mask_predictions.classifier.bias": (1,),
    }
    more = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items() if names in name}
    save_file(tensors | more, tmp_path / "theirs/model.safetensors", metadata={"format": "pt"})
    return tensors | more


def test_table_of_the_mask_decoder_is_read_and_written(tmp_path):
    from safetensors.numpy import load_file

    tensors = microsofts(tmp_path, "position_embeddings")
    ours = plm_jax.load(tmp_path / "theirs")
    assert isinstance(ours.config.head, models.MaskDecoderHead) and ours.config.num_positions == 24
    ours.save(tmp_path / "ours", format="huggingface")
    written = load_file(tmp_path / "ours/model.safetensors")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(written[name], tensor)


def test_weights_without_an_effect_are_named_when_they_are_left_out(tmp_path):
    """A discriminator's file with the decoder's table, and the norm of distances in a model without distances."""
    import warnings

    microsofts(tmp_path, "")
    with pytest.warns(match=r"does not use are left out: deberta\.embeddings\.position_embeddings\.weight$"):
        ours = plm_jax.load(tmp_path / "theirs")
    assert ours.config.discriminator != models.NoHead() and not isinstance(ours.config.head, models.MaskDecoderHead)
    of_transformers("V2", V3 | OFF).save_pretrained(tmp_path / "off")
    norms = r"deberta\.encoder\.LayerNorm\.bias, deberta\.encoder\.LayerNorm\.weight"
    with pytest.warns(match=rf"does not use are left out: {norms}$"):
        plm_jax.load(tmp_path / "off").save(tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plm_jax.load(tmp_path / "again")


def test_discriminator_equals_its_formula(tmp_path):
    """Reference in torch: the sum with the first token, normalized, a dense layer and one logit."""
    tensors = {name: torch.tensor(tensor) for name, tensor in microsofts(tmp_path, "mask_predictions").items()}
    batch = padded_batch(V3)
    ours = plm_jax.load(tmp_path / "theirs")
    hidden = run(of_transformers("V2", V3), batch).hidden_states[-1]
    of_head = {name.removeprefix("mask_predictions."): tensor for name, tensor in tensors.items()}
    normed = torch.nn.functional.layer_norm(
        hidden + hidden[:, :1], hidden.shape[-1:], of_head["LayerNorm.weight"], of_head["LayerNorm.bias"], 1e-7
    )
    dense = torch.nn.functional.gelu(normed @ of_head["dense.weight"].T + of_head["dense.bias"])
    expected = (dense @ of_head["classifier.weight"].T + of_head["classifier.bias"])[..., 0]
    assert_near(ours.logits(**batch, head="discriminator"), expected, batch["mask"], tolerance=1e-4)


@pytest.mark.parametrize("size", deberta.PUBLISHED)
def test_published_sizes(size):
    """Counts of transformers 5.23 with heads, plus the decoder's 512 absolute positions, which it lacks."""
    model = deberta.model(*deberta.SIZES[size][:5])
    assert sum(map(math.prod, tensor_layout.shapes_of(model).values())) == deberta.PUBLISHED[size][0]
    if size in ("base", "v2-xlarge"):
        with_head = {"base": 139_244_121, "v2-xlarge": 887_085_156}[size]
        assert deberta.PUBLISHED[size][0] == with_head + 512 * model.embedding.width


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("pos_att_type", "c2p|p2p", r"pos_att_type is 'c2p\|p2p': must be"),
        ("conv_kernel_size", 4, "conv_kernel_size is 4: must be an odd number"),
        ("conv_groups", 2, "conv_groups is 2: must be 1"),
        ("position_buckets", 5, "set buckets to an even number"),
        ("norm_rel_ebd", "batch_norm", "norm_rel_ebd is 'batch_norm': must be"),
    ],
)
def test_other_variants_are_rejected(field, value, words):
    with pytest.raises(UserError, match=words):
        families.registered()["deberta-v2"].to_settings({**SIZES, **V3, field: value})


def test_variants_that_compute_the_same_are_exported():
    """Fields without an effect, and the order of the terms, do not matter."""
    model = families.registered()["deberta"].to_settings(SIZES | V1 | {"vocab_size": 37})
    model = dataclasses.replace(model, discriminator=models.NoHead(), norm=models.NormConfig(1e-6, placement="post"))
    position = dataclasses.replace(model.attention.position, terms=("p2c", "c2p"))
    model = dataclasses.replace(model, attention=dataclasses.replace(model.attention, position=position))
    assert families.family_of(model).kind == "deberta"


def test_pairs_limit_positions_to_those_of_the_mask_decoder():
    model = deberta.model(3, 2, 24, 3, 37, 130)
    assert model.num_positions == 130 and model.discriminator_model.num_positions is None


def test_a_convolution_needs_a_layer_before_the_mask_decoder():
    model = deberta.model(2, 1, 24, 3, 37, 130)
    with pytest.raises(UserError, match="a mask decoder replaces the last one"):
        registry.shapes(model)


def test_other_heads_cannot_read_a_mask_decoder():
    model = dataclasses.replace(deberta.model(1, 2, 24, 3, 37, 24), pooler=models.Pooler(2))
    with pytest.raises(UserError, match="the head 'sentence_pair' cannot read the output of a mask decoder"):
        registry.shapes(model)


def test_tokenizer_of_v2_has_the_mask_after_the_pieces(tmp_path):
    """Microsoft's directories contain a spm.model without a mask, and no tokenizer.json."""
    import io

    import sentencepiece

    lines = ["the whale and the ship of the sea", "a captain is at sea with his ship", "from this ship they sing"] * 9
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=writer, vocab_size=40, hard_vocab_limit=False, minloglevel=2,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
        unk_piece="[UNK]",
    )  # fmt: skip
    (tmp_path / "spm.model").write_bytes(writer.getvalue())
    size = sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue()).get_piece_size()
    of_transformers("V2", V3, vocab_size=size + 5).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": false}')
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), plm_jax.load(tmp_path)
    assert theirs.mask_token_id == size
    for line in [*lines[:3], "Thé sea  of captains!", ""]:
        assert ours.vocabulary.encode(line) == theirs(line, add_special_tokens=False)["input_ids"]
    filled = ours.fill("the [MASK] of the sea", top_k=3)
    assert len(filled) == 1
    ours.save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again("the [MASK] sea")["input_ids"] == theirs("the [MASK] sea")["input_ids"]
