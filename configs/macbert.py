"""MacBERT (Cui et al. 2020), a Chinese BERT that corrects words: base 103M, large 327M parameters, with heads.

    python -m plm_jax pretrain --config=configs/macbert.py:base --workdir=runs/macbert-base

Published (§3 of the paper; the README of ymcui/MacBERT): BERT's layers with the vocabulary of Chinese BERT; n-grams of
one to four words (40, 30, 20 and 10 %) up to 15 % of the text; 80 % of these words are replaced by a similar word, 10 %
by a random word, and 10 % are unchanged, so that no input has a mask; pairs of segments in order or swapped; 5.4e9
words of Wikipedia, encyclopedias, news and questions; base starts from Chinese BERT, large from scratch. A word without
similar words is replaced at random. The training code was not released: batch, steps and learning rate here are those
of BERT, at length 512.

Models are BERTs, also in Hugging Face's format. They were never trained on masks, so they do not fill `[MASK]`.

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`, words and their similar words, separated
by tabs, at `data.similar_words`, and vocab.txt of google-bert/bert-base-chinese at `vocabulary.spec`, or change these
fields. Words of Chinese text come from jieba here (`pip install jieba`) and from LTP in the paper; similar words come
from the nearest neighbors of word vectors.
"""

from plm_jax import config, objectives
from plm_jax.configs import Size, bert, published_run

SIZES = {
    "base": Size(layers=12, width=768, heads=12),
    "large": Size(layers=24, width=1024, heads=16),
}
# size: (parameters of `BertForPreTraining`, parameters as usually cited, without heads and pooler)
PUBLISHED = {
    "base": (102_882_442, "102M"),
    "large": (326_597_258, "324M"),
}
SOURCE = "Cui et al. 2020"
VOCAB_SIZE = 21128
INIT_FROM = {"base": "hf:google-bert/bert-base-chinese"}


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        evaluate_every=10_000,
        model=bert.model(of.layers, of.width, of.heads, VOCAB_SIZE),
        objective=objectives.MaskedLM(
            mask_share=0.0, random_share=0.1, similar_share=0.8, whole_words=4, ngram_weights=(0.4, 0.3, 0.2, 0.1)
        ),
        vocabulary=config.VocabularyConfig(
            spec="wordpiece:../vocabularies/bert-chinese/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
        ),
        data=config.DataConfig(
            cache_dir="../.cache/macbert",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            segmenters={"text": "jieba:lcut"},
            similar_words="../corpus/similar_words.txt",
            layout=config.SentencePairs(task="sentence_order"),
            length=512,
        ),
        optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=1e-4, warmup_steps=10_000, decay_counts_warmup=True),
        train=config.TrainConfig(steps=1_000_000, batch_size=256, init_from=INIT_FROM.get(size, "")),
    )
    return config.to_config_dict(run)
