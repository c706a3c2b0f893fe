"""The published configs: each size has its published number of parameters, each family its published recipe."""

import ast
import functools
import itertools
import pathlib
import re
from dataclasses import replace

import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.config import checks
from plm_jax.config import files as pages
from plm_jax.configs import bert
from plm_jax.data.reader import blank_batch
from plm_jax.experiments.model_table import count, entries
from plm_jax.losses.loss import untrained_heads
from plm_jax.models import registry
from tests.golden import make_configs

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"

PAGES = [name for name in pages.names() if make_configs.sizes(name)]
ENTRIES = {entry.name: entry for entry in entries(str(CONFIGS))}
# Each size's count of the original; BERT (Devlin et al. 2019; Turc et al. 2019) with both heads, tied weights once.
PARAMETERS = {name: entry.counted for name, entry in ENTRIES.items()}

NONE = models.NoHead()
# Of models without a part of theirs: their fields that are otherwise, and published counts.
WITHOUT = {
    # As Hugging Face's `BertModel` and the like count: no heads but a pooler.
    ("head=NONE", "pooler=models.Pooler(0)"): {
        "bert.py:tiny": 4_385_920,
        "bert.py:mini": 11_170_560,
        "bert.py:small": 28_763_648,
        "bert.py:medium": 41_373_184,
        "bert.py:base": 109_482_240,
        "bert.py:large": 335_141_888,
        "bert.py:base-cased": 108_310_272,
        "macbert.py:base": 102_267_648,
        "macbert.py:large": 325_522_432,
        "ernie.py:1.0-base-zh": 99_866_112,
        "ernie.py:2.0-base-en": 109_483_776,
        "ernie.py:2.0-large-en": 335_143_936,
        "bert.py:large-cased": 333_579_264,
        "roberta.py:base": 124_645_632,
        "roberta.py:large": 355_359_744,
        "mpnet.py:base": 109_486_464,
        "xlm_r.py:base": 278_043_648,
        "xlm_r.py:large": 559_890_432,
        "xlm_r.py:xl": 3_482_485_760,
        "xlm_r.py:xxl": 10_712_735_744,
        "distilroberta.py:base": 82_118_400,
        "albert.py:base": 11_683_584,
        "albert.py:large": 17_683_968,
        "albert.py:xlarge": 58_724_864,
        "albert.py:xxlarge": 222_595_584,
    },
    # `BertForMaskedLM`, and a SpanBERT that is one.
    ("pooler=NONE",): {"bert.py:base": 109_514_298, "bert.py:base-cased": 110_300_480 - 1_959_676},
    ("span_boundary=NONE",): {"spanbert.py:base": 110_300_480 - 1_959_676},
    # `DistilBertModel`, `XLMModel`, `XLNetModel`, `DebertaModel` and `DebertaV2Model`; an ELMo without
    # its softmax, as it is said to be.
    ("head=NONE",): {
        "xlnet.py:base": 116_718_336,
        "xlnet.py:large": 360_268_800,
        "deberta.py:base": 138_601_728,
        "deberta.py:large": 405_163_008,
        "deberta.py:xlarge": 757_804_032,
        "deberta.py:v2-xlarge": 884_593_152,
        "deberta.py:v2-xxlarge": 1_564_549_632,
        "xlm.py:en-2048": 667_088_896,
        "xlm.py:xnli15-1024": 248_976_384,
        "xlm.py:xnli15-1024-tlm": 248_976_384,
        "xlm.py:17-1280": 571_496_960,
        "xlm.py:100-1280": 571_496_960,
        "distilbert.py:base": 66_362_880,
        "distilbert.py:cased": 65_190_912,
        "distilbert.py:multilingual": 134_734_080,
        "elmo.py:small": 13_593_296,
        "elmo.py:medium": 28_027_728,
        "elmo.py:original": 93_600_848,
    },
}
# As `ElectraForPreTraining` counts.
DISCRIMINATORS = {"electra.py:small": 13_549_057, "electra.py:base": 109_483_009, "electra.py:large": 335_142_913}


@functools.cache
def load(name: str) -> config.Run:
    return config.from_dict(pages.load(f"{CONFIGS}/{name}").config())


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_every_size_says_what_was_published(file):
    module = users.module(str(file))
    if file.stem in ("demo", "__init__"):
        assert not hasattr(module, "PUBLISHED")
    else:
        assert module.PUBLISHED.keys() >= module.SIZES.keys()
        assert all(said[-1] in "MB" for _, said in module.PUBLISHED.values())


