"""Tiny caches written with the cache's writer, and runs over them."""

import hypothesis
import numpy as np
import pytest

from plm_jax import config, models, objectives
from plm_jax.common import workers
from plm_jax.data import cache
from plm_jax.data.prepare import shuffle
from tests.support import caches

EOS = 99
CAUSAL = objectives.Causal()

# A busy machine must not fail a test.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def write_source(tmp_path):
    """`write(name, {split: [[token, …], …]})` makes a source's cache of vocabulary size 100 under `tmp_path`."""

    def write(name, splits, vocabulary_id="v", eos=EOS, **specials):
        documents_by_split = {split: [(document, [0]) for document in documents] for split, documents in splits.items()}
        vocabulary = {"id": vocabulary_id, "kind": "bytes", "pad": None, "bos": None, "eos": eos, "unk": None}
        vocabulary |= specials
        caches.write(tmp_path, name, documents_by_split, 100, vocabulary, np.arange(100) % 2 == 0, bytes_a_token=3)
        return str(tmp_path)

    return write


@pytest.fixture
def write_sentences(tmp_path):
    """`write({split: [[sentence length, …], …]}, name)`: a source of which token n of each split is 4 + n."""

    def write(splits, name="a"):
        tokens_and_starts = {}
        for split, documents in splits.items():
            ends = 4 + np.cumsum([0, *map(sum, documents)])
            tokens_and_starts[split] = [
                (np.arange(start, start + sum(lengths)), np.cumsum([0, *lengths[:-1]]))
                for start, lengths in zip(ends.tolist(), documents, strict=False)
            ]
        vocabulary = {"kind": "bytes", "pad": 0, "bos": None, "eos": None, "unk": None, "cls": 1, "sep": 2, "mask": 3}
        caches.write(tmp_path, name, tokens_and_starts, 60_000, vocabulary, identity=name)
        return cache.open_source(str(tmp_path), name)

    return write


def small_model(objective, vocab_size, kind=None):
    """Returns a model of a kind, by default of the first kind that the objective trains."""
    shared = {
        "embedding": models.EmbeddingConfig(vocab_size, 8, token_types=2 if kind == "encoder" else 0),
        "attention": models.AttentionConfig(1, 8, models.NoPositions()),
        "feed_forward": models.FeedForwardConfig(8),
        "stack": models.StackConfig(1),
    }
    kind = kind or objective.architectures[0]
    if kind == "encoder":
        return models.EncoderConfig(**shared, pooler=models.Pooler())
    if kind == "encoder_decoder":
        return models.EncoderDecoderConfig(**shared, decoder_stack=models.StackConfig(1))
    if kind == "xlnet":
        return models.XlnetConfig(**shared | {"attention": models.AttentionConfig(1, 8, models.RelativeSinusoids())})
    if kind == "elmo":
        characters = models.CharacterCNNConfig(vocab_size, max_characters=12, filters=((1, 4),))
        return models.ElmoConfig(embedding=characters)
    return models.DecoderConfig(**shared)


@pytest.fixture
def make_run(tmp_path):
    """A run over caches under `tmp_path`, causal by default; keywords go to `data`, `train` and `vocabulary`."""

    def make(names, vocab_size=100, eos=EOS, data=(), train=(), objective=CAUSAL, kind=None, **specials):
        return config.Run(
            model=small_model(objective, vocab_size, kind),
            objective=objective,
            data=config.DataConfig(
                **{
                    "cache_dir": str(tmp_path),
                    "length": 8,
                    "sources": {name: config.TextFiles(name) for name in names},
                    "window_tokens": 64,
                    **dict(data),
                }
            ),
            vocabulary=config.VocabularyConfig("bytes", eos=eos, **specials),
            optimizer=config.AdamWConfig(),
            schedule=config.ConstantSchedule(1e-3),
            train=config.TrainConfig(**{"steps": 50, "batch_size": 4, "seed": 3, **dict(train)}),
        )

    return make


@pytest.fixture
def random_documents():
    """`make(seed, n)`: n documents of 1 to 30 tokens below 90."""

    def make(seed, n):
        rng = np.random.default_rng(seed)
        return [rng.integers(0, 90, rng.integers(1, 31)).tolist() for _ in range(n)]

    return make


_WORDS = """
the whale's They'LL 1851 3.14159 unaffable antidisestablishmentarianism Hello WORLD don't we've
欲把西湖比西子 ，淡妆濃抹總相宜。 「白日依山盡」 黃河入海流！ 你好 ひらがな カタカナ 한국어
naïve café Ünïcödé İstanbul ﬁn ẞ Å é ö ½ ² العربية हिन्दी ελληνικά Привет
🙂 👩‍🚀 🇫🇷 👍🏽 ☃ — … “quoted” ‘x’ // _a_b
"""


@pytest.fixture(scope="session")
def lines():
    """1,000 lines of English, Chinese, accents, emoji, code and control characters, mixed."""
    scraps = [
        *_WORDS.split(),
        *["def f(x):\n    return x**2  # {}", "if(a!=b){c[0]+=1;}", "\tfor i in range(10):", "<s> </s>", "e\u0301"],
        *["\x00", "\x07", "\u200b", "\ufeff", "\ufffd", "\r\n", "\n\n\n", "\u00a0", "\u3000", "   ", "\x1b[0m"],
    ]
    rng, joints = np.random.default_rng(0), ["", " ", " ", "  ", "\n"]

    def line(size):
        pairs = zip(rng.choice(scraps, size), rng.choice(joints, size), strict=True)
        return "".join(f"{scrap}{joint}" for scrap, joint in pairs)

    return [line(size) for size in rng.integers(1, 12, 1000)]


@pytest.fixture
def few_shards(monkeypatch):
    """Uses four files per shuffle and no worker processes, so that many small caches are quick to make."""
    monkeypatch.setattr(shuffle, "NUM_SHARDS", 4)
    monkeypatch.setattr(shuffle, "_SHARD_SHIFT", np.uint64(62))
    monkeypatch.setattr(shuffle, "FILES", ("000", "001", "002", "003", shuffle.KEYS_FILE))
    monkeypatch.setattr(workers, "cores", lambda: 1)
