"""The text of HTML pages, and which of them are made, or broken, so as to take a parser minutes and gigabytes."""

import collections
import re

_NAMES = """
area base br col embed hr img input link meta param source track wbr a p li dt dd tr td th thead tbody tfoot caption
colgroup option optgroup rb rp rt rtc html head body
b big code em font i nobr s small strike strong tt u
script style textarea title xmp iframe noembed noframes
blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta nobr ol p pre
ruby s small span strong strike sub sup table tt u ul var b big font foreignobject desc title mi mo mn ms mtext
annotation-xml
"""
# What holds none, and what the next of them, or its parent's end, closes: however many there are, they do not lie in
# each other. What is opened anew in what follows where it was not closed. What holds no markup, but for that within SVG
# and MathML. What these end with, or have HTML in.
_LINES = _NAMES.split("\n")
_FLAT, _FORMATTING, _RAW, _HTML = (
    frozenset(" ".join(_LINES[first:last]).split()) for first, last in ((1, 3), (3, 4), (4, 5), (5, 8))
)
# A tag, closed or not, with attributes in which quotes may hold its end; each match is all that a parser takes, so that
# time is linear.
_TAG = re.compile(r"""<(!--|(/?)([a-zA-Z][^\s/>]*+)(?:[^>=]|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)""")
_QUOTED = re.compile(r"""=\s*+(?:"[^"]*+"|'[^']*+')""")
_ATTRIBUTE = re.compile(r"[\s/]+")
_COMMENT_END = re.compile(r"--!?>")
# Most attributes of a tag, each of which is compared with all; elements that are opened anew, each of which takes
# memory; and open elements that are looked through.
_ATTRIBUTES, _REOPENED, _LOOKS = 2**12, 2**20, 2**25


def text(html: str) -> str:
    """The visible text of a page, a line a block, like that of a WET file."""
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(html, preserve_formatting=True, list_bullets=False, alt_texts=False)


def is_nested(html: str, limit: int) -> bool:
    """Whether elements lie more than `limit` deep in each other, or make a parser work and hold as much as such do.

    Linear in time. What was not closed counts as deep as a parser may have it.
    """
    if html.count("<") <= limit and len(html) <= _ATTRIBUTES:
        return False
    opened: collections.Counter[str] = collections.Counter()
    depth = formatting = looks = reopened = position = 0
    is_foreign = False
    for tag in _TAG.finditer(html):
        if tag.start() < position:
            continue
        name, closes = (tag[3] or "").lower(), bool(tag[2])
        is_foreign = (is_foreign or name in ("svg", "math")) and name not in _HTML
        if not name or (name in _RAW and not closes and not is_foreign):
            position = _end(html, name, tag)
            if position < 0:
                break
        elif closes:
            was_open = opened[name] > 0
            opened[name] -= was_open
            depth, formatting = depth - was_open, formatting - (was_open and name in _FORMATTING)
        elif name not in _FLAT and not (is_foreign and tag[0].endswith("/")):
            opened[name] += 1
            depth, formatting = depth + 1, formatting + (name in _FORMATTING)
        looks, reopened = looks + depth, reopened + formatting
        if depth > limit or looks > _LOOKS or reopened > _REOPENED:
            return True
        if len(tag[0]) > _ATTRIBUTES and len(_ATTRIBUTE.findall(_QUOTED.sub("", tag[0]))) > _ATTRIBUTES:
            return True
    return False


def _end(html: str, name: str, tag: re.Match[str]) -> int:
    """Where a comment, or the element of a name that holds no markup, ends; -1: nowhere."""
    ending = re.compile(f"</{re.escape(name)}", re.IGNORECASE) if name else _COMMENT_END
    found = ending.search(html, tag.end() if name else tag.start() + len("<!"))
    return found.start() if found else -1
