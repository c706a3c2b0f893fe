"""Held-out rows of a file without its own validation rows, computed from all groups at once."""

import collections
import hashlib
import re
import unicodedata
from fractions import Fraction


def normalized(text):
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).strip()


def share(group):
    """Returns the hash of a group, as a fraction of all hashes."""
    return Fraction(int(hashlib.blake2b(normalized(group).encode(), digest_size=8).hexdigest(), 16), 2**64)


def held_out(groups, fraction):
    """Returns the name of the rule and whether each row is held out, from the groups of the rows."""
    sizes = collections.Counter(map(normalized, groups))
    in_order = sorted(sizes, key=share)
    chosen = {group for group in in_order if share(group) < Fraction(fraction)}
    rule = "hash"
    if fraction == 0 or len(sizes) < 2:
        chosen, rule = set(), "none"
    elif sum(sizes[group] for group in chosen) < 20:
        for group in in_order:
            rows = sum(sizes[one] for one in chosen)
            if group in chosen:
                continue
            if rows >= 20 or (chosen and rows + sizes[group] > len(groups) / 10):
                break
            chosen.add(group)
            rule = "top-up"
    return rule, [normalized(group) in chosen for group in groups]
