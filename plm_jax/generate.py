"""`python -m plm_jax.generate --checkpoint=SRC --prompt="…"`: continues prompts."""

from absl import flags

from plm_jax import cli

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run directory, a checkpoint of one, or a Hugging Face one")
_PROMPT = flags.DEFINE_multi_string("prompt", [""], "what to continue; may be given several times")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 50, "at most so many tokens are added")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0: always the most probable token")
_TOP_K = flags.DEFINE_integer("top_k", None, "sample among the k most probable tokens")
_TOP_P = flags.DEFINE_float("top_p", None, "sample among the fewest tokens that have this probability together")
_NUM_BEAMS = flags.DEFINE_integer("num_beams", 1, "above 1: beam search")
_SEED = flags.DEFINE_integer("seed", 0, "of the samples")


def main() -> None:
    """Prints each prompt with its continuation."""
    checkpoint = cli.required(_CHECKPOINT)
    cli.start_jax()
    import plm_jax

    continuations = plm_jax.load(checkpoint).generate(
        _PROMPT.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        temperature=_TEMPERATURE.value,
        top_k=_TOP_K.value,
        top_p=_TOP_P.value,
        num_beams=_NUM_BEAMS.value,
        seed=_SEED.value,
    )
    for prompt, continuation in zip(_PROMPT.value, continuations, strict=True):
        print(prompt + continuation)


if __name__ == "__main__":
    cli.run(main)