@pytest.mark.parametrize("name", PAGES)
def test_a_config_is_as_its_golden_file_has_it(name):
    golden = (make_configs.FOLDER / f"{name}.txt").read_text()
    assert make_configs.text(name) == golden, "if it shall: `python -m tests.golden.make_configs`, and see what differs"


def test_no_golden_file_is_of_no_config():
    assert {path.stem for path in make_configs.FOLDER.glob("*.txt")} == set(PAGES)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_size_has_its_published_number_of_parameters(name):
    assert count(load(name).model) == PARAMETERS[name]


@pytest.mark.parametrize(("parts", "name"), [(parts, name) for parts, counts in WITHOUT.items() for name in counts])
def test_a_model_without_some_parts_has_its_published_number_of_parameters(parts, name):
    changes = {field: eval(what) for field, _, what in (part.partition("=") for part in parts)}
    assert count(replace(load(name).model, **changes)) == WITHOUT[parts][name]


@pytest.mark.parametrize("name", DISCRIMINATORS)
def test_a_discriminator_has_its_published_number_of_parameters(name):
    model = load(name).model.discriminator_model
    assert count(model) == DISCRIMINATORS[name]
    head = model.embedding.width**2 + 2 * model.embedding.width + 1
    assert count(replace(model, discriminator=models.NoHead())) == DISCRIMINATORS[name] - head


