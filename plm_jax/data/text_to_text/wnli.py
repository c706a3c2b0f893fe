"""WNLI as pronoun resolution: finds the pronoun in the premise, and the noun that replaces it in the hypothesis.

Raffel et al. 2020 (arXiv:1910.10683, appendix B) use this form for evaluation only; the search follows `wnli_simple` in
google-research/text-to-text-transfer-transformer, `t5/data/preprocessors.py`.
"""

import re
from collections.abc import Sequence

from plm_jax.common.errors import UserError

_PRONOUNS = frozenset({"he", "she", "they", "it", "her", "his", "their", "them", "him"})
_ARTICLES = ("a", "an", "the")
_PUNCTUATION = (".", ",", "?", "!")


def resolve(premise: str, hypothesis: str) -> tuple[str, str]:
    """Returns the premise with its pronoun between asterisks, and the noun that replaces the pronoun in the hypothesis.

    The noun is spelled as in the hypothesis. If the premise has several pronouns, chooses the pronoun with the most
    neighboring words that are also in the hypothesis. If no neighboring word is in the hypothesis, the noun is empty.

    Raises:
      UserError: the premise has no pronoun, or the noun cannot be found in the hypothesis as it is written.
    """
    words, claim = _words(premise), _words(hypothesis)
    pronouns = [i for i, word in enumerate(words) if word in _PRONOUNS]
    if not pronouns:
        raise UserError(f"no pronoun in the premise '{premise[:60]}': fix or remove this row")
    pronoun = max(pronouns, key=lambda i: sum(_matches(words, i, claim)))
    return _marked(premise, pronoun), _as_written(_noun(words, pronoun, claim), hypothesis)


def _words(text: str) -> list[str]:
    """Returns the words of a text in lower case, each without a punctuation mark at its end."""
    words = (re.sub(r"[.,?!]$", "", word) for word in text.strip().lower().split(" "))
    return [word for word in words if word]


def _matches(words: Sequence[str], pronoun: int, claim: Sequence[str]) -> tuple[int, int]:
    """Returns the number of words directly before the pronoun that are also in the claim, and of those after it."""
    return _shared(words[:pronoun][::-1], claim[::-1]), _shared(words[pronoun + 1 :], claim)


def _shared(words: Sequence[str], claim: Sequence[str]) -> int:
    text, count = " ".join(claim), 0
    while count < len(words) and " ".join(words[: count + 1]) in text:
        count += 1
    return count


def _noun(words: Sequence[str], pronoun: int, claim: Sequence[str]) -> str:
    """Returns the text of the claim that stands for the pronoun, or "" if there is none.

    The neighbors of the pronoun are the words before and after it that are also in the claim (`_matches`). The result
    is the text of the claim between the neighbors. If there is none, it is the text before the neighbors that follow
    the pronoun, or else the text after the neighbors that precede the pronoun.
    """
    before, after = _matches(words, pronoun, claim)
    if not before + after:
        return ""
    earlier, later = words[pronoun - before : pronoun], words[pronoun + 1 : pronoun + 1 + after]
    for pattern in ([*earlier, "(.+)", *later], ["^(.+)", *later], [*earlier, "(.+)$"]):
        # Not escaped, as in T5, since escaping changes the nouns.
        if match := re.search(" ".join(pattern), " ".join(claim)):
            return match.group(1)
    return ""


def _as_written(noun: str, hypothesis: str) -> str:
    """Returns a noun phrase as it is written in the hypothesis, without punctuation, `'` or `'s` at its end.

    Words before the articles of the phrase are dropped. Raises `UserError` if the hypothesis lacks the phrase.
    """
    words = noun.split(" ")
    words = words[max((words.index(article) for article in _ARTICLES if article in words), default=0) :]
    match = re.search(" ".join(re.escape(word) + "[.,?!]?" for word in words), hypothesis, re.IGNORECASE)
    if not match:
        raise UserError(f"cannot find '{noun}' in the hypothesis '{hypothesis[:60]}': fix or remove this row")
    noun = match.group()
    noun = noun[:-1] if noun.endswith(_PUNCTUATION) else noun
    return noun.removesuffix("'") if noun.endswith("'") else noun.removesuffix("'s")


def _marked(premise: str, pronoun: int) -> str:
    words = premise.split(" ")
    word = words[pronoun]
    words[pronoun] = f"*{word[:-1]}* {word[-1]}" if word.endswith(_PUNCTUATION) else f"*{word}*"
    return " ".join(words)
