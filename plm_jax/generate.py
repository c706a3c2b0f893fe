"""`python -m plm_jax.generate --checkpoint=SRC --prompt="…"`: continues prompts, or fills their blanks.

A masked model fills each `[MASK]`, a model of spans each `<extra_id_0>`, `<extra_id_1>` ….
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ModulesFlag

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_PROMPT = flags.DEFINE_multi_string("prompt", [""], "what to continue or fill; may be given several times")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 50, "at most so many tokens are added")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0: always the most probable token")
_TOP_K = flags.DEFINE_integer("top_k", None, "sample among the k most probable tokens")
_TOP_P = flags.DEFINE_float("top_p", None, "sample among the fewest tokens that have this probability together")
_NUM_BEAMS = flags.DEFINE_integer("num_beams", 1, "above 1: beam search")
_SEED = flags.DEFINE_integer("seed", 0, "of the samples")
_MODULES = ModulesFlag()


def main() -> None:
    """Prints each prompt with its continuation, or with its blanks filled, or what an encoder-decoder answers."""
    checkpoint = command_line.required(_CHECKPOINT)
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.inference import language_model

    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    with progress.doing("loading the vocabulary"):
        _ = lm.tokenizer
    with progress.doing("compiling and generating"):
        written = lm.generate(
            _PROMPT.value,
            max_new_tokens=_MAX_NEW_TOKENS.value,
            temperature=_TEMPERATURE.value,
            top_k=_TOP_K.value,
            top_p=_TOP_P.value,
            num_beams=_NUM_BEAMS.value,
            seed=_SEED.value,
        )
    for prompt, text in zip(_PROMPT.value, written, strict=True):
        print(prompt + text if lm.config.kind == "decoder" else text)


if __name__ == "__main__":
    command_line.run(main)
