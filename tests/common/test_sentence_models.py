"""Models of SentencePiece's that its library would crash on are refused; those that it trains are taken."""

import io

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from plm_jax.common import sentence_models

TEXTS = [f"The state of the Union {i}: ½ of ＦＵＬＬ and café" for i in range(200)]


@pytest.fixture(scope="module", params=["nmt_nfkc", "nfkc_cf", "identity"])
def data(request):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=written,
        vocab_size=90,
        hard_vocab_limit=False,
        normalization_rule_name=request.param,
        minloglevel=2,
    )
    return written.getvalue()


def changed(data, change):
    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    change(model)
    return model.SerializeToString()


def test_what_the_library_trains_is_taken(data):
    assert sentence_models.parse(data) == sentencepiece_model_pb2.ModelProto.FromString(data)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    assert sentence_models.processor(data).encode(TEXTS[0]) == theirs.encode(TEXTS[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.ClearField("pieces"),
        lambda model: model.pieces.add(piece="", score=0.0),
        lambda model: model.pieces.append(model.pieces[9]),
        lambda model: model.pieces.pop(0),
        lambda model: setattr(model.pieces[9], "score", float("nan")),
        lambda model: setattr(model.pieces[9], "type", model.pieces[9].BYTE),
    ],
)
def test_invalid_pieces_are_rejected(data, change):
    with pytest.raises(ValueError, match="piece"):
        sentence_models.parse(changed(data, change))


@pytest.mark.parametrize("part", [b"", bytes(99), b"no model", b"\x0a\x00" * 5 * 10**6])
def test_non_model_files_are_rejected(part):
    with pytest.raises(ValueError, match=r"protocol buffer|pieces"):
        sentence_models.parse(part)


def unit(offset, label=0, has_leaf=False):
    return (offset << 10 | has_leaf << 8 | label).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("trie", "texts", "says"),
    [
        (unit(2**20) + bytes(1020), b"a\0", "outside of its trie"),
        (unit(256) + bytes(1020), b"a\0", "outside of its trie"),
        # A byte "a" leads to a unit with a leaf, whose value is a place beyond the texts.
        (unit(1) + bytes(4 * 95) + unit(0, 97) + bytes(4 * 159), b"a\0", None),
        (
            unit(0) + bytes(4 * 96) + unit(225, 97, True) + (7).to_bytes(4, "little") * 158,
            b"a\0",
            "outside of its texts",
        ),
        (bytes(1024), b"", "is truncated"),
        (bytes(1024), b"no end", "is truncated"),
        (bytes(1020), b"a\0", "is truncated"),
    ],
)
def test_out_of_range_normalizer_rules_are_rejected(trie, texts, says):
    rules = len(trie).to_bytes(4, "little") + trie + texts
    if says is None:
        sentence_models.check_rules(rules)
    else:
        with pytest.raises(ValueError, match=says):
            sentence_models.check_rules(rules)
