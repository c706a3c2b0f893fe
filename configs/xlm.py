"""XLM (Conneau & Lample 2019): English 665M, 15 languages of XNLI 250M, 17 and 100 languages 570M parameters.

    python -m plm_jax pretrain --config=configs/xlm.py:xnli15-1024-tlm --workdir=runs/xlm-xnli15

Published (paper and README of facebookresearch/XLM): BERT's layers without segments and with the exact GELU, the id of
the language as token type, and a head without a dense layer; rows of 256 tokens of sentences that `</s>` separates,
each row in one language; masks drawn independently for each token except the first of a row; Adam whose rate rises to
1e-4 over 30,000 steps and then falls with the inverse square root; gradients clipped to 5. For MLM and TLM (§3.3), half
of the rows are pairs of translations, `</s> x </s></s> y </s>` in either order, with positions that restart at y. The
optimizer is the README's: for the 15 languages b2 0.98 without weight decay; for English b2 0.999, epsilon 1e-6 and a
decay of 0.01 of all parameters. The latter is used here for 17 and 100 languages, too; these have no language ids.

Each of the paper's 64 GPUs has a batch of 32 rows of one language or pair; here the 2,048 rows of a step are drawn from
the mixture one by one. Training stopped when the validation loss had not improved for ten epochs of 200,000 sentences;
the numbers of steps are not published, 500,000 is ours. The released command draws languages with equal rates; for the
paper's exponent of 0.5, set `data.mixture` to `mixtures.proportional(SENTENCES, temperature=2)`. Sentences of more than
100 tokens were dropped; here, pairs longer than a row are truncated. XLM's stream begins with `</s>`, here with a
sentence.

Store sentences, one per line, at `data.sources.LANGUAGE.path`, and pairs as JSON Lines ({"en": …, "fr": …}) at
`data.sources.en-LANGUAGE.path`. The BPE files of XLM are not read: store a `tokenizer.json` with the ids below at
`vocabulary.spec`, or change this field.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data import mixtures

# The languages of XNLI. As in XLM, the id of a language is its position in alphabetical order.
XNLI = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


class Size(NamedTuple):
    """Dimensions, size of the vocabulary, languages with an embedding of their own, and whether pairs are read."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    languages: tuple[str, ...] = ()
    has_pairs: bool = False


SIZES = {
    "en-2048": Size(layers=12, width=2048, heads=16, vocab_size=30_145),
    "xnli15-1024": Size(layers=12, width=1024, heads=8, vocab_size=95_000, languages=XNLI),
    "xnli15-1024-tlm": Size(layers=12, width=1024, heads=8, vocab_size=95_000, languages=XNLI, has_pairs=True),
    "17-1280": Size(layers=16, width=1280, heads=16, vocab_size=200_000),
    "100-1280": Size(layers=16, width=1280, heads=16, vocab_size=200_000),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "en-2048": (667_119_041, "665M"),
    "xnli15-1024": (249_071_384, "250M"),
    "xnli15-1024-tlm": (249_071_384, "250M"),
    "17-1280": (571_696_960, "570M"),
    "100-1280": (571_696_960, "570M"),
}
SOURCE = "Conneau & Lample 2019"
PEAK, WARMUP_STEPS = 1e-4, 30_000


def model(
    layers: int,
    width: int,
    heads: int,
    vocab_size: int = 95_000,
    languages: int = 0,
    length: int = 512,
    dropout: float = 0.1,
):
    """Returns an XLM model with its head for masked tokens; with `languages`, it has an embedding of each language."""
    position = models.LearnedPositions(length=length, init_std=width**-0.5)
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, token_types=languages, norm=True),
        attention=models.AttentionConfig(heads=heads, head_dim=width // heads, position=position),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(bias=True),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.TorchLinearConfig(),
    )


def _data(size: str, of: Size) -> config.DataConfig:
    """Returns the sentences of each language, and their translations if the size reads pairs."""
    sentences = {
        name: config.TextFiles(path=f"../corpora/xlm/{name}/*.txt", document="line")
        for name in of.languages or ("text",)
    }
    pairs = {
        f"en-{name}": config.RecordTable(path=f"../corpora/xlm/en-{name}/*.jsonl.gz", texts=("en", name))
        for name in of.languages
        if of.has_pairs and name != "en"
    }
    mixture = mixtures.nested(*((mixtures.equal(names), 1.0) for names in (sentences, pairs) if names))
    return config.DataConfig(
        cache_dir=f"../.cache/xlm/{size}",
        sources={**sentences, **pairs},
        mixture=mixture if len(mixture) > 1 else {},
        token_types={name: number for number, name in enumerate(of.languages)},
        layout=config.Translations(swapped=0.5) if pairs else config.Blocks(),
        length=256,
    )


def get_config(size: str = "xnli15-1024-tlm"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    is_xnli = bool(of.languages)
    run = published_run(
        model=model(of.layers, of.width, of.heads, of.vocab_size, len(of.languages)),
        objective=objectives.TranslationLM(),
        vocabulary=config.VocabularyConfig(
            spec="json:../vocabularies/xlm/tokenizer.json", bos=0, eos=1, pad=2, unk=3, cls=1, sep=1, mask=5
        ),
        data=_data(size, of),
        optimizer=config.AdamWConfig(
            b2=0.98 if is_xnli else 0.999,
            epsilon=1e-8 if is_xnli else 1e-6,
            weight_decay=0.0 if is_xnli else 0.01,
            decay_norms_and_biases=True,
            clip_norm=5.0,
        ),
        schedule=config.RsqrtWarmupSchedule(learning_rate=PEAK * WARMUP_STEPS**0.5, warmup_steps=WARMUP_STEPS),
        train=config.TrainConfig(steps=500_000, batch_size=2048),
    )
    return config.to_config_dict(run)
