"""`python -m plm_jax generate --checkpoint=SRC --prompt="…"`: continues prompts, or fills their blanks.

A masked model fills each `[MASK]`, a model of spans each `<extra_id_0>`, `<extra_id_1>` …. With `--prompts=FILE` there
is a prompt a line, with `--output=FILE` answers go to JSON lines. How to decode says the checkpoint's run, or a flag.
"""

from absl import flags

from plm_jax.common import command_line, progress, seeds
from plm_jax.config.flags import DecodingFlags, ModulesFlag

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_PROMPT = flags.DEFINE_multi_string("prompt", [], "what to continue or fill; may be given several times")
_PROMPTS = flags.DEFINE_string("prompts", None, "a file with a prompt a line")
_OUTPUT = flags.DEFINE_string("output", None, 'a file for a line {"prompt": …, "answers": […]} a prompt')
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "prompts that are answered at once", lower_bound=1)
_SEED = flags.DEFINE_integer(
    "seed", 0, "seed of the samples, 64 bits", lower_bound=int(seeds.RANGE.least), upper_bound=int(seeds.RANGE.most)
)
_DECODING = DecodingFlags()
_MODULES = ModulesFlag()


def main() -> None:
    """Prints each prompt with its continuation, or with its blanks filled, or what an encoder-decoder answers."""
    checkpoint = command_line.required(_CHECKPOINT)
    options = _DECODING.options()
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.inference import language_model, prompt_files

    prompts = _PROMPT.value + (prompt_files.read(_PROMPTS.value) if _PROMPTS.value else [])
    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    with progress.doing("loading the vocabulary"):
        _ = lm.tokenizer
    with progress.doing("compiling and generating"):
        answered = prompt_files.answer(lm, prompts or [""], _BATCH_SIZE.value, _SEED.value, **options)
        if _OUTPUT.value:
            prompt_files.write(_OUTPUT.value, answered)
            return
        found = list(answered)
    for prompt, answers in found:
        for text in answers:
            print(prompt + text if lm.config.kind == "decoder" else text)


if __name__ == "__main__":
    command_line.run(main)
