"""Every pretraining objective on a little text that comes with the package, each beside a predictor without input.

    python -m plm_jax sweep --sweep=configs/ablations/objectives_demo.py --workdir=runs/objectives [--seeds=0,1,2]

The runs `bert`, `gpt2`, `t5`, `elmo`, `bart` and `glm` are the demos of their families; another objective of the same
architecture begins with their weights (`train.init_from`). A run should take two idle cores up to eight minutes, most
one or two.

On held-out documents each has to beat a predictor of its own: denoisers and language models a unigram on the text among
their targets (`real_loss`), sentence pairs the more frequent label (`pair_accuracy`), replaced-token detection chance
(`discriminator_auc`; its accuracy also asks for probabilities above one half, where one token in seven is replaced).
The tasks of `t5_tasks` have to beat the most frequent answer.

What a row shows and what it does not:

- `next_sentence` and `sentence_order` read Chinese poems with their titles, whose form tells much in few steps: verses
  of five or of seven characters, and that the title comes first. Sentences of the speeches a model of this size does
  not learn to pair in so few steps.
- Of the targets of masked language models some are visible: who only copies those gains 0.4 nats (80/10/10), an
  ELECTRA's generator 0.8.
- Where the targets are all of the text, a decoder beats the unigram without its encoder, as a language model does. The
  80 steps of `mask_tokens_*`, `deshuffling`, `prefix_lm` and `full_lm` show no more than that; `bart` and its noises,
  with a lower loss than `full_lm`, read what they are given.
- In the quartz of `t5_tasks` the model learns to answer with one of the two choices that the question names, four times
  in five, but not which of the two is right. The reviews it does read.
- `masked_lm_static` reads an eighth of the text once, so that no mask comes again: here it is dynamic masking with
  other draws, and shows that it trains, not what repeated masks cost.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import bert, demo
from plm_jax.objectives import denoising

base = "../demo.py:bert"


def overrides():
    """(name, changes) of each run."""
    yield from _encoders()
    yield from _decoders()
    yield from _text_to_text()
    yield from _denoisers()


def _after(name: str, steps: int, learning_rate: float, warmup_steps: int = 20) -> dict:
    """A short run that begins with another one's weights."""
    return {
        "train.init_from": name,
        "train.steps": steps,
        "train.phases": (),
        "schedule": config.LinearSchedule(learning_rate=learning_rate, warmup_steps=warmup_steps),
    }


def _encoders():
    """Masked language models, those of pairs, and what is built on them."""
    yield "bert", {}
    yield "next_sentence", vars(poems(config.SentencePairs(parts="sentences"), 40, 400, 2e-3))
    yield "sentence_order", vars(poems(config.SentencePairs(task="sentence_order"), 80, 250, 1e-3))
    masks = {
        "masked_lm_static": objectives.MaskedLM(duplicates=10),
        "masked_lm_whole_words": objectives.MaskedLM(whole_words=1),
        "masked_lm_n_grams": objectives.MaskedLM(whole_words=3),
    }
    for name, objective in masks.items():
        yield name, {"objective": objective, **_after("bert", 100, 1e-3)}
    spanbert = dataclasses.replace(demo.bert().model, span_boundary=models.SpanBoundary(width=32))
    spans = {"model": spanbert, "objective": objectives.SpanMaskedLM()}
    spans |= {"data.layout": config.FullSentences(cross_documents=False)}
    yield "span_masked_lm", {**spans, **_after("bert", 200, 1e-3)}
    yield "replaced_token", {**vars(demo.electra()), **_after("bert", 400, 1e-3, warmup_steps=40)}


def poems(layout: config.SentencePairs, length: int, steps: int, learning_rate: float) -> config.Run:
    """A BERT of the demo's size on pairs of parts of Chinese poems."""
    run = demo.bert()
    vocab_size = 4096
    return dataclasses.replace(
        run,
        model=bert.model(layers=3, width=128, heads=4, vocab_size=vocab_size, length=length),
        vocabulary=dataclasses.replace(
            run.vocabulary, spec="wordpiece:../.cache/demo/poems.txt", train_size=vocab_size
        ),
        data=config.DataConfig(
            cache_dir="../.cache/demo/poems",
            length=length,
            layout=layout,
            sources={"poems": config.JsonLines(path=f"{demo.CORPORA}/tang_poems_zh.jsonl.gz")},
            validation_fraction=0.15,
        ),
        schedule=config.LinearSchedule(learning_rate=learning_rate, warmup_steps=50),
        train=config.TrainConfig(steps=steps, batch_size=64),
    )


def _decoders():
    """Language models in one direction, after a prefix, in both directions."""
    yield "gpt2", vars(demo.gpt2())
    prefix_lm = {**vars(demo.gpt2()), "objective": objectives.DecoderPrefixLM()}
    yield "decoder_prefix_lm", {**prefix_lm, **_after("gpt2", 30, 5e-4)}
    whole, objective = demo.t5().model, objectives.DecoderTextToText()
    alone = models.DecoderConfig(**{f.name: getattr(whole, f.name) for f in dataclasses.fields(models.DecoderConfig)})
    length = sum(objective.noise.lengths(objective.noise.input_length(128))) - 1
    spans = {"model": alone, "objective": objective, "data.length": length, "train.phases": (), "train.steps": 400}
    yield "decoder_span_corruption", {**vars(demo.t5()), **spans}
    yield "elmo", vars(demo.elmo())


def _text_to_text():
    """T5's span corruption, what it was compared with, UL2, and two tasks with their prefixes."""
    yield "t5", vars(demo.t5())
    # Where targets tell no place, it takes longer to find them by the encoder.
    compared = {
        "replace_spans": (objectives.ReplaceSpans(), 80, 2e-2),
        "mask_tokens_bert_style": (objectives.MaskTokens(), 80, 2e-2),
        "mask_tokens_mass_style": (objectives.MaskTokens(random_share=0.0), 80, 2e-2),
        "drop_tokens": (objectives.DropTokens(), 250, 5e-2),
        "deshuffling": (objectives.Deshuffling(), 80, 2e-2),
        "prefix_lm": (objectives.PrefixLM(), 80, 2e-2),
        "full_lm": (objectives.FullLM(), 80, 2e-2),
        "ul2": (objectives.UL2(), 80, 2e-2),
    }
    for name, (objective, steps, learning_rate) in compared.items():
        yield name, {**vars(demo.t5()), "objective": objective, **_after("t5", steps, learning_rate)}
    yield "t5_tasks", {**vars(demo.t5_tasks()), "train.init_from": "t5"}


def _denoisers():
    """BART's noises and GLM's blanks."""
    yield "bart", vars(demo.bart())
    alone = objectives.Denoising(permute_sentences=0.0)
    noises = {
        "text_infilling": alone,
        "token_masking": dataclasses.replace(alone, noise=denoising.TokenMasking()),
        "token_deletion": dataclasses.replace(alone, noise=denoising.TokenDeletion()),
        "sentence_permutation": objectives.Denoising(noise=denoising.NoNoise()),
        "document_rotation": dataclasses.replace(alone, noise=denoising.NoNoise(), rotate=1.0),
    }
    for name, objective in noises.items():
        yield name, {**vars(demo.bart()), "objective": objective, **_after("bart", 60, 1e-3)}
    yield "glm", vars(demo.glm())
