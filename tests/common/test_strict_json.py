"""JSON of others: what Python's own reader says, but for what is ambiguous, too large or too deep."""

import json

import pytest

from plm_jax.common import strict_json


@pytest.mark.parametrize("tree", [{}, {"a": [1, -2.5, None, True, {"b": "é\n"}]}, "text", [[[[]]]], 10**40])
def test_valid_json_is_parsed(tree):
    assert strict_json.loads(json.dumps(tree).encode("utf-8")) == tree
    assert strict_json.loads(json.dumps(tree, ensure_ascii=False).encode("utf-8")) == tree


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1, "b": {"a": 1, "c": 2, "c": 2}}', "'c' is repeated in an object"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b"[-Infinity]", "-Infinity is not a JSON value"),
        (b"[-1e999]", "-1e999 is out of the range of floating-point numbers"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "codec can't decode"),
        (b'{"a": "\xff"}', "codec can't decode"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 10**5 + b"1" + b"}" * 10**5, "deeper than 64"),
        (b"[" * 10**6, "deeper than 64"),
        (b"[" + b"0," * 2**22 + b"0]", "more than 4,194,304 values"),
        (b"9" * 5000, "Exceeds the limit"),
        (b"{", "property name"),
        (b"", "Expecting value"),
    ],
)
def test_invalid_json_is_rejected(data, says):
    with pytest.raises(ValueError, match=says):
        strict_json.loads(data)


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(strict_json, "MOST_BYTES", 9)
    assert strict_json.loads(b"123456789") == 123456789
    with pytest.raises(ValueError, match="10 bytes of JSON, more than the limit of 9"):
        strict_json.loads(b"1234567890")
