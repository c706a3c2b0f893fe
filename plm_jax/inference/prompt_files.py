"""Reads prompts from a file, answers the prompts in batches, and writes a file of prompts and answers."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from plm_jax.common import seeds, storage
from plm_jax.common.errors import UserError

# A prompt and its answers.
PromptAnswers = tuple[str, list[str]]


def read(path: str) -> list[str]:
    """Reads the prompts of a file, one per line.

    Raises:
      UserError: the file is empty or not UTF-8, or a line is blank.
    """
    try:
        lines = storage.read(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: expected a text file with one prompt per line") from error
    prompts = [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not prompts:
        raise UserError(f"{path} is empty: expected one prompt per line")
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise UserError(f"{path}:{number} is blank: remove this line, or use --prompt='' for an empty prompt")
    return prompts


@runtime_checkable
class TextGenerator(Protocol):
    """A model that answers prompts, such as a `LanguageModel`."""

    def generate(self, prompts: Sequence[str], *, seed: int, **options: Any) -> list[Any]:
        """Returns a list with one answer, or one list of answers, per prompt."""
        ...


def answer(
    lm: TextGenerator, prompts: Sequence[str], batch_size: int, seed: int, **options: Any
) -> Iterator[PromptAnswers]:
    """Yields each prompt with its answers.

    If there are several batches, the last batch is padded by repeating its prompts.

    Args:
      seed: seed of the first batch; the seeds of the other batches are derived from it.
      options: options of `LanguageModel.generate`.
    """
    batches = range(0, len(prompts), batch_size)
    later_seeds = np.random.SeedSequence(seeds.unsigned(seed)).generate_state(len(batches), np.uint32) >> 1
    batch_seeds = [seed, *later_seeds.tolist()]
    for number, first in enumerate(batches):
        batch = prompts[first : first + batch_size]
        size = batch_size if number else len(batch)
        filled = list(itertools.islice(itertools.cycle(batch), size))
        answers = lm.generate(filled, seed=batch_seeds[number], **options)
        for prompt, texts in zip(batch, answers, strict=False):
            yield prompt, texts if isinstance(texts, list) else [texts]


def write(path: str, answers: Iterable[PromptAnswers]) -> None:
    """Writes one JSON line {"prompt": …, "answers": […]} per prompt. The file appears when all lines are written."""
    with storage.writing(path) as file:
        for prompt, texts in answers:
            line = json.dumps({"prompt": prompt, "answers": texts}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
