"""Splitting of text into sentences."""

import itertools
import re

# Possessive quantifiers (`++`, `*+`) keep an end and its closing quotes together, and every search linear.
_CLOSERS = r"[\"'”’»)\]」』）]*+"
# Han, kana, Hangul, full-width letters and digits, and their opening quotes and brackets.
_CJK = (
    r"[\u3041-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    r"\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9d\U00020000-\U0003ffff〈《「『【〔（]"
)
_REST = rf"[.!?…。！？]*+{_CLOSERS}"
# The pattern begins with a set of characters, the fastest search of `re`; only the first character of a run matches.
_END = re.compile(
    rf"[.!?…。！？](?<![.!?…。！？]{{2}})(?:{_REST}(?=\s++\S)"
    rf"|(?:(?<=[。！？])|[.!?…]*+[。！？]){_REST}(?=\S)"
    rf"|(?:(?<=[!?])|[.…]*+[!?]){_REST}(?={_CJK})"
    rf"|(?<={_CJK}\.){_CLOSERS}(?={_CJK}))"
)
_BLANK_LINE = re.compile(r"\n[^\S\n]*+\n\s*+")


def boundaries(text: str) -> list[int]:
    """Returns the sorted offsets, in characters, at which all sentences except the first begin.

    A sentence ends after a run of . ! ? … 。！？ and the closing quotes and brackets that follow, in these cases:

    - White space follows.
    - The run contains 。！ or ？.
    - The run contains ! or ?, and Chinese, Japanese or Korean text follows directly (`Hi!你好`).
    - The run is a single full stop between Chinese, Japanese or Korean text (`来了.我走`, but not `3.5版` or `Dr.王`).

    A sentence also ends at a blank line. White space between two sentences belongs to the later sentence. The rules are
    simple and also end a sentence after an abbreviation. No sentence begins at the end of the text.
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
    """Splits a text into sentences. Their concatenation is the text; an empty text is one empty sentence."""
    cuts = [0, *boundaries(text), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts)]
