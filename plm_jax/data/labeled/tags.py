"""Entities of tags such as `B-PER`, `I-PER` and `O`."""

from collections.abc import Sequence

Entity = tuple[str, int, int]


def has_entities(labels: Sequence[str]) -> bool:
    """Whether every tag is `O` or begins with `B-` or `I-`."""
    return all(label == "O" or label[:2] in ("B-", "I-") for label in labels)


def entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """Returns three values per entity of a sentence: its type, and the indices of its first and last word.

    A tag `I-…` that does not continue an entity of its type begins one, as in conlleval and by default in seqeval. If
    `strict`, it belongs to no entity, as in seqeval with `mode="strict"` and the scheme IOB2.
    """
    spans: list[Entity] = []
    open_type: str | None = None
    for position, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        continues = prefix == "I" and kind == open_type
        if continues:
            spans[-1] = (kind, spans[-1][1], position)
        elif prefix == "B" or (prefix == "I" and not strict):
            spans.append((kind, position, position))
            open_type = kind
        else:
            open_type = None
    return spans


def scores(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], strict: bool = False
) -> dict[str, float]:
    """Returns precision, recall and F1 of the entities of all sentences; a metric that would divide by 0 is 0."""
    num_correct, num_true, num_predicted = 0, 0, 0
    for true_tags, predicted_tags in zip(truth, predicted, strict=True):
        true_entities, predicted_entities = (set(entities(tags, strict)) for tags in (true_tags, predicted_tags))
        num_correct += len(true_entities & predicted_entities)
        num_true += len(true_entities)
        num_predicted += len(predicted_entities)
    precision, recall = (num_correct / number if number else 0.0 for number in (num_predicted, num_true))
    f1 = 2 * num_correct / (num_true + num_predicted) if num_correct else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}
