"""Generate text from prompts, or fill in their blanks.

usage: plm_jax generate --checkpoint=MODEL [--prompt=TEXT ...] [flags]

A decoder continues each prompt. An encoder-decoder reads it and generates an answer, such as a summary. A masked model
fills in each [MASK], and a model that was trained on span corruption fills in <extra_id_0>, <extra_id_1> and so on.
Decoding settings come from the checkpoint's run; flags override them.

examples:
  plm_jax generate --checkpoint=runs/demo-gpt2-0 --prompt="The United" --max_new_tokens=20
  plm_jax generate --checkpoint=runs/demo-bert-0 --prompt="The United [MASK] of America"
"""

from absl import flags

from plm_jax.common import command_line, progress, seeds
from plm_jax.config.flags import DecodingFlags, ModulesFlag

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "run, checkpoint, directory written by convert, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_PROMPT = flags.DEFINE_multi_string("prompt", [], "text to continue or to fill in; may be repeated")
_PROMPTS = flags.DEFINE_string("prompts", None, "text file with one prompt per line")
_OUTPUT = flags.DEFINE_string("output", None, 'JSON Lines file for rows {"prompt": TEXT, "answers": [TEXT, ...]}')
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "number of prompts in a batch", lower_bound=1)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "seed for sampling, a signed 64-bit integer",
    lower_bound=int(seeds.RANGE.least),
    upper_bound=int(seeds.RANGE.most),
)
_DECODING = DecodingFlags()
_MODULES = ModulesFlag()


def main() -> None:
    """Prints the results, or writes them to `--output`.

    A result is a prompt with its continuation, a text with its blanks filled in, or an answer.
    """
    checkpoint = command_line.required(_CHECKPOINT)
    options = _DECODING.options()
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.inference import language_model, prompt_files

    prompts = _PROMPT.value + (prompt_files.read(_PROMPTS.value) if _PROMPTS.value else [])
    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    language_model.report_step(lm, checkpoint)
    with progress.doing("loading the vocabulary"):
        _ = lm.tokenizer
    with progress.doing("compiling and generating"):
        answers = prompt_files.answer(lm, prompts or [""], _BATCH_SIZE.value, _SEED.value, **options)
        if _OUTPUT.value:
            prompt_files.write(_OUTPUT.value, answers)
            return
        answers = list(answers)
    for prompt, texts in answers:
        for text in texts:
            print(prompt + text if lm.config.kind == "decoder" else text)


if __name__ == "__main__":
    command_line.run(main)
