"""Text of HTML pages, and detection of pages for which a parser would need minutes or gigabytes."""

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
# `_FLAT`: elements that never nest: void ones, and those that the next one or the end of the parent closes.
# `_FORMATTING`: elements that a parser reopens in the following elements if they are not closed.
# `_RAW`: elements whose content is not markup, except in SVG and MathML.
# `_HTML`: elements that end SVG or MathML, or contain HTML in them.
_LINES = _NAMES.split("\n")
_FLAT, _FORMATTING, _RAW, _HTML = (
    frozenset(" ".join(_LINES[first:last]).split()) for first, last in ((1, 3), (3, 4), (4, 5), (5, 8))
)
# A tag, closed or not. Quoted attributes may contain ">". A match covers everything that a parser would consume, which
# makes the time linear.
_TAG = re.compile(r"""<(!--|(/?)([a-zA-Z][^\s/>]*+)(?:[^>=]|=\s*+(?:"[^"]*+"|'[^']*+')?)*+)""")
_QUOTED = re.compile(r"""=\s*+(?:"[^"]*+"|'[^']*+')""")
_ATTRIBUTE = re.compile(r"[\s/]+")
_COMMENT_END = re.compile(r"--!?>")
# Largest numbers of attributes of a tag (parsers compare each with all others), of reopened elements (each needs
# memory) and of visited open elements.
_MAX_ATTRIBUTES, _MAX_REOPENED, _MAX_VISITED = 2**12, 2**20, 2**25


def text(html: str) -> str:
    """Returns the visible text of a page with one line per block, like the text in a WET file."""
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(html, preserve_formatting=True, list_bullets=False, alt_texts=False)


def is_nested(html: str, limit: int) -> bool:
    """Whether a page is too expensive to parse.

    A page is too expensive if its elements are nested more than `limit` deep, if a tag has too many attributes, or if a
    parser would visit or reopen too many open elements. Runs in linear time. An element without an end tag counts as
    open until the end of the page, except for elements that never nest (`_FLAT`).
    """
    if html.count("<") <= limit and len(html) <= _MAX_ATTRIBUTES:
        return False
    opened: collections.Counter[str] = collections.Counter()
    depth = formatting = visited = reopened = position = 0
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
        visited, reopened = visited + depth, reopened + formatting
        if depth > limit or visited > _MAX_VISITED or reopened > _MAX_REOPENED:
            return True
        if len(tag[0]) > _MAX_ATTRIBUTES and len(_ATTRIBUTE.findall(_QUOTED.sub("", tag[0]))) > _MAX_ATTRIBUTES:
            return True
    return False


def _end(html: str, name: str, tag: re.Match[str]) -> int:
    """Returns the position of the end tag of an element with raw content, or of the end of a comment; -1 if absent."""
    ending = re.compile(f"</{re.escape(name)}", re.IGNORECASE) if name else _COMMENT_END
    match = ending.search(html, tag.end() if name else tag.start() + len("<!"))
    return match.start() if match else -1
