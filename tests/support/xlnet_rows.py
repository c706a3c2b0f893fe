"""XLNet's rows, written token by token from zihangdai/xlnet, data_utils.py; random numbers are arguments.

Sentences are told apart by ids that alternate, as in the source: a sentence begins where the id changes.
"""

import numpy as np

GRAM_WEIGHTS = [1 / n for n in range(1, 6)]


def flatten(documents, separator):
    """Joins (tokens, sentence starts) of documents to tokens and alternating sentence ids, two lists."""
    tokens, ids, current = [], [], True
    for words, starts in documents:
        for position, word in enumerate(words):
            current = current != (position in starts)
            tokens.append(word)
            ids.append(current)
        if separator is not None:
            current = not current
            tokens.append(separator)
            ids.append(current)
    return tokens, ids


def split_pair(ids, begin, room, coin, cut, place):
    """Returns (start, stop) of both segments that follow `begin` (`_split_a_and_b`)."""
    size, end, cuts = len(ids), begin + 1, []
    while end < size:
        if ids[end] != ids[end - 1]:
            if end - begin >= room:
                break
            cuts.append(end)
        end += 1
    chosen = cuts[int(cut * len(cuts))] if cuts else end
    if cuts and coin >= 0.5:
        first, second = [begin, chosen], [chosen, end]
    else:
        least = max(1, room - (chosen - begin))
        low = int(place * (size - least))
        high = low + least
        while low > 0 and ids[low - 1] == ids[low]:
            low -= 1
        while high < size - 1 and ids[high - 1] == ids[high]:
            high += 1
        first, second = [begin, chosen], [low, high]
    while first[1] - first[0] + second[1] - second[0] > room:
        longer = first if first[1] - first[0] > second[1] - second[0] else second
        longer[1] -= 1
    return first, second


def choose_gram(number):
    """Returns the length whose share of the interval [0, 1) contains a number."""
    number *= sum(GRAM_WEIGHTS)
    for gram, weight in enumerate(GRAM_WEIGHTS, 1):
        if number < weight:
            return gram
        number -= weight
    return len(GRAM_WEIGHTS)


def end_of_words(starts, begin, gram, most):
    """Returns the end of `gram` words, or of fewer with at most `most` tokens; `len(starts)` if there is none."""
    ends = [token for token in range(begin + 1, len(starts)) if starts[token]][:gram]
    fitting = [end for end in ends if end - begin <= most]
    is_whole = len(ends) == gram or len(fitting) < len(ends)
    return fitting[-1] if fitting and is_whole else len(starts)


def choose_tokens(starts, goal, draws, order, by_words=False):
    """Returns whether each token of half a row is chosen, and the number chosen in spans (`_sample_mask`).

    Args:
      starts: whether each token begins a word.
      draws: pairs of numbers in [0, 1), for the length of a span and its place.
      order: tokens in the order in which single ones are chosen at the end.
      by_words: whether the token at the end of a span is tested instead, and spans are shortened to the goal.
    """
    size, chosen, cursor = len(starts), [False] * len(starts), 0
    for for_gram, for_place in draws:
        if cursor >= size or sum(chosen) >= goal:
            break
        gram = min(choose_gram(for_gram), goal - sum(chosen))
        before = int(for_place * gram * 6)
        begin = cursor + before
        while begin < size and not starts[begin]:
            begin += 1
        if begin >= size:
            break
        if by_words:
            end = end_of_words(starts, begin, gram, goal - sum(chosen))
        else:
            end, grams = begin + 1, 1
            while end < size:
                if starts[begin]:  # The source tests this token instead of `end`.
                    grams += 1
                    if grams > gram:
                        break
                end += 1
        if end >= size:
            break
        chosen[begin:end] = [True] * (end - begin)
        cursor = end + gram * 6 - before
    in_spans = sum(chosen)
    for token in order:
        if sum(chosen) < goal and not chosen[token]:
            chosen[token] = True
    return chosen, in_spans


def hidden_pairs(is_chosen, is_special, permutation):
    """Returns whether query i of half a row must not see key j, bool [H, H] (`_local_perm`).

    Args:
      permutation: random order of the first `len(permutation)` tokens, repeated in every part of the half.
    """
    size, part = len(is_chosen), len(permutation)
    place = [token // part * part + permutation[token % part] for token in range(size)]
    keys, queries = [], []
    for token in range(size):
        key = place[token] if is_chosen[token] or is_special[token] else -1
        keys.append(key)
        queries.append(key if is_chosen[token] and not is_special[token] else key + 1)
    return np.array([[key >= 0 and query <= key for key in keys] for query in queries])


def hidden_in_row(first, second):
    """Returns whether query i of a row must not see key j, for the pairs of both halves."""
    return np.block(
        [[first, np.ones((len(first), len(second)), bool)], [np.zeros((len(second), len(first)), bool), second]]
    )
