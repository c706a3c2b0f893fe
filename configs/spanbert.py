"""SpanBERT (Joshi et al. 2020): base 108M, large 334M parameters, and the head for spans, 2M and 3M.

    python -m plm_jax pretrain --config=configs/spanbert.py:base --workdir=runs/spanbert-base

Published (§4.2; the command in facebookresearch/SpanBERT, pretraining/README.md): BERT's layers with the exact GELU and
its cased vocabulary, masked spans of 3.8 words on average up to 15 % of the tokens, each predicted from its positions
and from its boundaries, no pairs; rows of up to 512 tokens of one document without longer sentences, as in the code, 32
GPUs with 4,096 tokens each, 2,400,000 steps, 15 days on 32 V100s for large, on BERT's corpus. Where the command and the
code's defaults differ (distribution of span lengths, replacement per span or per token, loss from the boundaries), this
config follows the command. Weight decay also applies to biases and norms, since fairseq's trainer has one group of
parameters.

Exports to Hugging Face are a BERT without the head for spans.

Wikipedia comes from TensorFlow Datasets. Store books as JSON Lines ({"text": …}) at `data.sources.books.path`, and the
vocabulary of google-bert/bert-base-cased (vocab.txt) at `vocabulary.spec`, or change these fields.
"""

from plm_jax import config, models, objectives
from plm_jax.configs import Size, published_run
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=12, width=768, heads=12),
    "large": Size(layers=24, width=1024, heads=16),
}
# size: parameters of the cased BERT with its head for masked tokens and the head for spans, counted by hand
PUBLISHED = {
    "base": (110_300_480, "110M"),
    "large": (336_998_976, "340M"),
}
SOURCE = "Joshi et al. 2020"


def model(layers: int, width: int, heads: int, vocab_size: int = 28996, length: int = 512, dropout: float = 0.1):
    """Returns a SpanBERT model, with its heads for masked tokens and for spans."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, token_types=2, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform="gelu_exact", bias=True),
        span_boundary=models.SpanBoundary(),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    run = published_run(
        evaluate_every=10_000,
        model=model(*config.choose(SIZES, size)),
        objective=objectives.SpanMaskedLM(),
        vocabulary=config.VocabularyConfig(
            spec="wordpiece:../vocabularies/bert-cased/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
        ),
        data=config.DataConfig(
            cache_dir="../.cache/spanbert",
            **corpora.mixture("bert"),
            layout=config.FullSentences(cross_documents=False, drop_long_sentences=True),
            length=512,
        ),
        optimizer=config.AdamWConfig(weight_decay=0.01, decay_norms_and_biases=True, clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=1e-4, warmup_steps=10_000),
        train=config.TrainConfig(steps=2_400_000, batch_size=256),
    )
    return config.to_config_dict(run)
