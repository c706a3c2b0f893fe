"""BERT (Devlin et al. 2019): tiny 4.4M, mini 11M, small 29M, medium 42M, base 110M, large 336M parameters, with heads.

    python -m plm_jax pretrain --config=configs/bert.py:base --workdir=runs/bert-base

Published: vocabulary of 30,522 WordPieces (`base-cased` and `large-cased`: 28,996), batch 256, 1,000,000 steps of
masked tokens and next-sentence pairs, the first 90 % at length 128 and the last 10 % at 512, Adam without bias
correction, on BooksCorpus and English Wikipedia (3.3e9 words). Base took 16 TPU chips four days, large 64. Tiny to
medium: Turc et al. 2019. The released code has the tanh form of GELU; Hugging Face's has the exact one.

The original code wrote ten copies of the corpus with different pairs and masks, which were repeated every ten epochs.
Here the pairs also come from ten passes, while masks, random partners and truncation are drawn again each time;
`--config.objective.duplicates=10` makes ten fixed copies.

`base-packed` is `base` with several pairs in a row, so that a step has more text; partners repeat every ten
epochs.

Wikipedia comes from TensorFlow Datasets. Store books as JSON Lines ({"text": …}) at `data.sources.books.path`, and the
vocabulary of google-bert/bert-base-uncased (vocab.txt) at `vocabulary.spec`, or change these fields.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions of a size; `remat` selects what the backward pass recomputes."""

    layers: int
    width: int
    heads: int
    remat: str = "none"
    microbatches: int = 1


# `remat` and `microbatches`: of 16 chips of TPU v5e each computes 4 rows of 512 at a time, whose activations stay in
# its fast memory; what `none` keeps, or more rows, would be moved twice. So a batch of 1,024 wants 16 microbatches.
# `plm_jax plan` reports what another size or slice needs.
SIZES = {
    "tiny": Size(layers=2, width=128, heads=2),
    "mini": Size(layers=4, width=256, heads=4),
    "small": Size(layers=4, width=512, heads=8),
    "medium": Size(layers=8, width=512, heads=8),
    "base": Size(layers=12, width=768, heads=12),
    "large": Size(layers=24, width=1024, heads=16, remat="dots", microbatches=4),
}
# size: (parameters of the original implementation with both heads, parameters as usually cited)
PUBLISHED = {
    "tiny": (4_433_468, "4.4M"),
    "mini": (11_267_900, "11.3M"),
    "small": (29_058_876, "29.1M"),
    "medium": (41_668_412, "41.7M"),
    "base": (110_106_428, "110M"),
    "large": (336_226_108, "340M"),
    "base-cased": (108_932_934, "110M"),
    "large-cased": (334_661_958, "340M"),
    "base-packed": (110_106_428, "110M"),
}
SOURCE = "Devlin et al. 2019; Turc et al. 2019"
CASED, PACKED = "-cased", "-packed"
VOCAB_SIZES = {False: 30522, True: 28996}


def model(layers: int, width: int, heads: int, vocab_size: int, length: int = 512, dropout: float = 0.1):
    """Returns a BERT model, with its heads for masked tokens and pairs."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, token_types=2, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform="gelu_tanh", bias=True),
        pooler=models.Pooler(),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, truncated=True),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES; `base-cased` and `large-cased` keep capitals, `base-packed` has packed rows."""
    names = [*SIZES, *(f"{name}{CASED}" for name in ("base", "large")), f"base{PACKED}"]
    cased = config.choose({name: name.endswith(CASED) for name in names}, size)
    of = SIZES[size.removesuffix(CASED).removesuffix(PACKED)]
    pairs = config.SentencePairs()
    folder = f"../vocabularies/bert-{'cased' if cased else 'uncased'}"
    run = published_run(
        evaluate_every=10_000,
        model=dataclasses.replace(model(of.layers, of.width, of.heads, VOCAB_SIZES[cased]), remat=of.remat),
        objective=objectives.MaskedLM(),
        vocabulary=config.VocabularyConfig(
            spec=f"wordpiece:{folder}/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
        ),
        data=config.DataConfig(
            cache_dir="../.cache/bert" + (CASED if cased else ""),
            **corpora.mixture("bert"),
            layout=config.Packed(inner=pairs) if size.endswith(PACKED) else pairs,
            length=128,
        ),
        optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=1e-4, warmup_steps=10_000, decay_counts_warmup=True),
        train=config.TrainConfig(
            steps=1_000_000,
            batch_size=256,
            microbatches=of.microbatches,
            phases=(config.PhaseConfig(until=0.9, length=128), config.PhaseConfig(until=1.0, length=512)),
        ),
        mesh=config.MeshConfig(data=1, fsdp=-1, gather="step"),
    )
    return config.to_config_dict(run)