# Devlin et al. 2019 appendix A.2 and google-research/bert; Brown et al. 2020 appendix B, for GPT-2, which published no
# more than context and batch; Raffel et al. 2020 §3.1 and t5x; Xue et al. 2021 §3; Lewis et al. 2020 §5; Vaswani et al.
# 2017 §5.
RECIPES = {
    "bert.py:base": """
        optimizer.bias_correction=False optimizer.weight_decay=0.01 optimizer.epsilon=1e-6 optimizer.clip_norm=1.0
        optimizer.decay_norms_and_biases=False objective.rate=0.15 model.dropout.attention=0.1 model.norm.epsilon=1e-12
        model.norm.placement=post
    """,
    "gpt2.py:xl": """
        train.batch_size=512 data.length=1024 schedule.learning_rate=2e-4 schedule.kind=cosine optimizer.b2=0.95
        optimizer.weight_decay=0.1 optimizer.clip_norm=1.0 model.dropout.residual=0.1 model.norm.placement=pre
    """,
    "t5.py:11b": """
        train.steps=1_000_000 train.batch_size=2048 data.length=512 schedule.kind=rsqrt schedule.learning_rate=1.0
        schedule.warmup_steps=10_000 optimizer.kind=adafactor optimizer.decay_exponent=0.8 objective.noise_density=0.15
        objective.mean_span_length=3.0 model.dropout.residual=0.1 model.head.tied=True
    """,
    # allenai/bilm-tf, bin/train_elmo.py; its loss is 20 times ours, so the sum of squares 400 times.
    "elmo.py:original": """
        data.layout.kind=streams optimizer.kind=adagrad optimizer.initial_accumulator=1/20**2 optimizer.clip_norm=10/20
        objective.negative_samples=8192 model.dropout.input=0.1 model.dropout.output=0.1 model.lstm.cell_clip=3.0
        model.lstm.projection_clip=3.0 model.embedding.max_characters=50 precision.compute=float32
    """,
    "t5.py:1.1-xxl": """
        model.dropout.residual=0.0 model.head.tied=False model.feed_forward.gated=True
    """,
    # Liu et al. 2019 appendix tables 9 and 10. Of fairseq's models all parameters decay (fairseq/trainer.py).
    "roberta.py:base": """
        schedule.decay_counts_warmup=False optimizer.kind=adamw optimizer.bias_correction=True optimizer.b2=0.98
        optimizer.epsilon=1e-6 optimizer.weight_decay=0.01 optimizer.decay_norms_and_biases=True optimizer.clip_norm=0.0
        model.dropout.attention=0.1 model.norm.epsilon=1e-5 model.feed_forward.activation=gelu_exact
        model.attention.position=models.LearnedPositions(512,offset=2,skips_padding=True)
    """,
    "roberta.py:large": """
        schedule.learning_rate=4e-4 schedule.warmup_steps=30_000
    """,
    # README.md of facebookresearch/XLM, and train.py.
    "xlm.py:xnli15-1024-tlm": """
        data.length=256 train.batch_size=2048 data.layout.kind=translations data.layout.swapped=0.5 objective.rate=0.15
        objective.independent=True objective.mask_share=0.8 objective.random_share=0.1 schedule.kind=rsqrt_warmup
        schedule.warmup_steps=30_000 schedule.learning_rate=1e-4*30_000**0.5 optimizer.b2=0.98
        optimizer.weight_decay=0.0 optimizer.clip_norm=5.0 model.norm.placement=post model.norm.epsilon=1e-12
        model.head.transform=None model.dropout.attention=0.1 model.embedding.token_types=15
    """,
    "xlm.py:en-2048": """
        optimizer.b2=0.999 optimizer.epsilon=1e-6 optimizer.weight_decay=0.01 model.embedding.token_types=0
        data.layout.kind=blocks
    """,
    # Yang et al. 2019 table 8; train.py and data_utils.py of zihangdai/xlnet.
    "xlnet.py:large": """
        data.length=512 train.batch_size=8192 train.steps=500_000 data.layout.kind=pair_streams
        data.layout.bi_data=True model.memory_length=384 model.reuse_length=256 model.dropout.output=0.1
        model.feed_forward.activation=gelu_tanh model.norm.epsilon=1e-12 schedule.learning_rate=4e-4
        schedule.warmup_steps=40_000 schedule.final_fraction=0.001 optimizer.epsilon=1e-6 optimizer.weight_decay=0.01
        optimizer.bias_correction=False optimizer.clip_norm=1.0
    """,
    # Song et al. 2020 and the command in microsoft/MPNet.
    "mpnet.py:base": """
        data.length=512 train.batch_size=8192 train.steps=500_000 objective.rate=0.15 objective.whole_words=1
        objective.mask_share=0.8 objective.random_share=0.1 data.layout.kind=full_sentences optimizer.b2=0.98
        optimizer.epsilon=1e-6 optimizer.weight_decay=0.01 optimizer.clip_norm=0.0 model.norm.epsilon=1e-5
        model.attention.position.buckets=32 model.attention.position.max_distance=128
        model.attention.position.skips_padding=True model.embedding.token_types=0
    """,
    # microsoft/DeBERTa, experiments/language_model/mlm.sh, rtd.sh and their configs.
    "deberta.py:base": """
        data.length=512 train.batch_size=256 train.steps=1_000_000 objective.rate=0.15 objective.whole_words=3
        objective.windows=True objective.mask_share=0.8 objective.random_share=0.1 schedule.learning_rate=1e-4
        schedule.warmup_steps=10_000 optimizer.epsilon=1e-6 optimizer.weight_decay=0.01 optimizer.bias_correction=False
        optimizer.clip_norm=1.0 model.norm.epsilon=1e-7 model.attention.key_bias=False
        model.attention.position.shared=False model.attention.position.buckets=0
    """,
    "deberta.py:v3-xsmall": """
        train.batch_size=64 schedule.learning_rate=3e-4 objective.mask_share=1.0 objective.discriminator_weight=10.0
        model.sharing=disentangled model.generator.layers=6 model.generator.width=384
        model.attention.position.buckets=256 model.attention.position.norm=True
    """,
    # Goyal et al. 2021 §2.
    "xlm_r.py:xxl": """
        train.steps=500_000 train.batch_size=2048 model.norm.placement=pre model.embedding.norm=False
        model.embedding.vocab_size=250_880
    """,
    # Lan et al. 2020 §4.1 and google-research/albert.
    "albert.py:xlarge": """
        train.steps=125_000 train.batch_size=4096 data.length=512 data.layout.duplicates=40 schedule.kind=linear
        schedule.learning_rate=1.76e-3 schedule.warmup_steps=3125 schedule.decay_counts_warmup=True optimizer.kind=lamb
        optimizer.bias_correction=False optimizer.epsilon=1e-6 optimizer.weight_decay=0.01 optimizer.clip_norm=1.0
        objective.max_predictions=20 model.dropout=models.DropoutConfig(0.1,0.1,0.1) model.norm.epsilon=1e-12
        model.feed_forward.activation=gelu_tanh model.attention.head_dim=128 model.stack=models.StackConfig(24,groups=1)
    """,
    "albert.py:v2-base": """
        model.dropout=models.DropoutConfig()
    """,
    "albert.py:v2-xxlarge": """
        train.steps=3_000_000 model.dropout=models.DropoutConfig() model.attention.head_dim=64
    """,
    # Sanh et al. 2019 and the released code.
    "distilbert.py:base": """
        optimizer.b2=0.98 optimizer.clip_norm=5.0 model.feed_forward.activation=gelu_exact model.embedding.token_types=0
        model.pooler=models.NoHead() objective.smoothing=0.7
        train.loss.alpha_ce=5.0 train.loss.alpha_lm=2.0 train.loss.alpha_cos=1.0
        train.loss.temperature=2.0 train.init_layers=(0,2,4,7,9,11)
    """,
    # Clark et al. 2020 table 6, google-research/electra.
    "electra.py:small": """
        optimizer.weight_decay=0.01 optimizer.bias_correction=False objective.rate=0.15 objective.mask_share=0.85
        objective.discriminator_weight=50.0 model.generator.width=64 model.generator.heads=1
        model.embedding.embedding_size=128 model.norm.placement=post
    """,
    "electra.py:base": """
        train.batch_size=256 data.length=512 schedule.learning_rate=2e-4 objective.rate=0.15 model.generator.width=256
        model.generator.heads=4 model.embedding.embedding_size=None
    """,
    "electra.py:large": """
        objective.rate=0.25 model.generator.width=256 model.generator.layers=24
    """,
    # Cui et al. 2020 §3; BERT's steps and optimizer.
    "macbert.py:base": """
        objective.rate=0.15 objective.mask_share=0.0 objective.similar_share=0.8 objective.random_share=0.1
        objective.ngram_weights=(0.4,0.3,0.2,0.1) objective.whole_words=4 data.layout.task=sentence_order
        train.init_from="hf:google-bert/bert-base-chinese" model.embedding.vocab_size=21_128
        optimizer.weight_decay=0.01 model.attention.position.length=512 model.dropout.residual=0.1
    """,
    "macbert.py:large": """
        train.init_from=""
    """,
    # PaddlePaddle/ERNIE, release/r2.0: script/zh_task/pretrain.sh, ernie/batching.py, config/ernie_config.json.
    "ernie.py:1.0-base-zh": """
        objective.rate=0.15 objective.mask_share=0.8 objective.random_share=0.1 objective.independent=True
        objective.whole_words=1 optimizer.bias_correction=True optimizer.weight_decay=0.01 optimizer.clip_norm=1.0
        model.feed_forward.activation=relu model.attention.position.length=513 model.embedding.token_types=2
        model.initializer.truncated=True data.layout.task=next_sentence
    """,
    "ernie.py:2.0-large-en": """
        model.feed_forward.activation=gelu_exact model.attention.position.length=512 model.embedding.token_types=4
        model.embedding.vocab_size=30_522 model.stack.layers=24 model.dropout.attention=0.1
    """,
    # facebookresearch/SpanBERT, pretraining/README.md.
    "spanbert.py:large": """
        train.steps=2_400_000 train.batch_size=32*4096//512 data.length=512 schedule.learning_rate=1e-4
        schedule.warmup_steps=10_000 schedule.kind=linear optimizer.weight_decay=0.01
        optimizer.decay_norms_and_biases=True optimizer.epsilon=1e-8 optimizer.clip_norm=1.0 objective.rate=0.15
        objective.geometric_p=0.2 objective.max_words=10 objective.replacement=span model.span_boundary.positions=15
        model.span_boundary.width=200 model.dropout.residual=0.1
    """,
    # Radford et al. 2018 §4.1; Brown et al. 2020 table 2.1 and appendix B; Touvron et al. 2023a and 2023b §2; Llama
    # Team 2024 §3.4.1; config.json of THUDM/chatglm3-6b and glm-4-9b.
    "gpt1.py:base": """
        schedule.final_fraction=0.0 optimizer.weight_decay=0.01 model.norm.placement=post model.dropout.attention=0.1
    """,
    "gpt3.py:175b": """
        schedule.final_fraction=0.1 schedule.by_tokens=True optimizer.b2=0.95 optimizer.weight_decay=0.1
        optimizer.clip_norm=1.0 model.attention.windows=(0,256)
    """,
    "llama.py:1-33b": """
        train.steps=333_786 train.batch_size=2048 data.length=2048 schedule.kind=cosine schedule.learning_rate=1.5e-4
        schedule.warmup_steps=2000 schedule.final_fraction=0.1 optimizer.b2=0.95 optimizer.weight_decay=0.1
        model.norm.epsilon=1e-6
    """,
    "llama.py:2-7b": """
        train.steps=476_837 train.batch_size=1024 data.length=4096 schedule.learning_rate=3e-4 optimizer.epsilon=1e-5
        optimizer.clip_norm=1.0 model.norm.epsilon=1e-5 model.attention.position.theta=10_000.0
    """,
    "llama.py:3.1-405b": """
        data.layout.attend_across_documents=False schedule.decay_steps=1_200_000 schedule.final_fraction=0.01
        model.attention.kv_heads=8 model.attention.position.theta=500_000.0 model.attention.position.scaling.factor=8.0
    """,
    "llama.py:3.2-1b": """
        model.head.tied=True model.attention.position.scaling.factor=32.0
    """,
    "llama.py:tiny-1.1b": """
        train.batch_size=1024 train.steps=1_430_511 schedule.learning_rate=4e-4
    """,
    "glm.py:base": """
        schedule.decay_steps=120_000 schedule.final_fraction=0.05 optimizer.b2=0.98 optimizer.epsilon=1e-6
        optimizer.weight_decay=0.1 optimizer.clip_norm=1.0 objective.rate=0.15 objective.mean_span_length=3.0
        objective.sentence_rate=0.0 model.dropout.attention=0.1 model.attention.position.length=512
        model.norm.placement=pre
    """,
    "glm.py:roberta-large": """
        train.steps=250_000 train.batch_size=8192 schedule.learning_rate=4e-4 schedule.warmup_steps=30_000
        optimizer.weight_decay=0.01
    """,
    "glm.py:10b": """
        schedule.decay_steps=175_000 schedule.final_fraction=0.1 optimizer.b2=0.95 optimizer.epsilon=1e-8
        objective.sentence_rate=0.3 objective.document_rate=0.2 objective.block_mask_rate=0.1
        objective.short_probability=0.02 objective.document_min_share=0.25 model.attention.position.length=1024
    """,
    "chatglm.py:6b": """
        model.feed_forward.width=16_384 model.norm.placement=deep model.attention.position.kind=rotary_2d
        model.head.tied=True
    """,
    "chatglm.py:3-6b": """
        model.attention.kv_heads=2 model.attention.bias=True model.attention.out_bias=False
        model.attention.position.fraction=0.5 model.attention.position.interleaved=True model.norm.epsilon=1e-5
    """,
    "chatglm.py:4-9b": """
        model.norm.epsilon=1.5625e-7 model.feed_forward.width=13_696
    """,
    "mt5.py:xxl": """
        train.steps=1_000_000 train.batch_size=1024 data.length=1024 schedule.kind=rsqrt schedule.warmup_steps=10_000
        objective.noise_density=0.15 vocabulary.sentinels=100 model.embedding.vocab_size=250_112
        model.dropout.residual=0.0 model.head.tied=False
    """,
    "bart.py:large": """
        optimizer.decay_norms_and_biases=True objective.permute_sentences=1.0 objective.noise.kind=infilling
        objective.noise.rate=0.3 objective.noise.mean_span_length=3.0 objective.rotate=0.0 vocabulary.bos=0
        vocabulary.pad=1 vocabulary.eos=2 model.attention.position.length=1024 model.attention.position.offset=2
        model.feed_forward.activation=gelu_exact model.dropout.residual=0.1 model.dropout.attention=0.0
        model.norm.placement=post model.embedding.norm=True model.head.tied=True
    """,
    "transformer.py:big": """
        train.steps=300_000 train.label_smoothing=0.1 schedule.kind=rsqrt_warmup schedule.learning_rate=1024**-0.5
        schedule.warmup_steps=4000 optimizer.b1=0.9 optimizer.b2=0.98 optimizer.epsilon=1e-9 optimizer.clip_norm=0.0
        model.dropout.embedding=0.3 model.dropout.residual=0.3 model.dropout.attention=0.0 model.attention.bias=False
        model.feed_forward.activation=relu model.norm.placement=post model.embedding.scale_by_width=True
        model.attention.position.kind=sinusoidal model.head.tied=True
    """,
    "transformer.py:base": """
        model.dropout.residual=0.1
    """,
}


