"""Runs that the tests train: 2 layers of width 32 over bytes. This is a config file; `write` copies it."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np

from plm_jax import config, models, objectives

MODEL = models.DecoderConfig(
    embedding=models.EmbeddingConfig(vocab_size=272, width=32),
    attention=models.AttentionConfig(heads=4, head_dim=8, position=models.LearnedPositions(length=64)),
    feed_forward=models.FeedForwardConfig(width=64),
    stack=models.StackConfig(layers=2),
)
BERT = models.EncoderConfig(
    embedding=models.EmbeddingConfig(vocab_size=272, width=32, token_types=2, norm=True),
    attention=MODEL.attention,
    feed_forward=MODEL.feed_forward,
    norm=models.NormConfig(placement="post"),
    stack=MODEL.stack,
    head=models.VocabularyHead(transform="gelu_tanh", bias=True),
    pooler=models.Pooler(),
)
ROBERTA = dataclasses.replace(
    BERT,
    embedding=models.EmbeddingConfig(vocab_size=272, width=32, token_types=1, norm=True),
    attention=models.AttentionConfig(
        heads=4, head_dim=8, position=models.LearnedPositions(length=64, offset=2, skips_padding=True)
    ),
    pooler=models.NoHead(),
)
ALBERT = dataclasses.replace(
    BERT, embedding=dataclasses.replace(BERT.embedding, embedding_size=16), stack=models.StackConfig(layers=4, groups=2)
)
DISTILBERT = dataclasses.replace(
    BERT, embedding=dataclasses.replace(BERT.embedding, token_types=0), pooler=models.NoHead()
)
MODERNBERT = dataclasses.replace(
    DISTILBERT,
    attention=models.AttentionConfig(
        heads=4, head_dim=8, position=models.Rotary(thetas=(160_000.0, 0.0, 10.0)), bias=False, windows=(0, 5, 5)
    ),
    feed_forward=models.FeedForwardConfig(width=64, gated=True, bias=False),
    norm=models.NormConfig(bias=False, first=False),
    stack=models.StackConfig(layers=3),
)
T5 = models.EncoderDecoderConfig(
    embedding=MODEL.embedding,
    attention=models.AttentionConfig(heads=4, head_dim=8, position=models.RelativeBias(), bias=False, score_scale=1.0),
    feed_forward=models.FeedForwardConfig(width=64, gated=True, bias=False),
    norm=models.NormConfig(kind="rms"),
    stack=MODEL.stack,
    decoder_stack=MODEL.stack,
    head=models.VocabularyHead(tied=False),
    dropout=models.DropoutConfig(broadcast=True),
    initializer=models.FanInConfig(),
)
ELECTRA = models.ElectraConfig(
    embedding=models.EmbeddingConfig(vocab_size=272, width=32, token_types=2, norm=True, embedding_size=16),
    attention=MODEL.attention,
    feed_forward=models.FeedForwardConfig(width=64, activation="gelu_exact"),
    norm=BERT.norm,
    stack=MODEL.stack,
    generator=models.GeneratorConfig(width=8, heads=2, head_dim=4, feed_forward=16, layers=1),
)
SPANBERT = dataclasses.replace(BERT, pooler=models.NoHead(), span_boundary=models.SpanBoundary(positions=4, width=8))

LLAMA = dataclasses.replace(
    MODEL,
    attention=models.AttentionConfig(heads=4, head_dim=8, position=models.Rotary(), bias=False, kv_heads=2),
    feed_forward=T5.feed_forward,
    norm=T5.norm,
    head=T5.head,
)
GLM = dataclasses.replace(
    MODEL, attention=dataclasses.replace(MODEL.attention, position=models.BlockPositions(length=64))
)
CHATGLM = dataclasses.replace(
    MODEL,
    attention=dataclasses.replace(MODEL.attention, position=models.Rotary2D()),
    norm=models.NormConfig(placement="deep"),
)
GPT3 = dataclasses.replace(MODEL, attention=dataclasses.replace(MODEL.attention, windows=(0, 5)))
BART = models.EncoderDecoderConfig(
    embedding=models.EmbeddingConfig(vocab_size=272, width=32, norm=True),
    attention=models.AttentionConfig(heads=4, head_dim=8, position=models.LearnedPositions(length=64, offset=2)),
    feed_forward=MODEL.feed_forward,
    norm=models.NormConfig(placement="post"),
    stack=MODEL.stack,
    decoder_stack=MODEL.stack,
)
TRANSFORMER = dataclasses.replace(
    BART,
    embedding=models.EmbeddingConfig(vocab_size=272, width=32, scale_by_width=True),
    attention=models.AttentionConfig(heads=4, head_dim=8, position=models.SinusoidalPositions(), bias=False),
    initializer=models.InitializerConfig(std=32**-0.5),
)

ELMO = models.ElmoConfig(
    embedding=models.CharacterCNNConfig(
        vocab_size=64, width=8, dim=4, filters=((1, 8), (2, 8), (3, 16)), max_characters=12, highway_layers=2
    ),
    lstm=models.LstmConfig(cell=16),
)

# An epoch of the two sources has about a hundred rows.
PLAIN = config.Run(
    model=MODEL,
    objective=objectives.Causal(),
    data=config.DataConfig(
        cache_dir="cache",
        length=32,
        sources={"a": config.TextTable("a.jsonl"), "b": config.TextTable("b.jsonl")},
        validation_fraction=0.1,
        window_tokens=512,
    ),
    vocabulary=config.VocabularyConfig(
        spec="bytes",
        eos=256,
        pad=257,
        bos=258,
        cls=258,
        sep=259,
        mask=260,
        smask=260,
        gmask=260,
        sop=261,
        eop=262,
        sentinels=8,
    ),
    # With the default 1e-8, gradients of rounding errors would move parameters by a visible part of the rate.
    optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.1),
    schedule=config.ConstantSchedule(1e-3),
    train=config.TrainConfig(steps=6, batch_size=8, seed=1, log_every=1),
    checkpoint=config.CheckpointConfig(save_every=3),
)


def with_dropout(model, rate: float = 0.1):
    """Returns the model with all dropout rates set to `rate`."""
    return dataclasses.replace(model, dropout=model.dropout.all_at(rate))


# Combines dropout, a mixture, two microbatches, the end of an epoch and of a phase (length, batch and dropout).
EVERYTHING = dataclasses.replace(
    PLAIN,
    model=with_dropout(MODEL),
    data=dataclasses.replace(PLAIN.data, mixture={"a": 2.0, "b": 1.0}),
    schedule=config.CosineSchedule(1e-3, warmup_steps=4),
    train=dataclasses.replace(
        PLAIN.train,
        steps=24,
        microbatches=2,
        batch_size=16,
        phases=(config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0)),
    ),
    checkpoint=config.CheckpointConfig(save_every=4, keep_last=9),
    evaluation=config.EvaluationConfig(every=10, batch_size=8),
)


def of_bert(run: config.Run, model=BERT) -> config.Run:
    """Returns the run with BERT's pairs and objective."""
    data = dataclasses.replace(run.data, layout=config.SentencePairs(duplicates=2))
    return dataclasses.replace(run, model=model, objective=objectives.MaskedLM(), data=data)


