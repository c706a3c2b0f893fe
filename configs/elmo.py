"""ELMo (Peters et al. 2018): small 13.6M, medium 28.0M, original 93.6M parameters, without the softmax over words.

    python -m plm_jax pretrain --config=configs/elmo.py:original --workdir=runs/elmo

Published (allenai/bilm-tf, bin/train_elmo.py; small and medium: allennlp.org/elmo): words from their characters, two
LSTMs for each direction with a residual around the second, the 1 Billion Word Benchmark (768,648,884 words, one
sentence per document), 10 epochs of batches of 3 × 128 streams of 20 words, Adagrad at 0.2, dropout 0.1, a softmax over
8,192 drawn words of 793,471, float32. Small and medium have one highway layer; how they were trained was not published.
Expect of the original a perplexity of 39.7, both directions averaged (the paper's section 3.4).

bilm-tf differentiates the mean loss times the 20 steps of a row, clips at 10 and starts Adagrad's sum at 1. Here the
mean is differentiated, so clipping at 10 / 20 and an initial sum of 1 / 20² result in the same updates.

`<S>` and `</S>` surround each document. In your own text, make each sentence a document, with words separated by white
space (`config.TextFiles(path, document="line")`). The file of words, `vocabulary.spec`, begins with `<S>`, `</S>` and
`<UNK>`, followed by words from the most to the least frequent, as the sampled softmax assumes; if it is missing,
`prepare` makes it from the corpus. A word that it lacks is read as `<UNK>` here, and as its characters in bilm-tf.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions; `cell` are the units of an LSTM's memory."""

    width: int
    cell: int
    highway_layers: int


SIZES = {
    "small": Size(width=128, cell=1024, highway_layers=1),
    "medium": Size(width=256, cell=2048, highway_layers=1),
    "original": Size(width=512, cell=4096, highway_layers=2),
}
WORDS, EPOCHS, BATCH_SIZE, LENGTH = 768_648_884, 10, 3 * 128, 20
# size: (parameters of the original with the softmax over 793,471 words, parameters as usually cited, without it)
PUBLISHED = {
    "small": (115_951_055, "13.6M"),
    "medium": (231_949_775, "28.0M"),
    "original": (500_651_471, "93.6M"),
}
SOURCE = "Peters et al. 2018"


def model(width: int, cell: int, highway_layers: int, vocab_size: int = 793_471, dropout: float = 0.1):
    """Returns an ELMo model."""
    return models.ElmoConfig(
        embedding=models.CharacterCNNConfig(vocab_size=vocab_size, width=width, highway_layers=highway_layers),
        lstm=models.LstmConfig(layers=2, cell=cell, cell_clip=3.0, projection_clip=3.0),
        dropout=models.LstmDropoutConfig(input=dropout, output=dropout),
    )


def get_config(size: str = "original"):
    """Returns the run of one of SIZES."""
    run = config.Run(
        model=model(*config.choose(SIZES, size)),
        objective=objectives.BidirectionalLM(negative_samples=8192),
        vocabulary=config.VocabularyConfig(
            spec="words:../vocabularies/elmo/words.txt", train_size=793_471, bos=0, eos=1, unk=2
        ),
        data=config.DataConfig(
            cache_dir="../.cache/elmo",
            **corpora.mixture("elmo"),
            length=LENGTH,
            layout=config.Streams(),
        ),
        optimizer=config.AdagradConfig(initial_accumulator=1.0 / LENGTH**2, clip_norm=10.0 / LENGTH),
        schedule=config.ConstantSchedule(learning_rate=0.2),
        train=config.TrainConfig(steps=EPOCHS * (WORDS // (BATCH_SIZE * LENGTH)), batch_size=BATCH_SIZE),
        mesh=config.MeshConfig(data=1, fsdp=-1),
        evaluation=config.EvaluationConfig(every=10_000, batch_size=256, max_batches=64),
    )
    return config.to_config_dict(run)
