"""XLM-R, RoBERTa for 100 languages: base 278M, large 560M (Conneau et al. 2020), xl 3.5e9, xxl 10.7e9 parameters (Goyal
et al. 2021).

    python -m plm_jax pretrain --config=configs/xlm_r.py:base --workdir=runs/xlm-r-base

Published (§3, §4): masked tokens only, a vocabulary of 250,002 SentencePiece tokens, no language ids, 2.5 TB of CC-100,
batch 8,192, 1,500,000 steps on 500 V100s. A language with n of all N tokens is drawn in proportion to (n / N)^0.3. The
paper does not state the learning rate: those of RoBERTa are used here, as for everything else it does not state. xl and
xxl (Goyal et al. 2021 §2) have norms before the sub-layers instead of after them and none after the embeddings, a
table of 250,880 rows, batch 2,048 and 500,000 steps on the same text; their peak of 1e-4 and warm-up of 10,000 steps
are ours.

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`. For several languages, define a source for
each, and its rate in `data.mixture`. Store `tokenizer.json` of FacebookAI/xlm-roberta-base at `vocabulary.spec`, or
change this field: its ids are not those of the file of SentencePiece.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import published_run, roberta

SIZES = {
    **roberta.SIZES,
    "xl": roberta.Size(layers=36, width=2560, heads=32, learning_rate=1e-4, warmup_steps=10_000),
    "xxl": roberta.Size(layers=48, width=4096, heads=32, learning_rate=1e-4, warmup_steps=10_000),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (278_295_186, "270M"),
    "large": (560_142_482, "550M"),
    "xl": (3_482_741_760, "3.5B"),
    "xxl": (10_712_994_816, "10.7B"),
}
SOURCE = "Conneau et al. 2020, Goyal et al. 2021"
VOCAB_SIZE, PADDED_VOCAB_SIZE = 250_002, 250_880


def pre_norm_model(layers: int, width: int, heads: int, vocab_size: int = PADDED_VOCAB_SIZE):
    """Returns a model of the form of xl and xxl."""
    post_norm = roberta.model(layers, width, heads, vocab_size=vocab_size)
    return dataclasses.replace(
        post_norm,
        embedding=dataclasses.replace(post_norm.embedding, norm=False),
        norm=models.NormConfig(epsilon=1e-5),
        remat="full",
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of, is_xl = config.choose(SIZES, size), size in ("xl", "xxl")
    dimensions = of.layers, of.width, of.heads
    run = published_run(
        model=pre_norm_model(*dimensions) if is_xl else roberta.model(*dimensions, vocab_size=VOCAB_SIZE),
        objective=objectives.MaskedLM(),
        vocabulary=config.VocabularyConfig(
            spec="json:../vocabularies/xlm-r/tokenizer.json", bos=0, pad=1, eos=2, unk=3, mask=VOCAB_SIZE - 1
        ),
        data=config.DataConfig(
            cache_dir="../.cache/xlm-r",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.FullSentences(),
            length=512,
        ),
        optimizer=roberta.OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_steps=of.warmup_steps),
        train=config.TrainConfig(
            steps=500_000 if is_xl else 1_500_000,
            batch_size=2048 if is_xl else 8192,
            microbatches=1 if is_xl else 128,  # 4 rows on each of 16 chips of TPU v5e.
        ),
    )
    return config.to_config_dict(run)
