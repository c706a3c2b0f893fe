"""WNLI as pronoun resolution: which pronoun of the premise the hypothesis writes out, and as which noun.

Raffel et al. 2020 (arXiv:1910.10683, appendix B) recast the task so, for evaluation only; the search is that of
`wnli_simple` in google-research/text-to-text-transfer-transformer, `t5/data/preprocessors.py`.
"""

import re
from collections.abc import Sequence

from plm_jax.common.errors import UserError

_PRONOUNS = frozenset({"he", "she", "they", "it", "her", "his", "their", "them", "him"})
_ARTICLES = ("a", "an", "the")
_MARKS = (".", ",", "?", "!")


def resolve(premise: str, hypothesis: str) -> tuple[str, str]:
    """The premise with its pronoun between asterisks, and the noun as the hypothesis writes it.

    The pronoun is the one whose neighbours in the premise are found in the hypothesis furthest.

    Raises:
      UserError: the premise has no pronoun; what stands in its place is not found in the hypothesis.
    """
    words, claim = _words(premise), _words(hypothesis)
    places = [i for i, word in enumerate(words) if word in _PRONOUNS]
    if not places:
        raise UserError(f"no pronoun in the premise '{premise[:60]}': WNLI asks what one stands for")
    place = max(places, key=lambda i: sum(_matches(words, i, claim)))
    return _marked(premise, place), _as_written(_noun(words, place, claim), hypothesis)


def _words(text: str) -> list[str]:
    """Words in lower case, without the last mark of each."""
    words = (re.sub(r"[.,?!]$", "", word) for word in text.strip().lower().split(" "))
    return [word for word in words if word]


def _matches(words: Sequence[str], place: int, claim: Sequence[str]) -> tuple[int, int]:
    """How many words right before `place`, and right after, are also in the claim, one after the other."""
    return _shared(words[:place][::-1], claim[::-1]), _shared(words[place + 1 :], claim)


def _shared(words: Sequence[str], claim: Sequence[str]) -> int:
    text, count = " ".join(claim), 0
    while count < len(words) and " ".join(words[: count + 1]) in text:
        count += 1
    return count


def _noun(words: Sequence[str], place: int, claim: Sequence[str]) -> str:
    """What the claim has between the pronoun's neighbours; or before the later ones, or after the earlier ones."""
    before, after = _matches(words, place, claim)
    if not before + after:
        return ""
    earlier, later = words[place - before : place], words[place + 1 : place + 1 + after]
    for pattern in ([*earlier, "(.+)", *later], ["^(.+)", *later], [*earlier, "(.+)$"]):
        # Not escaped, as T5's are not, or other nouns would be found.
        if found := re.search(" ".join(pattern), " ".join(claim)):
            return found.group(1)
    return ""


def _as_written(noun: str, hypothesis: str) -> str:
    """The noun from its last article on, in the hypothesis's letters, without a last mark and possessive."""
    words = noun.split(" ")
    words = words[max((words.index(article) for article in _ARTICLES if article in words), default=0) :]
    found = re.search(" ".join(re.escape(word) + "[.,?!]?" for word in words), hypothesis, re.IGNORECASE)
    if not found:
        raise UserError(f"cannot find '{noun}' in the hypothesis '{hypothesis[:60]}': mend or remove the row")
    noun = found.group()
    noun = noun[:-1] if noun.endswith(_MARKS) else noun
    return noun.removesuffix("'") if noun.endswith("'") else noun.removesuffix("'s")


def _marked(premise: str, place: int) -> str:
    words = premise.split(" ")
    word = words[place]
    words[place] = f"*{word[:-1]}* {word[-1]}" if word.endswith(_MARKS) else f"*{word}*"
    return " ".join(words)
