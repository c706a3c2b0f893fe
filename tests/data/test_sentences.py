"""Ends of sentences, written out and by the rule applied one character at a time."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plm_jax.data.vocabularies import sentences

ENDS, WIDE, CLOSERS = ".!?…。！？", "。！？", "\"'”’»)]」』）"
# Samples of Chinese, Japanese and Korean text.
CJK = "你好版ひカ안Ａ１「（"


def by_hand(text):
    """Applies the documented rule one character at a time."""
    cuts, here = set(), 0
    while here < len(text):
        begin = here
        while here < len(text) and text[here] in ENDS:
            here += 1
        run = text[begin:here]
        if not run:
            here += 1
            continue
        after = here
        while after < len(text) and text[after] in CLOSERS:
            after += 1
        rest = text[after:]
        if not rest.strip():
            continue
        single = run == "." and begin and text[begin - 1] in CJK
        before_cjk = rest[0] in CJK and (single or "!" in run or "?" in run)
        if rest[0].isspace() or before_cjk or set(run) & set(WIDE):
            cuts.add(after)
    here = 0
    while here < len(text):
        end = here
        while end < len(text) and text[end].isspace():
            end += 1
        if 0 < here < end < len(text) and text[here:end].count("\n") > 1:
            cuts.add(here)
        here = max(end, here + 1)
    return sorted(cuts)


@pytest.mark.parametrize(
    "parts",
    [
        ["Hi!", "你好"],
        ["Hi!?)", "（笑）"],
        ["真的?！", "你好"],
        ["真的！?", "你好。…", "再见"],
        ["好吗?", "「好」"],
        ["すごい!", "カメラ"],
        ["정말?", "안녕"],
        ["来了.", "我走了.)", "他也走"],
        ["是!", "１２"],
        ["你好！", "hello?"],
        ["3.5版"],
        ["Dr.王和Mr.陈"],
        ["等等...好"],
        ["他…来"],
        ["你好!hello"],
        ["wow!=是"],
        ["「是！」"],
        ["好。！ \n"],
        ["白日依山盡，黃河入海流。", "欲窮千里目，更上一層樓！", "誰知？", "「盤中餐。」", "粒粒皆辛苦"],
        ["One.", " Two!", " Three?", " Four…", " Five"],
        ["At 3.5 % (yes.)", " He said “no.”", " Then."],
        ["Title", "\n\nText on\ntwo lines.\n"],
    ],
)
def test_texts_are_split_into_sentences(parts):
    assert sentences.split("".join(parts)) == parts


@given(st.text(ENDS + CLOSERS[:6] + CJK + "ab3 ,\n\t\r\x85\u00a0", max_size=40))
@example("a \n \n.")
@example("好。！ ")
@example("。.!)你")
@example("a!\n\n你.你")
def test_the_rule_is_the_documented_one(text):
    assert sentences.boundaries(text) == by_hand(text)


@pytest.mark.parametrize("part", ["!", "…", "\n", "a.) ", "。", ")"])
def test_long_runs_are_searched_once(part):
    """A search that starts again at each character would take minutes."""
    text = part * 200_000
    assert len(sentences.boundaries(text + "a")) <= 200_000