def of_packed_bert(run: config.Run, model=BERT) -> config.Run:
    """Returns the run with packed rows of 64 tokens, which hold several short pairs."""
    pairs = config.SentencePairs(duplicates=2, short_probability=1.0)
    run = of_bert(run, model)
    data = dataclasses.replace(run.data, length=64, layout=config.Packed(inner=pairs))
    return dataclasses.replace(run, data=data)


def of_t5(run: config.Run, model=T5) -> config.Run:
    """Returns the run with T5's objective and optimizer."""
    return dataclasses.replace(
        run,
        model=model,
        objective=objectives.SpanCorruption(),
        optimizer=config.AdafactorConfig(min_dim_size_to_factor=16),
        schedule=dataclasses.replace(run.schedule, learning_rate=0.05),
    )


def of_electra(run: config.Run, model=ELECTRA) -> config.Run:
    """Returns the run with ELECTRA's objective."""
    return dataclasses.replace(run, model=model, objective=objectives.ReplacedToken())


def of_spanbert(run: config.Run, model=SPANBERT) -> config.Run:
    """Returns the run with SpanBERT's objective."""
    schedule = dataclasses.replace(run.schedule, learning_rate=5e-3)
    return dataclasses.replace(run, model=model, objective=objectives.SpanMaskedLM(), schedule=schedule)


