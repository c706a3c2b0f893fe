"""DistilRoBERTa (Hugging Face 2019): base, 82M parameters: RoBERTa-base's width with half its layers.

    python -m plm_jax pretrain --config=configs/distilroberta.py:base --workdir=runs/distilroberta-base

Published (huggingface/transformers, research_projects/distillation, README): distilled from RoBERTa-base on
OpenWebText with the code of DistilBERT, whose recipe is used here. Three passes over the corpus are 12,400 steps: 38 GB
are about 8.7e9 tokens, at 4.4 bytes each. As in that code, a row is one document; see `distilbert.py`.

Store OpenWebText as JSON Lines ({"text": …}) at `data.sources.openwebtext.path`, and the vocabulary of
FacebookAI/roberta-base (vocab.json, merges.txt) at `vocabulary.spec`, or change these fields.
"""

from plm_jax import config, objectives
from plm_jax.configs import Size, distilbert, published_run, roberta
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=6, width=768, heads=12),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (82_170_201, "82M"),
}
SOURCE = "Sanh et al. 2019"
STEPS, WARMUP_STEPS = 12_400, 620


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    run = published_run(
        evaluate_every=500,
        model=roberta.model(*config.choose(SIZES, size)),
        objective=objectives.MaskedLM(smoothing=0.7),
        vocabulary=config.VocabularyConfig(
            spec="bpe:../vocabularies/roberta/vocab.json,../vocabularies/roberta/merges.txt",
            bos=0,
            pad=1,
            eos=2,
            unk=3,
            mask=50264,
        ),
        data=config.DataConfig(
            cache_dir="../.cache/roberta",
            sources=corpora.sources("openwebtext"),
            layout=config.Documents(),
            length=512,
        ),
        optimizer=distilbert.OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=5e-4, warmup_steps=WARMUP_STEPS),
        train=distilbert.taught_by(
            "hf:FacebookAI/roberta-base", init_names=distilbert.WITHOUT_TRANSFORM, steps=STEPS, batch_size=4096
        ),
    )
    return config.to_config_dict(run)
