"""MPNet (Song et al. 2020): base 110M parameters.

    python -m plm_jax pretrain --config=configs/mpnet.py:base --workdir=runs/mpnet-base

Published (§4.1 and the command in microsoft/MPNet): BERT's layers with the exact GELU, absolute positions of RoBERTa,
T5's biases of scores in 32 buckets, BERT's uncased vocabulary with five more tokens, 15 % of the tokens predicted in
whole words, RoBERTa's 160 GB of text in rows of full sentences of up to 512 tokens, batch 8,192, 500,000 steps, Adam
with b2 0.98 and without clipping. The peak of the rate and its warm-up are those of RoBERTa base; the command, for
125,000 steps at a batch of 256 per device, has 5e-4 after 10,000 steps.

The objective here is masked language modeling, not that of the paper. Masked and permuted language modeling predicts
the same tokens in a random order: each from the earlier ones and, instead of the others, from masks with their
positions. Its two streams read a row to which the masks are appended, and their biases depend on the position of each
token. XLNet's streams have no such keys, and biases of the kind `learned_relative_bias` need tokens in their order.

Wikipedia comes from TensorFlow Datasets. Store the other four corpora (`corpora.MIXTURES["roberta"]`) as JSON Lines
({"text": …}) at the paths in `data.sources`, and vocab.txt of microsoft/mpnet-base at `vocabulary.spec`, or change
these fields.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import Size, published_run, roberta
from plm_jax.data.sources import corpora

SIZES = {"base": Size(layers=12, width=768, heads=12)}
# size: (parameters of `MPNetForMaskedLM`, parameters as usually cited)
PUBLISHED = {"base": (109_518_527, "110M")}
SOURCE = "Song et al. 2020"


def model(layers: int, width: int, heads: int, vocab_size: int = 30527, length: int = 512, dropout: float = 0.1):
    """Returns an MPNet, with its head for masked tokens."""
    model = roberta.model(layers, width, heads, vocab_size, length, dropout)
    position = models.LearnedRelativeBias(length=length, offset=2, skips_padding=True)
    return dataclasses.replace(
        model,
        embedding=dataclasses.replace(model.embedding, token_types=0),
        attention=dataclasses.replace(model.attention, position=position),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    rate = roberta.SIZES["base"]
    run = published_run(
        model=model(*config.choose(SIZES, size)),
        objective=objectives.MaskedLM(whole_words=1),
        vocabulary=config.VocabularyConfig(
            spec="wordpiece:../vocabularies/mpnet/vocab.txt", bos=0, pad=1, eos=2, unk=104, mask=30526
        ),
        data=config.DataConfig(
            cache_dir="../.cache/mpnet",
            **corpora.mixture("roberta"),
            layout=config.FullSentences(),
            length=512,
        ),
        optimizer=roberta.OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=rate.learning_rate, warmup_steps=rate.warmup_steps),
        train=config.TrainConfig(steps=500_000, batch_size=8192),
    )
    return config.to_config_dict(run)