def value(written: str):
    """A name is a string, all else Python."""
    return written if re.fullmatch(r"[a-z]\w*", written) else eval(written, {"models": models})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_the_published_one(name):
    """Steps, batches, lengths and rates are those of COURSES, where a config has both."""
    run = load(name)
    recipe = dict(field.split("=", 1) for field in RECIPES[name].split())
    fields = {path: functools.reduce(getattr, path.split("."), run) for path in recipe}
    assert fields == {path: value(written) for path, written in recipe.items()}


def test_half_of_the_rows_of_xlm_are_pairs_and_languages_have_equal_rates():
    data = load("xlm.py:xnli15-1024-tlm").data
    names = ["ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"]
    assert data.token_types == {name: number for number, name in enumerate(names)}
    rates = dict.fromkeys(names, 1 / 15) | {f"en-{name}": 1 / 14 for name in names if name != "en"}
    assert data.mixture == pytest.approx(rates)
    assert {name: source.texts for name, source in data.sources.items() if source.texts} == {
        f"en-{name}": ("en", name) for name in names if name != "en"
    }


@pytest.mark.parametrize(("size", "published"), [("base", 65e6), ("big", 213e6)])
def test_the_transformer_has_about_its_published_number_of_parameters(size, published):
    """One table for both inputs and the output; four matrices an attention, feed-forwards with biases, norms."""
    model = load(f"transformer.py:{size}").model
    width, inner = model.embedding.width, model.feed_forward.width
    feed_forward = 2 * width * inner + inner + width
    encoder = 6 * (4 * width**2 + feed_forward + 2 * 2 * width)
    decoder = 6 * (8 * width**2 + feed_forward + 3 * 2 * width)
    assert count(model) == 37_000 * width + encoder + decoder
    assert abs(count(model) / published - 1) < 0.04


