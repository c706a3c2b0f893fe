"""XLNet (Yang et al. 2019): base 117M, large 360M parameters.

    python -m plm_jax pretrain --config=configs/xlnet.py:large --workdir=runs/xlnet-large

Published (appendix A.4 and zihangdai/xlnet): BERT's sizes with post-norm layers without a norm of the embeddings,
relative positions and segments, a memory of 384 positions per layer, and a second stream of queries for the targets. A
row of 512 tokens has 256 tokens that continue the previous row and a pair of segments; 85 tokens are predicted in a
random order. Half of the rows of a batch run backward. Large: batch 8,192 (2,048 in the command of the repository),
500,000 steps, a learning rate of 4e-4 after 40,000 steps of warm-up, linear decay, Adam without bias correction, 5.5
days on 512 TPU v3 chips, on 32.89e9 pieces: Wikipedia 2.78e9, books 1.09e9, Giga5 4.75e9, ClueWeb 4.30e9, Common Crawl
19.97e9. The paper does not state the recipe of base: it is that of large here.

Streams of text need one source. Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`, and
spiece.model of xlnet/xlnet-large-cased at `vocabulary.spec`, or change these fields. `<eod>` separates documents.
"""

from plm_jax import config, models, objectives
from plm_jax.configs import Size, published_run

SIZES = {"base": Size(layers=12, width=768, heads=12), "large": Size(layers=24, width=1024, heads=16)}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {"base": (116_750_336, "117M"), "large": (360_300_800, "360M")}
SOURCE = "Yang et al. 2019"
LENGTH, REUSED, MEMORY = 512, 256, 384


def model(
    layers: int,
    width: int,
    heads: int,
    vocab_size: int = 32_000,
    memory_length: int = MEMORY,
    reuse_length: int = REUSED,
    dropout: float = 0.1,
):
    """Returns an XLNet whose memory has `memory_length` positions, of which a row adds `reuse_length`."""
    return models.XlnetConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(heads, width // heads, models.RelativeSinusoids(), bias=False),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(bias=True),
        dropout=models.DropoutConfig(
            embedding=dropout, attention=dropout, residual=dropout, feed_forward=dropout, output=dropout
        ),
        initializer=models.InitializerConfig(std=0.02),
        memory_length=memory_length,
        reuse_length=reuse_length,
    )


def get_config(size: str = "large"):
    """Returns the run of one of SIZES."""
    run = published_run(
        evaluate_every=10_000,
        model=model(*config.choose(SIZES, size)),
        objective=objectives.PermutationLM(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../vocabularies/xlnet/spiece.model", unk=0, bos=1, cls=3, sep=4, pad=5, mask=6, eos=7
        ),
        data=config.DataConfig(
            cache_dir="../.cache/xlnet",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.PairStreams(bi_data=True),
            length=LENGTH,
        ),
        optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=4e-4, warmup_steps=40_000, final_fraction=0.001),
        train=config.TrainConfig(steps=500_000, batch_size=8192),
    )
    return config.to_config_dict(run)
