"""Every pretraining objective on a small corpus that comes with the package, compared with predictors without input.

    python -m plm_jax sweep --sweep=configs/ablations/objectives_demo.py --workdir=runs/objectives [--seeds=0,1,2]

The runs `bert`, `gpt2`, `t5`, `elmo`, `bart`, `glm` and `permutation_lm` (XLNet) are the demos of their families. The
other objectives of each architecture start from their weights (`train.init_from`). On two idle cores a run should take
at most eight minutes, most of them one or two.

On held-out documents each run has to beat a predictor: denoisers and language models a unigram over the text among
their targets (`real_loss`), sentence pairs the more frequent label (`pair_accuracy`), replaced-token detection chance
(`discriminator_auc`; its accuracy also needs probabilities above one half, although one token in seven is replaced).
The tasks of `t5_tasks` have to beat the most frequent answer.

Limits of the rows:

- `next_sentence` and `sentence_order` read Chinese poems with their titles, whose form is learned in few steps: verses
  of five or seven characters, and the title first. A model of this size does not learn to pair sentences of the
  speeches in so few steps.
- Some targets of masked language models are visible: copying them gains 0.4 nats (80/10/10), for the generator of an
  ELECTRA 0.8.
- If the targets are the whole text, a decoder beats the unigram without its encoder, as a language model does. The 80
  steps of `mask_tokens_*`, `deshuffling`, `prefix_lm` and `full_lm` show no more than that. `bart` and its noises, with
  a lower loss than `full_lm`, use their input.
- In the quartz of `t5_tasks` the model learns to answer with one of the two choices in the question, four times in
  five, but not which of the two is right. It does learn the reviews.
- `masked_lm_static` reads an eighth of the text once, so no mask is repeated. It shows that static masking trains, not
  what repeated masks cost.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import bert, demo
from plm_jax.objectives import denoising

base = "../demo.py:bert"


def overrides():
    """Yields (name, changes) of each run."""
    yield from _encoders()
    yield from _decoders()
    yield from _text_to_text()
    yield from _denoisers()


def _after(name: str, steps: int, learning_rate: float, warmup_steps: int = 20) -> dict:
    """Returns the changes of a short run that starts from another run's weights."""
    return {
        "train.init_from": name,
        "train.steps": steps,
        "train.phases": (),
        "schedule": config.LinearSchedule(learning_rate=learning_rate, warmup_steps=warmup_steps),
    }


def _encoders():
    """Yields masked language models, with and without pairs, and the objectives built on them."""
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
    yield "permutation_lm", vars(demo.xlnet())


def poems(layout: config.SentencePairs, length: int, steps: int, learning_rate: float) -> config.Run:
    """Returns a BERT of the demo's size on pairs of parts of Chinese poems."""
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
            sources={"poems": config.TextTable(path=f"{demo.CORPORA}/tang_poems_zh.jsonl.gz")},
            validation_fraction=0.15,
        ),
        schedule=config.LinearSchedule(learning_rate=learning_rate, warmup_steps=50),
        train=config.TrainConfig(steps=steps, batch_size=64),
    )


def _decoders():
    """Yields language models in one direction, after a prefix, and in both directions."""
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
    """Yields T5's span corruption, the objectives that it was compared with, UL2, and two tasks with their prefixes."""
    yield "t5", vars(demo.t5())
    # Steps and rate: targets without sentinels take longer to be found through the encoder.
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
    """Yields BART's noises and GLM's blanks."""
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
