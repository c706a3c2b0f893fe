"""Models of transformers with random weights, for comparison. Importing this module imports torch."""

import zlib

import numpy as np
import torch
import transformers

# Padding on both sides. `DECODER_MASK` is for the decoder of an encoder-decoder.
MASK = np.array([[1] * 8, [0] * 3 + [1] * 5, [1] * 6 + [0] * 2])
DECODER_MASK = np.array([[1] * 6, [0] * 2 + [1] * 4, [1] * 5 + [0]])
# For BART: the positions of its decoder count padding in transformers, but only real tokens in plm_jax.
RIGHT_MASK = np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
_STACK = {"layers": 2, "attention_heads": 3, "ffn_dim": 20}
# By model_type.
SIZES = {
    "bert": {
        "vocab_size": 37,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 12,
        "initializer_range": 0.3,
    },
    "t5": {"vocab_size": 37, "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 3},
    "distilbert": {
        "vocab_size": 37,
        "dim": 12,
        "n_layers": 2,
        "n_heads": 3,
        "hidden_dim": 20,
        "max_position_embeddings": 12,
        "initializer_range": 0.3,
    },
    "bart": {
        "vocab_size": 37,
        "d_model": 12,
        **{f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in _STACK.items()},
        "max_position_embeddings": 12,
        "init_std": 0.3,
    },
    "openai-gpt": {
        "vocab_size": 37,
        "n_positions": 12,
        "n_embd": 12,
        "n_layer": 2,
        "n_head": 3,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
ROBERTAS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert")
SIZES |= dict.fromkeys((*ROBERTAS, "ernie", "mpnet"), SIZES["bert"])
SIZES["albert"] = SIZES["electra"] = SIZES["bert"] | {"embedding_size": 7}
SIZES["mt5"] = SIZES["t5"]
SIZES["gpt2"] = SIZES["openai-gpt"]
SIZES["llama"] = {name: size for name, size in SIZES["bert"].items() if name != "max_position_embeddings"}
SIZES["llama"] |= {"bos_token_id": 1, "eos_token_id": 2}
SIZES["xlm"] = {"vocab_size": 37, "emb_dim": 12, "n_layers": 2, "n_heads": 3, "max_position_embeddings": 12}
SIZES["xlm"] |= {"embed_init_std": 0.3, "init_std": 0.3}
SIZES["xlnet"] = {"vocab_size": 37, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 20, "initializer_range": 0.3}
SIZES["eurobert"] = SIZES["llama"] | {"num_key_value_heads": 1, "pad_token_id": 0, "mask_token_id": 3}
SIZES["cohere"] = SIZES["llama"] | {"num_key_value_heads": 1, "logit_scale": 12**-0.5, "pad_token_id": 0}
SIZES["modernbert"] = SIZES["llama"] | {"num_hidden_layers": 5, "local_attention": 4, "pad_token_id": 0}
SIZES["modernbert"] |= {"cls_token_id": 1, "sep_token_id": 2}
SIZES["glm"] = SIZES["llama"] | {"head_dim": 8, "num_key_value_heads": 1, "pad_token_id": 0}


def make(architecture: str, untied=False, **fields):
    """Returns a model of a class, given by name, with the sizes above and other config fields; see `randomized`."""
    architecture = getattr(transformers, architecture)
    config = architecture.config_class
    return randomized(architecture, config(**SIZES[config.model_type] | fields), untied)


def randomized(architecture, config, untied=False):
    """Returns a model in which no tensor, including biases and norms, has its initial value.

    Args:
      architecture: class of the model.
      config: config of the model. Dropout rates in it have no effect.
      untied: whether `lm_head` has its own weights, which no config of a T5 can express.
    """
    torch.manual_seed(zlib.crc32(config.to_json_string().encode()))
    model = architecture(config).eval()
    if untied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(
                parameter, mean=float(("orm" in name or "ln_" in name) and name.endswith("weight")), std=0.3
            )
    return model


def run(model, seed=0):
    """Returns random inputs, by the names of `LanguageModel.logits`, and the model's outputs for them."""
    rng, sizes = np.random.default_rng(seed), model.config
    inputs = {"tokens": rng.integers(0, sizes.vocab_size, MASK.shape), "mask": MASK}
    if sizes.is_encoder_decoder:
        decoder_mask = RIGHT_MASK if sizes.model_type == "bart" else DECODER_MASK
        inputs["decoder_tokens"] = rng.integers(0, sizes.vocab_size, decoder_mask.shape)
        inputs["decoder_mask"] = decoder_mask
    elif hasattr(sizes, "type_vocab_size"):
        inputs["token_types"] = rng.integers(0, sizes.type_vocab_size, MASK.shape)
    elif sizes.model_type == "xlm" and sizes.use_lang_emb and sizes.n_langs > 1:
        inputs["token_types"] = rng.integers(0, sizes.n_langs, MASK.shape)
    elif sizes.model_type == "xlnet":
        inputs["token_types"] = rng.integers(0, 3, MASK.shape)
    if sizes.model_type in (*ROBERTAS, "mpnet"):  # Treats every token with the padding's id as padding.
        real_tokens = (sizes.pad_token_id + 1 + inputs["tokens"] % (sizes.vocab_size - 1)) % sizes.vocab_size
        inputs["tokens"] = np.where(MASK == 1, real_tokens, sizes.pad_token_id)
    names = {
        "tokens": "input_ids",
        "mask": "attention_mask",
        "token_types": "langs" if sizes.model_type == "xlm" else "token_type_ids",
        "decoder_tokens": "decoder_input_ids",
        "decoder_mask": "decoder_attention_mask",
    }
    arguments = {names[k]: torch.tensor(v) for k, v in inputs.items()}
    if sizes.model_type in ("gpt2", "openai-gpt"):  # They do not derive positions from the mask.
        arguments["position_ids"] = (arguments["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        output = model(**arguments, output_hidden_states=True)
    arrays = {k: (torch.stack(v) if isinstance(v, tuple) else v).numpy() for k, v in output.items() if k not in SKIPPED}
    return inputs, arrays


SKIPPED = ("past_key_values", "mems", "encoder_last_hidden_state", "last_hidden_state")


def assert_same_state(model, again, unused=()):
    """Asserts that all tensors except unused ones are bitwise equal."""
    one, other = model.state_dict(), again.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one.keys() - set(unused))
