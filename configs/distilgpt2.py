"""DistilGPT2 (Hugging Face 2019): base, 82M parameters: GPT-2 small's width with half its layers.

    python -m plm_jax pretrain --config=configs/distilgpt2.py:base --workdir=runs/distilgpt2-base

Published (huggingface/transformers, research_projects/distillation, README): distilled from the smallest GPT-2 on
OpenWebText with the code of DistilBERT, whose weights of the loss and optimizer are used here, with the loss of next
tokens in place of that of masked tokens. Three passes over the corpus are 12,400 steps: 38 GB are about 8.7e9 tokens,
at 4.4 bytes each. In that code, a row is one document; here, documents follow one another as in `gpt2.py`.

Store OpenWebText as JSON Lines ({"text": …}) at `data.sources.openwebtext.path`, or change this field.
"""

from plm_jax import config, objectives
from plm_jax.configs import Size, distilbert, distilroberta, gpt2, published_run
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=6, width=768, heads=12),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (81_912_576, "82M"),
}
SOURCE = "Sanh et al. 2019"


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    run = published_run(
        evaluate_every=500,
        model=gpt2.model(*config.choose(SIZES, size)),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(
            spec="bpe:package:data/gpt2/vocab.json,package:data/gpt2/merges.txt", eos=50256
        ),
        data=config.DataConfig(
            cache_dir="../.cache/gpt2-openwebtext",
            sources=corpora.sources("openwebtext"),
            length=1024,
        ),
        optimizer=distilbert.OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=5e-4, warmup_steps=distilroberta.WARMUP_STEPS),
        train=distilbert.taught_by("hf:openai-community/gpt2", steps=distilroberta.STEPS, batch_size=2048),
    )
    return config.to_config_dict(run)
