"""Answers equal those of transformers' `generate`, token for token.

Models are random, in float32. The row of the end token in the vocabulary's matrix is scaled until about half of the
answers end before the limit. Prompts are redrawn until the scores of ranked candidates differ by more than 1e-4,
because the libraries break ties differently.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import plm_jax
from plm_jax.generation import decoding

VOCAB, EOS, NEW, PROMPTS = 61, 2, 14, 30
APART = 1e-4
SIZES = {"vocab_size": VOCAB, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": EOS}
FAMILIES = {
    "GPT2LMHeadModel": {"n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3},
    "LlamaForCausalLM": {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "T5ForConditionalGeneration": {
        "d_model": 24,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 3,
        "relative_attention_max_distance": 12,
        "relative_attention_num_buckets": 8,
    },
    "BartForConditionalGeneration": {
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "decoder_start_token_id": EOS,
    },
}
PENALTIES, STOPPING = (0.6, 1.0, 2.0), (False, True, "never")
CONSTRAINTS = [
    {},
    {"min_new_tokens": 6},
    {"no_repeat_ngram_size": 3},
    {"forced_eos_token_id": EOS},
    {"forced_bos_token_id": 5, "forced_eos_token_id": EOS},
    {"min_new_tokens": 4, "no_repeat_ngram_size": 2, "forced_bos_token_id": 0, "forced_eos_token_id": EOS},
]


class Peers(NamedTuple):
    """A model of transformers and the same model in plm_jax.

    Attributes:
      number: position of the family in FAMILIES.
      draw: function that returns a random prompt.
    """

    number: int
    theirs: Any
    ours: plm_jax.LanguageModel
    draw: Callable[[], list[int]]

    def generate(self, prompts, **options) -> tuple[list[list[int]], np.ndarray]:
        """Returns the answers of transformers, and the smallest difference between two candidates of each prompt."""
        import torch
        from transformers import LogitsProcessor, LogitsProcessorList

        is_decoder = not self.theirs.config.is_encoder_decoder
        tokens, mask = decoding.pad(prompts, max(map(len, prompts)), left=is_decoder)
        tokens = np.where(mask == 1, tokens, EOS)
        nearest, beams = np.full(len(prompts), np.inf), options.get("num_beams", 1)

        def note(scores, number):
            best = torch.topk(scores, number, dim=-1)[0].double().numpy()
            gaps = np.where(best[:, 1:] > -1e8, best[:, :-1] - best[:, 1:], np.inf).min(-1)
            np.minimum(nearest, gaps, out=nearest)

        class Greedy(LogitsProcessor):
            def __call__(self, input_ids, scores):
                if beams == 1:
                    note(scores, 2)
                return scores

        rank = type(self.theirs)._get_top_k_continuations

        def ranked(accumulated_log_probs, **arguments):
            note(accumulated_log_probs, arguments["beams_to_keep"] + 1)
            return rank(self.theirs, accumulated_log_probs=accumulated_log_probs, **arguments)

        self.theirs._get_top_k_continuations = ranked
        with torch.no_grad():
            sequences = self.theirs.generate(
                torch.tensor(tokens).long(),
                attention_mask=torch.tensor(mask).long(),
                max_new_tokens=NEW,
                do_sample=False,
                pad_token_id=EOS,
                eos_token_id=EOS,
                logits_processor=LogitsProcessorList([Greedy()]),
                **options,
            ).tolist()
        first = tokens.shape[1] if is_decoder else 1
        return [until_end(row[first:]) for row in sequences], nearest

    def check(self, **options) -> list[list[int]]:
        """Compares answers to random prompts. Returns them."""
        prompts = [self.draw() for _ in range(PROMPTS)]
        for _ in range(20):
            want, nearest = self.generate(prompts, **options)
            if (nearest > APART).all():
                break
            prompts = [prompt if far else self.draw() for prompt, far in zip(prompts, nearest > APART, strict=True)]
        else:
            raise AssertionError("no prompts without ties")
        got = self.ours.generate(prompts, max_new_tokens=NEW, **options)
        assert [until_end(row) for row in got] == want
        return want


def until_end(row):
    return row[: row.index(EOS)] if EOS in row else row


@functools.cache
def make_peers(name, folder):
    import torch
    import transformers

    model_class, number = getattr(transformers, name), list(FAMILIES).index(name)
    fields = SIZES | FAMILIES[name]
    if "t5" in name.lower():
        fields |= {"pad_token_id": 0, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    config = model_class.config_class(**fields, tie_word_embeddings=name != "LlamaForCausalLM")
    model = model_class(config).eval()
    model.generation_config.forced_eos_token_id = None
    rng = np.random.default_rng(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.6)
    is_t5, is_bart = config.model_type == "t5", config.model_type == "bart"

    def draw():
        body = rng.integers(3, VOCAB, rng.integers(1, 20)).tolist()
        return [0, *body, EOS] if is_bart else [*body, EOS] if is_t5 else body

    rows = model.get_output_embeddings().weight
    original = rows[EOS].detach().clone()
    trial = Peers(number, model, None, draw)
    prompts = [draw() for _ in range(PROMPTS)]
    for scale in np.arange(1, 6, 0.25):
        with torch.no_grad():
            rows[EOS] = original * scale
        if sum(len(row) < NEW for row in trial.generate(prompts)[0]) >= PROMPTS / 2:
            break
    model.save_pretrained(folder / name)
    return Peers(number, model, plm_jax.load(folder / name), draw)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("peers")


@pytest.fixture(params=FAMILIES)
def peers(request, folder):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return make_peers(request.param, folder)


def test_half_of_the_answers_end_early(peers):
    """Otherwise, the other tests would prove little."""
    lengths = [len(row) for row in peers.check()]
    assert PROMPTS / 4 < sum(length < NEW for length in lengths) < PROMPTS * 3 / 4
    assert len(set(lengths)) > 4


def usable(peers, number):
    """Returns one of CONSTRAINTS. For decoders, transformers forces the first token only after prompts of one token."""
    is_decoder = not peers.theirs.config.is_encoder_decoder
    return {k: v for k, v in CONSTRAINTS[number].items() if not (is_decoder and k == "forced_bos_token_id")}


def test_greedy_answers_equal_transformers(peers):
    """With all constraints together."""
    peers.check(**usable(peers, -1))


# The first and the last family share the pairs of a penalty and a way of stopping that each of the others has alone.
BEAMS = [(name, penalty) for name in FAMILIES for penalty in range(3)]
BEAMS = [BEAMS[i] for i in (0, 1, 3, 4, 5, 6, 7, 8, 11)]


@pytest.mark.parametrize(("peers", "penalty"), BEAMS, indirect=["peers"])
def test_beams_equal_transformers(peers, penalty):
    """The families together have all pairs of a penalty and a way of stopping, and all constraints."""
    shift = penalty + peers.number
    stopping, constraints = STOPPING[shift % 3], usable(peers, shift)
    peers.check(num_beams=4, length_penalty=PENALTIES[penalty], early_stopping=stopping, **constraints)
