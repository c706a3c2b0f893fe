"""MinHash finds near-duplicates at the rate of its theoretical curve."""

import numpy as np
import pytest

from plm_jax.cleaning import minhash


def pair(rng: np.random.Generator, size: int, shared: int) -> tuple[str, str]:
    """Returns two texts of `size` distinct words that share some: Jaccard shared / (2 size - shared)."""
    words = [f"w{number}" for number in rng.choice(10**9, 2 * size - shared, replace=False)]
    first, second = words[:size], words[size - shared :]
    return " ".join(rng.permutation(first)), " ".join(rng.permutation(second))


@pytest.mark.parametrize("size, shared", [(90, 60), (85, 70), (90, 80), (95, 90)])
def test_near_duplicates_are_found_at_expected_rate(size, shared):
    bands, rows, pairs = 14, 8, 250
    similarity = shared / (2 * size - shared)
    rng = np.random.default_rng(size)
    hashes = minhash.Hashes(bands, rows, words=1, seed=0)
    matches, agreeing = 0, []
    for _ in range(pairs):
        first, second = pair(rng, size, shared)
        matches += not set(hashes.bands(first)).isdisjoint(hashes.bands(second))
        agreeing.append((hashes.signature(first) == hashes.signature(second)).mean())
    expected = 1 - (1 - similarity**rows) ** bands
    assert abs(matches / pairs - expected) < 4 * (expected * (1 - expected) / pairs) ** 0.5
    error = (similarity * (1 - similarity) / (bands * rows) / pairs) ** 0.5
    assert abs(np.mean(agreeing) - similarity) < 4 * error


def test_similarity_is_jaccard_of_word_ngrams():
    hashes = minhash.Hashes(4, 2, words=3, seed=0)
    shingles = {name: set(hashes.shingles(text).tolist()) for name, text in TEXTS.items()}
    assert len(shingles["plain"]) == 4
    assert shingles["plain"] == shingles["shouted"]
    assert len(shingles["plain"] & shingles["changed"]) == 1
    assert not shingles["plain"] & shingles["reordered"]
    assert len(shingles["short"]) == len(shingles["empty"]) == 1
    assert shingles["short"] != shingles["empty"]


TEXTS = {
    "plain": "one two three four five six",
    "shouted": "One, two -- THREE; four.\nFive six!",
    "changed": "one two three other five six",
    "reordered": "six five four three two one",
    "short": "one two",
    "empty": "",
}


def test_hashes_depend_only_on_the_seed():
    text = TEXTS["plain"]
    bands = [minhash.Hashes(14, 8, 5, seed).bands(text) for seed in (0, 0, 1)]
    assert bands[0] == bands[1] and not set(bands[0]) & set(bands[2])
    assert len(set(bands[0])) == 14


def test_bands_of_a_text_differ():
    """Also with one row per band: many bands over many words, whose minima are close together."""
    bands = minhash.Hashes(bands=2000, rows=1, words=1, seed=0).bands(" ".join(map(str, range(20_000))))
    assert len(set(bands)) == 2000