def test_bart_drops_nothing_in_the_last_tenth_of_its_steps():
    stages = config.resolve_phases(load("bart.py:base"))
    assert [(stage.end_step, stage.dropout) for stage in stages] == [(450_000, None), (500_000, 0.0)]


def test_bert_trains_a_tenth_of_its_steps_at_full_length():
    assert [(stage.end_step, stage.length) for stage in config.resolve_phases(load("bert.py:large"))] == [
        (900_000, 128),
        (1_000_000, 512),
    ]


def test_bert_makes_fixed_copies_by_the_override_of_its_page():
    path, _, number = re.search(r"--config\.(\S+)(=)(\d+)` makes ten fixed copies", bert.__doc__).groups()
    tree = bert.get_config("base")
    tree.update_from_flattened_dict({path: int(number)})
    run = config.from_dict(tree)
    assert run.objective.duplicates == run.data.layout.duplicates == 10


def test_a_head_for_spans_that_nothing_trains_is_told():
    run = replace(load("spanbert.py:base"), objective=objectives.MaskedLM())
    with pytest.raises(UserError, match=r"'masked_lm' does not train config\.model\.span_boundary"):
        config.from_dict(config.to_config_dict(run))


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_config_has_no_head_that_nothing_trains(name):
    run = load(name)
    loss = losses.get(run.objective.loss, **run.objective.loss_settings)
    batch = blank_batch(config.reader_config(run), config.resolve_phases(run)[0].length)
    assert untrained_heads(loss, registry.build(run.model), batch) == []


