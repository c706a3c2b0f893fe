"""Where sentences begin."""

import itertools
import re

# Quantifiers that give nothing back (`++`, `*+`) keep an end and its closers together, and each search linear.
_CLOSERS = r"[\"'”’»)\]」』）]*+"
# Han, kana, Hangul, full-width letters and digits, and what opens a quotation or a bracket among them.
_CJK = (
    r"[\u3041-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    r"\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9d\U00020000-\U0003ffff〈《「『【〔（]"
)
_REST = rf"[.!?…。！？]*+{_CLOSERS}"
# It begins with a set of characters, which `re` looks for faster than for anything else; only the first of a run may.
_END = re.compile(
    rf"[.!?…。！？](?<![.!?…。！？]{{2}})(?:{_REST}(?=\s++\S)"
    rf"|(?:(?<=[。！？])|[.!?…]*+[。！？]){_REST}(?=\S)"
    rf"|(?:(?<=[!?])|[.…]*+[!?]){_REST}(?={_CJK})"
    rf"|(?<={_CJK}\.){_CLOSERS}(?={_CJK}))"
)
_BLANK_LINE = re.compile(r"\n[^\S\n]*+\n\s*+")


def boundaries(text: str) -> list[int]:
    """The characters at which a sentence other than the first begins, rising.

    A sentence ends at a run of . ! ? … 。！？ with its closing quotes and brackets: where white space follows; always
    if 。！ or ？ is in it; directly before Chinese, Japanese or Korean text if ! or ? is (`Hi!你好`); there, after one
    full stop, too, if such text also goes before it (`来了.我走`, but neither `3.5版` nor `Dr.王`). It ends at a blank
    line as well. White space between two sentences belongs to the later one. A rule this simple also ends one after an
    abbreviation. At the end of the text no sentence begins.
    """
    cuts = {match.end() for match in _END.finditer(text)}
    for match in _BLANK_LINE.finditer(text):
        begin = match.start()
        while begin and text[begin - 1].isspace():
            begin -= 1
        if begin and match.end() < len(text):
            cuts.add(begin)
    return sorted(cuts)


def split(text: str) -> list[str]:
    """The sentences of `text`; joined they are `text`."""
    cuts = [0, *boundaries(text), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts)]
