"""Reading untrusted files takes bounded memory and time."""

import io
import itertools

import pytest

from plm_jax.common import bounded


@pytest.mark.parametrize("line", [b"\n", b" \t\n"])
def test_too_many_consecutive_blank_lines_are_rejected(line):
    endless = itertools.chain([b"a\n", *[b"\n"] * 9, b"b\n"], itertools.repeat(line))

    class File:
        def readline(self, size):
            return next(endless)

    read = []
    with pytest.raises(bounded.BlankLinesError, match="blank lines in a row"):
        read.extend(bounded.lines(File(), 100))
    assert len(read) == 11 + bounded.MOST_BLANK_LINES


def test_blank_lines_between_others_are_read(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_BLANK_LINES", 3)
    text = "a\n" + "\n" * 3 + "b\n" + "\n" * 3
    assert "".join(bounded.lines(io.StringIO(text), 10)) == text
