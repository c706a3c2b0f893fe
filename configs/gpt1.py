"""GPT-1 (Radford et al. 2018): base, 117M parameters.

    python -m plm_jax pretrain --config=configs/gpt1.py --workdir=runs/gpt1

Published: 12 post-norm layers, 768 wide, learned positions; rows of 512 tokens, batch 64, 100 epochs of BooksCorpus,
Adam with a peak of 2.5e-4 after 2,000 steps and a cosine to 0, decoupled weight decay 0.01 on all but biases and gains,
dropout 0.1. Adam's constants (0.9, 0.999, 1e-8) and the clipping of gradients to 1 are those of openai/finetune-
transformer-lm. BooksCorpus' 800M words are about 1e9 tokens, so 100 epochs are about 3,000,000 steps.

The original vocabulary, 40,478 byte pairs of words from spaCy's tokenizer, is not supported: `prepare` trains a
SentencePiece vocabulary of the same size. The separator of books was not published; here each book ends with an
end-of-text token. Store books as JSON Lines ({"text": …}) at `data.sources.books.path`, or change this field.
"""

from plm_jax import config, models, objectives
from plm_jax.configs import Size, published_run
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=12, width=768, heads=12),
}
VOCAB_SIZE = 40_478
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (116_534_784, "117M"),
}
SOURCE = "Radford et al. 2018"


def model(layers: int, width: int, heads: int, vocab_size: int = VOCAB_SIZE, length: int = 512, dropout: float = 0.1):
    """Returns a GPT-1 model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-5, placement="post"),
        stack=models.StackConfig(layers=layers),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    run = published_run(
        evaluate_every=10_000,
        model=model(*config.choose(SIZES, size)),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../vocabularies/gpt1/tokenizer.model", train_size=VOCAB_SIZE, unk=0, eos=1
        ),
        data=config.DataConfig(
            cache_dir="../.cache/gpt1",
            **corpora.mixture("gpt1"),
            length=512,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.01, clip_norm=1.0),
        schedule=config.CosineSchedule(learning_rate=2.5e-4, warmup_steps=2000),
        train=config.TrainConfig(steps=3_000_000, batch_size=64),
    )
    return config.to_config_dict(run)