def test_a_replaced_token_run_needs_a_pair():
    run = replace(load("electra.py:base"), model=load("bert.py:base").model)
    with pytest.raises(UserError, match="'replaced_token' trains models of kind 'electra'"):
        config.from_dict(config.to_config_dict(run))


def tokens_read(run: config.Run, steps: int) -> int:
    """The tokens of so many steps."""
    phases = config.resolve_phases(run)
    return sum(max(min(steps, p.end_step) - p.first_step, 0) * p.batch_size * p.length for p in phases)


@pytest.mark.parametrize(("name", "ramp"), [("gpt3.py:125m", 4e9), ("gpt3.py:13b", 10e9), ("gpt3.py:175b", 12e9)])
def test_gpt3_ramps_its_batch_and_lets_its_rate_go_by_tokens(name, ramp):
    run = load(name)
    stages = config.resolve_phases(run)
    assert stages[0].batch_size == 16 and stages[-1].batch_size == run.train.batch_size
    assert all(a.batch_size < b.batch_size <= 2 * a.batch_size for a, b in itertools.pairwise(stages))
    for stage in stages[:-1]:  # The line from 16 rows to all runs above the stairs and touches each.
        line = 16 + (run.train.batch_size - 16) * tokens_read(run, stage.end_step) / ramp
        assert abs(line / min(2 * stage.batch_size, run.train.batch_size) - 1) < 0.01
    marks = (run.schedule.warmup_steps, 375e6), (run.schedule.decay_steps, 260e9), (run.train.steps, 300e9)
    for steps, tokens in marks:
        assert abs(tokens_read(run, steps) / tokens - 1) < 1e-3


