"""XLM-R (Conneau et al. 2020), RoBERTa for 100 languages: base 278M, large 560M parameters.

    python -m plm_jax pretrain --config=configs/xlm_r.py:base --workdir=runs/xlm-r-base

Published (§3, §4): masked tokens only, a vocabulary of 250,002 SentencePiece tokens, no language ids, 2.5 TB of CC-100,
batch 8,192, 1,500,000 steps on 500 V100s. A language with n of all N tokens is drawn in proportion to (n / N)^0.3. The
paper does not state the learning rate: those of RoBERTa are used here, as for everything else it does not state.

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`. For several languages, define a source for
each, and its rate in `data.mixture`. Store `tokenizer.json` of FacebookAI/xlm-roberta-base at `vocabulary.spec`, or
change this field: its ids are not those of the file of SentencePiece.
"""

from plm_jax import config, objectives
from plm_jax.configs import published_run, roberta

SIZES = roberta.SIZES
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (278_295_186, "270M"),
    "large": (560_142_482, "550M"),
}
SOURCE = "Conneau et al. 2020"
VOCAB_SIZE = 250_002


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        model=roberta.model(of.layers, of.width, of.heads, vocab_size=VOCAB_SIZE),
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
        train=config.TrainConfig(steps=1_500_000, batch_size=8192),
    )
    return config.to_config_dict(run)