def of_bart(run: config.Run, model=BART) -> config.Run:
    """Returns the run with BART's objective."""
    return dataclasses.replace(run, model=model, objective=objectives.Denoising())


# The carry depends on the batch size.
BATCHES = (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, batch_size=32))


def of_elmo(run: config.Run, model=ELMO, negative_samples: int = 0) -> config.Run:
    """Returns the run with ELMo's streams, words and optimizer, over the first source in a separate cache."""
    source = {"a": run.data.sources["a"]}
    data = dataclasses.replace(
        run.data, cache_dir="cache_elmo", length=5, sources=source, mixture={}, layout=config.Streams()
    )
    return dataclasses.replace(
        run,
        model=model,
        objective=objectives.BidirectionalLM(negative_samples),
        data=data,
        vocabulary=config.VocabularyConfig(spec="words:words.txt", train_size=64, bos=0, eos=1, unk=2),
        optimizer=config.AdagradConfig(initial_accumulator=0.01),
        schedule=dataclasses.replace(run.schedule, learning_rate=0.2),
        train=dataclasses.replace(run.train, phases=run.train.phases and BATCHES),
    )


def of_glm(run: config.Run, model=GLM) -> config.Run:
    """Returns the run with GLM's objective and all kinds of blanks."""
    objective = objectives.BlankInfilling(sentence_rate=0.3, document_rate=0.3)
    return dataclasses.replace(run, model=model, objective=objective)


RUNS = {
    "plain": PLAIN,
    "dropout": dataclasses.replace(PLAIN, model=EVERYTHING.model),
    "everything": EVERYTHING,
    "separate": dataclasses.replace(
        EVERYTHING, data=dataclasses.replace(EVERYTHING.data, layout=config.Blocks(attend_across_documents=False))
    ),
    "bert": of_bert(PLAIN),
    "bert_everything": of_bert(EVERYTHING, with_dropout(BERT)),
    "bert_packed": of_packed_bert(PLAIN),
    "bert_packed_everything": of_packed_bert(EVERYTHING, with_dropout(BERT)),
    "roberta": dataclasses.replace(PLAIN, model=ROBERTA, objective=objectives.MaskedLM()),
    "albert": dataclasses.replace(
        of_bert(PLAIN, ALBERT), optimizer=config.LambConfig(), schedule=config.ConstantSchedule(1e-2)
    ),
    "distilbert": dataclasses.replace(PLAIN, model=DISTILBERT, objective=objectives.MaskedLM()),
    "modernbert": dataclasses.replace(PLAIN, model=MODERNBERT, objective=objectives.MaskedLM()),
    "llama": dataclasses.replace(PLAIN, model=LLAMA),
    "glm": of_glm(PLAIN),
    "chatglm": of_glm(PLAIN, CHATGLM),
    "gpt3": dataclasses.replace(PLAIN, model=GPT3),
    "t5": of_t5(PLAIN),
    "t5_everything": of_t5(EVERYTHING, with_dropout(T5)),
    "electra": of_electra(PLAIN),
    "electra_everything": of_electra(EVERYTHING, with_dropout(ELECTRA)),
    "spanbert": of_spanbert(PLAIN),
    "bart": of_bart(PLAIN),
    "transformer": of_bart(PLAIN, TRANSFORMER),
    "elmo": of_elmo(PLAIN),
    "elmo_everything": of_elmo(EVERYTHING, with_dropout(ELMO), negative_samples=20),
}

TEXT = "the of and a to in is was that it for on as with his they at be this from sea whale ship captain"


def write(folder: pathlib.Path) -> None:
    """Copies this file to a folder and writes its corpora there."""
    shutil.copy(__file__, folder)
    for seed, (name, documents) in enumerate({"a": 40, "b": 20}.items()):
        rng = np.random.default_rng(seed)
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(documents):
                words = rng.choice(TEXT.split(), rng.integers(3, 41))
                text = " ".join(word + "." * (rng.random() < 0.2) for word in words)
                file.write(json.dumps({"text": text.title() + "."}) + "\n")


def get_config(name: str = "plain"):
    """Returns the config of one of RUNS."""
    return config.to_config_dict(config.choose(RUNS, name))