def test_llama_405b_doubles_its_rows_and_then_its_batch():
    run = load("llama.py:3.1-405b")
    stages = config.resolve_phases(run)
    assert [(s.batch_size * s.length, s.length) for s in stages] == [(2**22, 4096), (2**23, 8192), (2**24, 8192)]
    ends = [tokens_read(run, stage.end_step) for stage in stages]
    assert [round(end / 1e6) for end in ends[:1]] == [252]
    assert [round(end / 1e10) for end in ends[1:]] == [287, 1560]


def test_a_row_of_glm_has_a_text_of_512_tokens_and_one_of_chatglm_2048():
    for name, text in (("glm.py:base", 512), ("glm.py:10b", 512), ("chatglm.py:6b", 2048)):
        run = load(name)
        assert run.objective.text_length(run.data.length) == text


def test_texts_of_glm_beyond_the_positions_are_said():
    run = load("glm.py:base")
    data = replace(run.data, length=698)
    with pytest.raises(UserError, match=r"length is 698 with texts of \d+, but the model has 512 positions"):
        config.from_dict(config.to_dict(replace(run, data=data)))
    config.from_dict(config.to_dict(replace(load("glm.py:10b"), data=data)))


# By hand from the recipes of the papers: optimizer; step, learning rate, batch and length at the first step, the end of
# warm-up, half way and the end.
COURSES = {
    "bert.py:base": "AdamW 0:0:256:128 10000:9.9e-05:256:128 500000:5e-05:256:128 1000000:0:256:512",
    "roberta.py:base": "AdamW 0:0:8192:512 24000:0.0006:8192:512 250000:0.000315126:8192:512 500000:0:8192:512",
    "albert.py:base": "Lamb 0:0:4096:512 3125:0.001716:4096:512 62500:0.00088:4096:512 125000:0:4096:512",
    "albert.py:v2-base": "Lamb 0:0:4096:512 3125:0.00175945:4096:512 5000000:0.00088:4096:512 10000000:0:4096:512",
    "distilbert.py:base": "AdamW 0:0:4096:512 315:0.0005:4096:512 3150:0.000263158:4096:512 6300:0:4096:512",
    "electra.py:small": "AdamW 0:0:128:128 10000:0.000495:128:128 500000:0.00025:128:128 1000000:0:128:128",
    "electra.py:large": "AdamW 0:0:2048:512 10000:0.000195:2048:512 200000:0.0001:2048:512 400000:0:2048:512",
    "macbert.py:base": "AdamW 0:0:256:512 10000:9.9e-05:256:512 500000:5e-05:256:512 1000000:0:256:512",
    "ernie.py:1.0-base-zh": "AdamW 0:0:16:512 5000:9.95e-05:16:512 500000:5e-05:16:512 1000000:0:16:512",
    "spanbert.py:base": "AdamW 0:0:256:512 10000:0.0001:256:512 1200000:5.02092e-05:256:512 2400000:0:256:512",
    "gpt1.py:base": "AdamW 0:0:64:512 2000:0.00025:64:512 1500000:0.000125131:64:512 3000000:0:64:512",
    "gpt2.py:small": "AdamW 0:0:512:1024 2000:0.0006:512:1024 150000:0.000332846:512:1024 300000:6e-05:512:1024",
    "gpt3.py:175b": "AdamW 0:0:16:2048 7649:6e-05:32:2048 58304:3.74235e-05:1536:2048 116609:6e-06:1536:2048",
    "llama.py:1-7b": "AdamW 0:0:2048:2048 2000:0.0003:2048:2048 119209:0.000166795:2048:2048 238419:3e-05:2048:2048",
    "llama.py:2-70b": "AdamW 0:0:1024:4096 2000:0.00015:1024:4096 "
    "238418:8.29468e-05:1024:4096 476837:1.5e-05:1024:4096",
    "llama.py:3.1-405b": "AdamW 0:0:1024:4096 8000:8e-05:1024:8192 "
    "550464:4.59689e-05:2048:8192 1100928:2.14228e-06:2048:8192",
    "glm.py:base": "AdamW 0:0:1024:592 6000:0.0004:1024:592 75000:0.000148307:1024:592 150000:2e-05:1024:592",
    "glm.py:10b": "AdamW 0:0:1344:592 7000:0.0001:1344:592 125000:2.82781e-05:1344:592 250000:1e-05:1344:592",
    "chatglm.py:6b": "AdamW 0:0:2048:2304 2000:0.0003:2048:2304 119209:0.000166795:2048:2304 238419:3e-05:2048:2304",
    "chatglm.py:4-9b": "AdamW 0:0:1024:4096 2000:0.0003:1024:4096 "
    "1192093:0.000165178:1024:4096 2384186:3e-05:1024:4096",
    "t5.py:base": "Adafactor 0:0.01:2048:512 10000:0.01:2048:512 500000:0.00141421:2048:512 1000000:0.001:2048:512",
    "t5.py:1.1-xxl": "Adafactor 0:0.01:2048:512 10000:0.01:2048:512 500000:0.00141421:2048:512 1000000:0.001:2048:512",
    "mt5.py:base": "Adafactor 0:0.01:1024:1024 10000:0.01:1024:1024 "
    "500000:0.00141421:1024:1024 1000000:0.001:1024:1024",
    "bart.py:large": "AdamW 0:0:8000:512 30000:0.0004:8000:512 250000:0.000212766:8000:512 500000:0:8000:512",
    "transformer.py:base": "AdamW 0:0:192:128 4000:0.000698771:192:128 "
    "50000:0.000197642:192:128 100000:0.000139754:192:128",
    "elmo.py:original": "Adagrad 0:0.2:384:20 0:0.2:384:20 500420:0.2:384:20 1000840:0.2:384:20",
}


