"""Many prompts: read from a file, answered in batches, written with their answers."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from plm_jax.common import seeds, storage
from plm_jax.common.errors import UserError
from plm_jax.inference.language_model import LanguageModel

Answered = tuple[str, list[str]]


def read(path: str) -> list[str]:
    """Returns the lines of a file, each a prompt.

    Raises:
      UserError: there are none, one is blank, or they are not UTF-8.
    """
    try:
        lines = storage.read(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: give a text file with a prompt a line") from error
    prompts = [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not prompts:
        raise UserError(f"{path} is empty: give a prompt a line")
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise UserError(f"{path}:{number} is blank: remove this line, or use --prompt='' for an empty prompt")
    return prompts


def answered(
    lm: LanguageModel, prompts: Sequence[str], batch_size: int, seed: int, **options: Any
) -> Iterator[Answered]:
    """Each prompt with its answers, in their order; the last batch is filled up, so that shapes are few.

    Args:
      seed: that of the first batch, from which those of the others follow.
      options: as of `LanguageModel.generate`.
    """
    batches = range(0, len(prompts), batch_size)
    numbers = [seed, *np.random.SeedSequence(seeds.unsigned(seed)).generate_state(len(batches), np.uint32) >> 1]
    for number, first in enumerate(batches):
        batch = prompts[first : first + batch_size]
        size = batch_size if number else len(batch)
        filled = list(itertools.islice(itertools.cycle(batch), size))
        for prompt, found in zip(batch, lm.generate(filled, seed=int(numbers[number]), **options), strict=False):
            yield prompt, found if isinstance(found, list) else [found]


def write(path: str, answered: Iterable[Answered]) -> None:
    """Writes a JSON line {"prompt": …, "answers": […]} a prompt; the file is there at the end, or not at all."""
    with storage.writing(path) as file:
        for prompt, answers in answered:
            line = json.dumps({"prompt": prompt, "answers": answers}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
