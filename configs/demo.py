"""Small runs on the State of the Union addresses that come with the package: minutes on two CPU cores.

    bash launch/demo.sh [gpt2|bert|t5]
    python -m plm_jax pretrain --config=configs/demo.py:t5-tasks --workdir=runs/demo-t5-tasks    # after t5

gpt2: 4 layers, 192 wide, vocabulary 4,096 trained on the corpus, about 2.6M tokens. Expect a held-out loss about
one nat a token under the add-one unigram's. bert: 3 layers, 128 wide, vocabulary 1,024, rows of 64 tokens; about
1.9 nats under it on masked tokens. t5: 2 + 2 layers, 128 wide; about 1.6 under it on the tokens of the spans.

    python -m plm_jax pretrain --config=configs/demo.py:electra --workdir=runs/demo-electra-0

The other families in the same sizes: electra, deberta, xlnet, elmo, bart, glm. What they and the other objectives reach
is in the docs, docs/ablations.md. xlm reads 2,000 pairs of sentences from Tatoeba instead; see docs/pretraining.md.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs.bart import model as bart_model
from plm_jax.configs.bert import model as bert_model
from plm_jax.configs.deberta import model as deberta_model
from plm_jax.configs.deberta import updates as deberta_updates
from plm_jax.configs.electra import model as electra_model
from plm_jax.configs.glm import model as glm_model
from plm_jax.configs.gpt2 import model as gpt2_model
from plm_jax.configs.t5 import model as t5_model
from plm_jax.configs.xlm import model as xlm_model
from plm_jax.configs.xlnet import model as xlnet_model

CORPORA = "package:data/corpora"
VOCAB_SIZE = 4096
# For a width of 128: attention scores are then spread as in BERT, whose 0.02 are for a width of at least 768.
INITIAL_STD = 0.06


def gpt2() -> config.Run:
    """Returns a GPT-2 small enough for a laptop."""
    return config.Run(
        model=gpt2_model(layers=4, width=192, heads=6, vocab_size=VOCAB_SIZE, length=128, dropout=0.0),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../.cache/demo/sotu.model", train_size=VOCAB_SIZE, pad=0, eos=1, unk=2
        ),
        data=_speeches("gpt2", length=128),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.95, weight_decay=0.1),
        schedule=config.CosineSchedule(learning_rate=2e-3, warmup_steps=30, final_fraction=0.1),
        train=config.TrainConfig(steps=220, batch_size=16),
        checkpoint=config.CheckpointConfig(save_every=100),
        evaluation=config.EvaluationConfig(every=55, batch_size=64, max_batches=2),
    )


def bert() -> config.Run:
    """Returns a BERT that learns within minutes to use the neighbors of a masked token.

    At first it gains 0.4 nats by copying, because a tenth of the tokens to predict are visible. With BERT's initial
    spread of 0.02, or in rows of 64 tokens from the start, hundreds of steps bring little more. Rows of 8 tokens leave
    little else to attend to: there it finds the neighbors, and then finds them in long rows, too.
    """
    vocab_size = 1024
    model = bert_model(layers=3, width=128, heads=4, vocab_size=vocab_size, length=64, dropout=0.0)
    return config.Run(
        model=dataclasses.replace(_spread(model), pooler=models.NoHead()),
        objective=objectives.MaskedLM(),
        vocabulary=_masked_vocabulary("sotu-bert", vocab_size),
        data=_speeches("bert", length=64, layout=config.Blocks(attend_across_documents=False)),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.98, weight_decay=0.01),
        schedule=config.LinearSchedule(learning_rate=1.5e-3, warmup_steps=100),
        train=_short_first(0.5, length=8, rows=256, steps=1200, batch_size=64),
        checkpoint=config.CheckpointConfig(save_every=400),
        evaluation=config.EvaluationConfig(every=200, batch_size=256, max_batches=2),
    )


def t5() -> config.Run:
    """Returns a T5 1.1 for a laptop, with rows of 16 tokens first.

    With rows of 128 tokens from the start the decoder becomes a language model, and the first token of a span stays at
    the word frequencies: in 600 steps the encoder has no effect.
    """
    vocab_size, sentinels = 1024, 32
    return config.Run(
        model=t5_model(2, 128, 4, 32, 384, v1_1=True, vocab_size=vocab_size + sentinels),
        objective=objectives.SpanCorruption(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../.cache/demo/sotu-t5.model",
            train_size=vocab_size,
            sentinels=sentinels,
            pad=0,
            eos=1,
            unk=2,
        ),
        data=_speeches("t5", length=128),
        optimizer=config.AdafactorConfig(),
        schedule=config.RsqrtSchedule(learning_rate=1.0, warmup_steps=200),
        train=_short_first(0.4, length=16, rows=128, steps=800, batch_size=32),
        checkpoint=config.CheckpointConfig(save_every=400),
        evaluation=config.EvaluationConfig(every=200, batch_size=64, max_batches=2),
    )


def electra() -> config.Run:
    """Returns a discriminator of the size of `bert`, with its vocabulary, and a generator a quarter as wide.

    The results in docs/ablations.md start from the weights of `bert`; training from scratch was not tried.
    """
    run = bert()
    model = electra_model(3, 128, 128, 32, run.vocabulary.train_size, length=64, dropout=0.0, head_dim=32)
    return dataclasses.replace(run, model=_spread(model), objective=objectives.ReplacedToken())


def deberta() -> config.Run:
    """Returns a DeBERTaV3 of the size of `bert`, and a generator of one layer that is updated first."""
    run = bert()
    model = deberta_model(3, 3, 128, 4, run.vocabulary.train_size, length=64, buckets=32, dropout=0.0)
    return dataclasses.replace(
        run,
        model=dataclasses.replace(model, initializer=models.InitializerConfig(INITIAL_STD)),
        objective=objectives.ReplacedToken(windows=True, mask_share=1.0, discriminator_weight=10.0),
        data=dataclasses.replace(run.data, layout=config.Blocks(frames=True)),
        train=dataclasses.replace(run.train, updates=deberta_updates(run.optimizer)),
    )


def xlnet() -> config.Run:
    """Returns an XLNet of the size of `bert` with a memory of 48 positions; half of its rows run backward."""
    run = bert()
    model = xlnet_model(3, 128, 4, run.vocabulary.train_size, memory_length=48, reuse_length=32, dropout=0.0)
    names = ("pad", "unk", "cls", "sep", "mask", "eos")
    return dataclasses.replace(
        run,
        model=dataclasses.replace(model, initializer=models.InitializerConfig(INITIAL_STD)),
        objective=objectives.PermutationLM(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../.cache/demo/sotu-xlnet.model",
            train_size=run.vocabulary.train_size,
            **{name: i for i, name in enumerate(names)},
        ),
        data=_speeches("xlnet", length=64, layout=config.PairStreams(bi_data=True)),
        train=config.TrainConfig(steps=1200, batch_size=64),
    )


def elmo() -> config.Run:
    """Returns a biLM over the 4,096 most frequent words; 13 % of the text are other words.

    ELMo's Adagrad (configs/elmo.py) starts as plain gradient descent: in so few steps the squares of the gradients stay
    below the initial sum.
    """
    model = models.ElmoConfig(
        embedding=models.CharacterCNNConfig(
            vocab_size=VOCAB_SIZE, width=64, filters=((1, 16), (2, 32), (3, 64), (4, 64)), max_characters=16
        ),
        lstm=models.LstmConfig(cell=256),
    )
    return config.Run(
        model=model,
        objective=objectives.BidirectionalLM(),
        vocabulary=config.VocabularyConfig(
            spec="words:../.cache/demo/sotu-words.txt", train_size=VOCAB_SIZE, bos=0, eos=1, unk=2
        ),
        data=_speeches("elmo", length=20, layout=config.Streams()),
        optimizer=config.AdamWConfig(clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=5e-3, warmup_steps=50),
        train=config.TrainConfig(steps=250, batch_size=64),
        checkpoint=config.CheckpointConfig(save_every=250),
        evaluation=config.EvaluationConfig(every=100, batch_size=64, max_batches=8),
    )


def bart() -> config.Run:
    """Returns a BART of 2 + 2 layers, 128 wide."""
    return _denoiser(
        model=bart_model(2, 128, 4, vocab_size=1024, length=64, dropout=0.0),
        objective=objectives.Denoising(),
        length=64,
    )


def glm() -> config.Run:
    """Returns a GLM of 3 layers, 128 wide, that fills blanks of all three kinds, with the vocabulary of `bart`."""
    return _denoiser(
        model=glm_model(layers=3, width=128, heads=4, vocab_size=1024, length=64, dropout=0.0),
        objective=objectives.BlankInfilling(sentence_rate=0.3, document_rate=0.3),
        length=80,
    )


def _masked_vocabulary(name: str, size: int) -> config.VocabularyConfig:
    """Returns a vocabulary with the special ids of a masked language model."""
    ids = {name: i for i, name in enumerate(("pad", "unk", "cls", "sep", "mask"))}
    return config.VocabularyConfig(spec=f"sentencepiece:../.cache/demo/{name}.model", train_size=size, **ids)


def _denoiser(model, objective, length: int) -> config.Run:
    """Returns a run with the vocabulary, cache and recipe of `bart` and `glm`, with short rows first as in `t5`."""
    ids = ("pad", "eos", "unk", "bos", "cls", "mask", "sop", "eop", "smask", "gmask")
    return config.Run(
        model=_spread(model),
        objective=objective,
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../.cache/demo/sotu-denoiser.model",
            train_size=1024,
            **{name: i for i, name in enumerate(ids)},
        ),
        data=_speeches("denoiser", length=length),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.98, weight_decay=0.01),
        schedule=config.LinearSchedule(learning_rate=1.5e-3, warmup_steps=50),
        train=_short_first(0.4, length=20, rows=128, steps=400, batch_size=64),
        checkpoint=config.CheckpointConfig(save_every=200),
        evaluation=config.EvaluationConfig(every=100, batch_size=256, max_batches=2),
    )


def xlm() -> config.Run:
    """Returns an XLM of 2 layers that learns to use translations from 1,800 pairs of sentences, English and Spanish."""
    vocab_size = 1024
    model = xlm_model(layers=2, width=128, heads=4, vocab_size=vocab_size, languages=2, length=32, dropout=0.0)
    return config.Run(
        model=_spread(dataclasses.replace(model, initializer=models.InitializerConfig())),
        objective=objectives.TranslationLM(),
        vocabulary=_masked_vocabulary("tatoeba", vocab_size),
        data=config.DataConfig(
            cache_dir="../.cache/demo/xlm",
            length=32,
            sources={"tatoeba": config.RecordTable(path=f"{CORPORA}/tatoeba_en_es.jsonl.gz", texts=("en", "es"))},
            token_types={"en": 0, "es": 1},
            layout=config.Translations(swapped=0.5),
            validation_fraction=0.1,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.98, weight_decay=0.01),
        schedule=config.LinearSchedule(learning_rate=3e-3, warmup_steps=100),
        train=config.TrainConfig(steps=1000, batch_size=64),
        checkpoint=config.CheckpointConfig(save_every=500),
        evaluation=config.EvaluationConfig(every=250, batch_size=64),
    )


def t5_tasks() -> config.Run:
    """Returns a run that continues `t5` on two text-to-text tasks, at its last learning rate.

    Three of four examples are reviews: an answer of the other task has more tokens, and so more of the loss.
    """
    pretrained = t5()
    tasks = {
        "sentiment": config.TableInputsTargets(
            path=f"{CORPORA}/movie_sentiment.jsonl.gz",
            inputs="sentiment: {sentence}",
            targets="{sentiment}",
            only="clear",
        ),
        "quartz": config.TableInputsTargets(
            path=f"{CORPORA}/quartz.jsonl.gz",
            inputs="quartz choice1: {choices[0]} choice2: {choices[1]} question: {question}",
            targets="{answer}",
        ),
    }
    return dataclasses.replace(
        pretrained,
        model=dataclasses.replace(pretrained.model, dropout=pretrained.model.dropout.all_at(0.1)),
        vocabulary=dataclasses.replace(pretrained.vocabulary, train_size=0),
        data=config.DataConfig(
            cache_dir="../.cache/demo/t5-tasks",
            length=128,
            sources=tasks,
            mixture={"sentiment": 3.0, "quartz": 1.0},
            inputs_targets=config.InputsTargetsConfig(target_length=24, packed=True),
            validation_fraction=0.1,
        ),
        schedule=config.LinearSchedule(learning_rate=3e-2, warmup_steps=50),
        train=config.TrainConfig(steps=1000, batch_size=32, init_from="../runs/demo-t5-0"),
        evaluation=config.EvaluationConfig(every=100, batch_size=64),
    )


RUNS = {"gpt2": gpt2, "bert": bert, "t5": t5, "electra": electra, "elmo": elmo, "bart": bart, "glm": glm}
RUNS |= {"xlm": xlm, "t5-tasks": t5_tasks, "deberta": deberta, "xlnet": xlnet}


def _speeches(family: str, **settings) -> config.DataConfig:
    """Returns the corpus, with about every twentieth speech held out."""
    return config.DataConfig(
        cache_dir=f"../.cache/demo/{family}",
        sources={"sotu": config.TextTable(path=f"{CORPORA}/sotu.jsonl.gz")},
        validation_fraction=0.05,
        **settings,
    )


def _short_first(until: float, length: int, rows: int, steps: int, batch_size: int) -> config.TrainConfig:
    """Batches of `rows` of `length` tokens up to the fraction `until` of the steps, then `batch_size` of all tokens."""
    short = config.PhaseConfig(until=until, length=length, batch_size=rows)
    return config.TrainConfig(steps=steps, batch_size=batch_size, phases=(short, config.PhaseConfig(until=1.0)))


def _spread(model):
    """Returns the model with the initial spread INITIAL_STD, including positions."""
    position = dataclasses.replace(model.attention.position, init_std=INITIAL_STD)
    return dataclasses.replace(
        model,
        attention=dataclasses.replace(model.attention, position=position),
        initializer=dataclasses.replace(model.initializer, std=INITIAL_STD),
    )


def get_config(family: str = "gpt2"):
    """Returns the demo run of a family."""
    return config.to_config_dict(config.choose(RUNS, family)())