@pytest.mark.parametrize("name", COURSES)
def test_a_run_takes_the_published_course(name):
    optimizer, *course = COURSES[name].split()
    course = [tuple(map(float, marks.split(":"))) for marks in course]
    run = load(name)
    stages = config.resolve_phases(run)
    rate = run.schedule.rate(run.train.steps, stages)
    assert type(run.optimizer).__name__.removesuffix("Config") == optimizer
    assert (course[0][0], course[-1][0]) == (0, run.train.steps)
    for step, expected, batch_size, length in course:
        stage = [stage for stage in stages if stage.first_step <= step][-1]
        assert float(rate(int(step))) == pytest.approx(expected, rel=1e-4, abs=1e-12)
        assert (stage.batch_size, stage.length) == (batch_size, length)


def test_a_page_says_at_what_rate_a_run_ends_before_its_decay():
    """In its docstring, to three figures, beside the steps of the decay."""
    is_stated = {}
    for name in PARAMETERS:
        run = load(name)
        if getattr(run.schedule, "decay_steps", 0) > run.train.steps:
            rate = float(run.schedule.rate(run.train.steps, config.resolve_phases(run))(run.train.steps))
            assert rate > 1.05 * run.schedule.learning_rate * run.schedule.final_fraction
            page = ast.get_docstring(ast.parse((CONFIGS / name.partition(":")[0]).read_text()))
            assert f"{run.schedule.decay_steps:,}" in page, name
            numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?e-?\d+", page)]
            is_stated[name] = any(number == float(f"{rate:.2e}") for number in numbers)
    assert is_stated and all(is_stated.values()), is_stated


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("xlnet.py:base", {"data.length": 256}, "reuse_length is 256, but rows of 256 tokens reuse 128: set it to 128"),
        ("deberta.py:v3-base", {"data.layout": config.Blocks(attend_across_documents=False)}, "adds_first reads the"),
        ("deberta.py:v3-base", {"data.length": 1024}, "length is 1024, but the model has 512 positions"),
    ],
)
def test_settings_that_would_go_wrong_silently_are_rejected(name, changes, words):
    run = load(name)
    for path, value in changes.items():
        section, field = path.split(".")
        run = replace(run, **{section: replace(getattr(run, section), **{field: value})})
    with pytest.raises(UserError, match=words):
        checks.check(run)
