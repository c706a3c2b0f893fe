"""Entities of tags such as `B-PER`, `I-PER` and `O`."""

from collections.abc import Sequence

Entity = tuple[str, int, int]


def has_entities(labels: Sequence[str]) -> bool:
    """Whether all tags of a set say where entities begin and go on."""
    return all(label == "O" or label[:2] in ("B-", "I-") for label in labels)


def entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """The type, the first and the last word of each entity of a sentence.

    An `I-` after `O` or after another type begins one, as conlleval has it and seqeval by default; if `strict`, as
    seqeval with `mode="strict"` and the scheme IOB2, it is none.
    """
    found: list[Entity] = []
    open_type: str | None = None
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        goes_on = prefix == "I" and kind == open_type
        if goes_on:
            found[-1] = (kind, found[-1][1], place)
        elif prefix == "B" or (prefix == "I" and not strict):
            found.append((kind, place, place))
            open_type = kind
        else:
            open_type = None
    return found


def scores(truth: Sequence[Sequence[str]], told: Sequence[Sequence[str]], strict: bool = False) -> dict[str, float]:
    """Returns precision, recall and F1 of the entities of all sentences, 0 if there are none."""
    right, wanted, found = 0, 0, 0
    for of_truth, of_told in zip(truth, told, strict=True):
        pair = [set(entities(tags, strict)) for tags in (of_truth, of_told)]
        right, wanted, found = right + len(pair[0] & pair[1]), wanted + len(pair[0]), found + len(pair[1])
    precision, recall = (right / number if number else 0.0 for number in (found, wanted))
    f1 = 2 * right / (wanted + found) if right else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}
