"""DistilBERT (Sanh et al. 2019): base, 67M parameters: BERT-base's width with half its layers.

    python -m plm_jax pretrain --config=configs/distilbert.py:base --workdir=runs/distilbert-base

Published: initialized with layers 0, 2, 4, 7, 9 and 11 of BERT-base and distilled from it, with the losses for the
teacher's distribution (temperature 2), masked tokens and cosine weighted 5 : 2 : 1; dynamic masks, no pairs, batches of
up to 4,000, on BERT's corpus; about 90 hours on 8 V100s. The cased and the multilingual model, which was distilled on
Wikipedia in 104 languages, differ in teacher and vocabulary only. The optimizer follows the released code
(huggingface/transformers, research_projects/distillation): Adam with b2 0.98, 5e-4, linear decay after 5 % of warm-up,
gradients clipped to 5, three passes over the corpus. The number of steps here is three passes over BERT's
4.4e9 tokens (3.3e9 words), assuming full rows. As in that code, a row is one document, longer documents become several
rows, and rows that are short or have many unknown tokens are left out; documents are lines there, articles and books
here. Rare tokens are masked more often, with a weight of count^-0.7; the code draws them from a batch, this config from
each row. The released code has no dropout on the output of attention; this config follows BERT.

Wikipedia comes from TensorFlow Datasets. Store books as JSON Lines ({"text": …}) at `data.sources.books.path`, and the
vocabulary of google-bert/bert-base-uncased (vocab.txt) at `vocabulary.spec`, or change these fields. The teacher is
downloaded from the Hugging Face Hub; `train.references.teacher.source` and `train.init_from` also take a run. For the
multilingual model, store documents at `data.sources.text.path`.
"""

from plm_jax import config, losses, models, objectives
from plm_jax.configs import Size, published_run
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=6, width=768, heads=12),
    "cased": Size(layers=6, width=768, heads=12),
    "multilingual": Size(layers=6, width=768, heads=12),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (66_985_530, "66M"),
    "cased": (65_812_036, "65M"),
    "multilingual": (135_445_755, "134M"),
}
SOURCE = "Sanh et al. 2019"
# size: (teacher, size of its vocabulary)
TEACHERS = {
    "base": ("hf:google-bert/bert-base-uncased", 30522),
    "cased": ("hf:google-bert/bert-base-cased", 28996),
    "multilingual": ("hf:google-bert/bert-base-multilingual-cased", 119547),
}
# Sanh et al. 2019, §3; huggingface/transformers, research_projects/distillation: README.md (weights and temperature)
# and scripts/extract_distilbert.py (layers; the transform of the head is not copied).
LOSS = losses.Distillation(alpha_ce=5.0, alpha_lm=2.0, alpha_cos=1.0, temperature=2.0)
OPTIMIZER = config.AdamWConfig(b1=0.9, b2=0.98, epsilon=1e-6, clip_norm=5.0)
LAYERS = (0, 2, 4, 7, 9, 11)
WITHOUT_TRANSFORM = (r"(?!head_(transform|norm)/).*",)


def taught_by(source: str, **settings):
    """Returns the settings of training a student with half the layers of a teacher, from the teacher's weights."""
    return config.TrainConfig(
        init_from=source,
        init_layers=LAYERS,
        references={"teacher": config.ReferenceConfig(source)},
        loss=LOSS,
        **settings,
    )


def model(layers: int, width: int, heads: int, vocab_size: int = 30522, length: int = 512, dropout: float = 0.1):
    """Returns a DistilBERT model, with its head for masked tokens."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform="gelu_exact", bias=True),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of, (teacher, vocab_size) = config.choose(SIZES, size), TEACHERS[size]
    name = {"base": "uncased"}.get(size, size)
    data = {"sources": {"text": config.TextTable(path="../corpus/*.jsonl.gz")}}
    run = published_run(
        evaluate_every=500,
        model=model(*of, vocab_size=vocab_size),
        objective=objectives.MaskedLM(smoothing=0.7),
        vocabulary=config.VocabularyConfig(
            spec=f"wordpiece:../vocabularies/bert-{name}/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
        ),
        data=config.DataConfig(
            cache_dir="../.cache/bert" if size == "base" else f"../.cache/bert-{size}",
            **(data if size == "multilingual" else corpora.mixture("bert")),
            layout=config.Documents(),
            length=512,
        ),
        optimizer=OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=5e-4, warmup_steps=315),
        train=taught_by(teacher, init_names=WITHOUT_TRANSFORM, steps=6300, batch_size=4096),
    )
    return config.to_config_dict(run)
