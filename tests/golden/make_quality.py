"""Writes tests/golden/quality.json.gz: pages, and what the filters of `datatrove` decide about them.

    python -m tests.golden.make_quality

Needs `pip install datatrove==0.10.0 'spacy>=3.8,<3.9'` in an environment of its own. The pages are speeches of the
package's corpus with changes like those that the filters look for; at most `EACH` are taken for each decision.
"""

import collections
import gzip
import json
import pathlib
import random
import re
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
FILE = pathlib.Path(__file__).with_name("quality.json.gz")
EACH = 7
NOTICES = (
    "This site uses cookies, as you know.",
    "Please enable JavaScript to see this.",
    "f(x) { return x; }.",
    "Lorem ipsum dolor sit amet, consectetur.",
    "Please read our Privacy Policy before that.",
    "x" * 1001 + " is a long word.",
    "He said 'this is the end of it'",
)
EXTRAS = ["http://www.example.com/a?b=c", "e.g.", "U.S.", "don't", "it's", "well-known", "a/b", "$5.00", "10%", ":-)"]
EXTRAS += ["<b>", "1,000", "3-4", "Mr.", "can't."]


def with_words(rng: random.Random, text: str, share: float, extras: list[str]) -> str:
    """Inserts extra words behind a share of the words."""
    return " ".join(f"{word} {rng.choice(extras)}" if rng.random() < share else word for word in text.split(" "))


def change(rng: random.Random, text: str) -> str:
    """Returns a page with one of the changes."""
    lines, words, share = text.split("\n"), text.split(), rng.random()
    match rng.randrange(15):
        case 0:
            lines += [rng.choice(lines)] * rng.randint(1, max(1, len(lines) // 2))
        case 1:
            lines = [f"{rng.choice('•-')} {line}" if rng.random() < 0.95 else line for line in lines]
        case 2:
            lines = [line.rstrip(".") + rng.choice(["...", "…"]) if rng.random() < share else line for line in lines]
        case 3:
            return with_words(rng, text, share / 3, rng.choice([["#", "#tag"], ["...", "…"], ["--", "|"]]))
        case 4:
            lines = [line.rstrip(".!?") if rng.random() < share * 2 else line for line in lines]
        case 5:
            size = rng.randint(1, 9)
            lines = [" ".join(words[i : i + size]) for i in range(0, len(words), size)]
        case 6:
            return with_words(rng, text, share / 2, ["1847", "3", "12.50"])
        case 7:
            phrase = words[: rng.randint(2, 12)]
            for _ in range(rng.randint(1, max(2, len(words) // 30))):
                position = rng.randrange(len(words))
                words[position:position] = phrase
            return " ".join(words)
        case 8:
            return "\n\n".join([*lines, *rng.choices(lines, k=rng.randint(1, 3))])
        case 9:
            lines += rng.sample(NOTICES, 2)
            rng.shuffle(lines)
        case 10:
            return re.sub(" ", lambda match: "" if rng.random() < share else " ", text)
        case 11:
            return re.sub(r"\b(the|be|to|of|and|that|have|with)\b", "such", text)
        case 12:
            return " ".join(word[: rng.randint(2, 3)] for word in words)
        case 13:
            return ("\n" * rng.randint(2, 40)).join(lines)
        case _:
            return with_words(rng, text, share / 2, EXTRAS)
    return "\n".join(lines).strip()


def pages(number: int) -> list[str]:
    """Returns texts of 2 to 24 sentences, most of them changed."""
    rng = random.Random(0)
    with gzip.open(ROOT / "plm_jax/data/corpora/sotu.jsonl.gz", "rt") as file:
        speeches = [re.split(r"(?<=[.?!])\s+", json.loads(line)["text"]) for line in file]
    texts = []
    for _ in range(number):
        speech, size = rng.choice(speeches), rng.choice([2, 4, 8, 12, 24])
        start = rng.randrange(len(speech))
        sentences = speech[start : start + size]
        rows = [" ".join(sentences[i : i + 2]) for i in range(0, len(sentences), 2)]
        text = rng.choice(["\n", "\n\n"]).join(rows).strip()
        texts.append(change(rng, text) if rng.random() < 0.9 else text)
    return texts


def main() -> None:
    """Writes the file."""
    from datatrove.data import Document  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline import filters  # pyright: ignore[reportMissingImports]
    from datatrove.utils import text as splitting  # pyright: ignore[reportMissingImports]

    published = {"stop_chars": (".", "'", '"', "!", "?")}
    all_filters = {
        "repetition": filters.GopherRepetitionFilter(),
        "quality": filters.GopherQualityFilter(),
        "fineweb": filters.FineWebQualityFilter(**published),
        "c4": filters.C4QualityFilter(),
        "c4_of_fineweb": filters.C4QualityFilter(filter_no_terminal_punct=False),
    }
    counts: collections.Counter[Any] = collections.Counter()
    rows = []
    for page in pages(3000):
        decisions = {}
        for name, each in all_filters.items():
            document = Document(text=page, id="")
            result = each.filter(document)
            decisions[name] = [None, document.text] if result is True else [result[1], None]
            if not name.startswith("c4"):
                decisions[name] = decisions[name][:1]
        reasons = [(name, decision[0]) for name, decision in decisions.items()]
        if min(counts[reason] for reason in reasons) >= EACH or len(page) > 2500:
            continue
        counts.update(reasons)
        lines = [re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line.strip()) for line in page.splitlines()]
        sentences = [len(splitting.split_into_sentences(line)) if line else 0 for line in lines]
        words = splitting.split_into_words(page)
        rows.append({"text": page, "words": words, "sentences": sentences, "decisions": decisions})
    print(len(rows), counts)
    with FILE.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(json.dumps(rows, ensure_ascii=False).encode())


if __name__ == "__main__":
    main()
