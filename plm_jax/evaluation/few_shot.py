"""How well a model answers prompts: it chooses by log-probability, or writes. Nothing of it is trained."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from scipy import stats

from plm_jax import config
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.labelled import metrics
from plm_jax.data.layouts import randomness
from plm_jax.evaluation import batches, perplexity, prompts, scoring
from plm_jax.generation import constraints
from plm_jax.generation.scoring import score_rows
from plm_jax.inference.language_model import LanguageModel

Normalise = Literal["sum", "token", "character", "byte", "unconditional"]
# What a written answer ends with, besides what stands behind examples.
LINE_END = "\n"
# Within which a row says no more than chance does.
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class FewShotOptions:
    """How rows are put to a model.

    Attributes:
      shots: so many examples before each row, one figure for each.
      seeds: by which these are drawn, each again; figures are means.
      normalise: by what the log-probability of a choice is divided, its tokens, characters or UTF-8 bytes; or
        `unconditional`, less that of the choice behind `prompt.condition` alone; or `sum`, nothing.
      balanced: of each choice as many examples as of any other, or one more.
      limit: only so many rows are asked, the same for all models, drawn from anywhere: files are often in the order
        of their labels; None: all.
      show: so many prompts are printed whole.
    """

    shots: tuple[int, ...] = (0,)
    seeds: tuple[int, ...] = (0,)
    normalise: Normalise = "sum"
    balanced: bool = False
    limit: int | None = None
    show: int = 0

    def __post_init__(self):
        if self.normalise not in get_args(Normalise):
            raise UserError(f"--normalise is {self.normalise}: {nearest(self.normalise, get_args(Normalise))}")
        if not self.shots or not self.seeds:
            raise UserError("--shots or --seeds is empty: give at least one number")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit is {self.limit}: give at least 1")


def evaluate(
    lm: LanguageModel, run: config.Run | None, given: str, options: FewShotOptions, show_progress: bool = True
) -> dict[str, float]:
    """The figures of one `SOURCE` (its validation split) or `SOURCE:SPLIT`, of `run` or of a page of `configs/tasks`.

    Returns:
      `examples`, how many. Of choices `chance`, the accuracy of guessing, and `chance_low` and `chance_high`, between
      which 95 % of guessers are; where all rows have the same choices `trivial_accuracy`, of the most frequent one. Of
      written answers `trivial_exact_match`. For K shots `K_shots/accuracy`, of scores also `pearson` and `mse`; or
      `exact_match` and `f1`, of words. With several seeds they are means, and `K_shots/…_deviation` is the deviation of
      the first metric. `K_shots/dropped` is the number of examples that did not fit into the model's context, and
      `K_shots/cut` the number of questions that were cut; both are averages per seed.

    Raises:
      UserError: as `prompts.task`; more shots than there are rows; a model that continues no text.
    """
    lm.strategy.continuation_row([0], [0])  # What continues no text says so before rows are read.
    task = prompts.task(run, given)
    numbers = np.arange(len(task.tested))
    if options.limit is not None and options.limit < len(numbers):
        numbers = np.sort(randomness.generator(0, "limit").choice(numbers, options.limit, replace=False))
    asker = _Asker(lm, task, numbers.tolist(), options, 32 if run is None else run.evaluation.batch_size, show_progress)
    found = {"examples": len(numbers)} | _without_model(task, asker.tested)
    for shots in options.shots:
        seeds = options.seeds if shots else options.seeds[:1]  # Without examples nothing is drawn.
        of_seeds = [asker.figures(shots, seed, show=seed == seeds[0]) for seed in seeds]
        for name in of_seeds[0]:
            found[f"{shots}_shots/{name}"] = float(np.mean([of_seed[name] for of_seed in of_seeds]))
        if len(seeds) > 1:
            name = next(iter(of_seeds[0]))
            found[f"{shots}_shots/{name}_deviation"] = float(np.std([of[name] for of in of_seeds], ddof=1))
    return found


def _without_model(task: prompts.PromptTask, tested: Sequence[prompts.PromptExample]) -> dict[str, float]:
    """What guessing gets, and always giving the answer that is most often right."""
    if not tested[0].choices:
        ((answer, _),) = collections.Counter(example.answers[0] for example in tested).most_common(1)
        right = [metrics.exact_match(example.answers, answer) for example in tested]
        return {"trivial_exact_match": float(np.mean(right))}
    chance = float(np.mean([1 / len(example.choices) for example in tested]))
    low, high = stats.binom.interval(CONFIDENCE, len(tested), chance)
    found = {"chance": chance, "chance_low": low / len(tested), "chance_high": high / len(tested)}
    if task.labels:
        ((_, times),) = collections.Counter(example.right for example in tested).most_common(1)
        found["trivial_accuracy"] = times / len(tested)
    return {name: float(value) for name, value in found.items()}


class _Asker:
    """A model before the rows of a task."""

    def __init__(
        self,
        lm: LanguageModel,
        task: prompts.PromptTask,
        numbers: Sequence[int],
        options: FewShotOptions,
        batch_size: int,
        show_progress: bool,
    ):
        self._lm, self._task, self._numbers, self._options = lm, task, numbers, options
        self.tested = [task.tested[number] for number in numbers]
        self._strategy, self._context, self._batch_size = lm.strategy, scoring.context_length(lm), batch_size
        self._bar = functools.partial(perplexity.bar, show=show_progress)
        self._unconditional: dict[str, float] = {}

    def figures(self, shots: int, seed: int, show: bool) -> dict[str, float]:
        """Those of all rows with so many examples, drawn by a seed."""
        draw = prompts.Drawer(self._task, shots, seed, self._options.balanced)
        written = not self.tested[0].choices
        delimiter = self._task.prompt.delimiter
        answers = {delimiter + answer for of in self.tested for answer in of.choices or of.answers}
        longest = max(len(self._lm.tokenizer.encode(answer)) for answer in answers)
        # More than any right answer has, so that a longer one is wrong.
        new_tokens = min(1 << longest.bit_length(), max(1, self._context // 2))
        room = self._context - (0 if self._lm.config.has_decoder else new_tokens if written else longest)
        asked = [
            prompts.fitted(self._task.prompt, draw(number), example.question, self._size, max(1, room))
            for number, example in zip(self._numbers, self.tested, strict=True)
        ]
        if show:
            self._print(asked, shots, seed)
        what = f"{self._task.name}, {shots} shots, seed {seed}"
        found = self._of_written(asked, new_tokens, what) if written else self._of_choices(asked, what)
        return found | {"dropped": sum(of.dropped for of in asked), "cut": sum(of.is_cut for of in asked)}

    def _size(self, text: str) -> int:
        return len(self._strategy.encode(text))

    def _print(self, asked: Sequence[prompts.Asked], shots: int, seed: int) -> None:
        rows = zip(self._numbers, asked, self.tested, strict=True)
        for number, of, example in itertools.islice(rows, self._options.show):
            print(f"--- {self._task.name}, row {number}, {shots} shots, seed {seed}, {of.dropped} dropped ---")
            print(of.context, end="")
            delimiter, right = self._task.prompt.delimiter, " or ".join(example.answers)
            others = [choice for choice in example.choices if choice != example.answers[0]]
            print(f"{delimiter}[{right}]" + "".join(f" not [{choice}]" for choice in others), flush=True)

    def _of_choices(self, asked: Sequence[prompts.Asked], what: str) -> dict[str, float]:
        """Which choices are most probable, and how many are right."""
        prompt, rows = self._task.prompt, list(zip(asked, self.tested, strict=True))
        pairs = [(of.context, choice) for of, example in rows for choice in example.choices]
        told = self._scores([(text, prompt.delimiter + choice) for text, choice in pairs], what)
        scores = dict(zip(pairs, told, strict=True))
        if self._options.normalise == "unconditional":
            new = [choice for choice in dict.fromkeys(pair[1] for pair in pairs) if choice not in self._unconditional]
            alone = self._scores([(prompt.condition, prompt.delimiter + choice) for choice in new], what)
            self._unconditional |= {choice: score for choice, (score, _) in zip(new, alone, strict=True)}
        chosen = [
            int(np.argmax([self._normalised(choice, *scores[of.context, choice]) for choice in example.choices]))
            for of, example in rows
        ]
        found = {"accuracy": metrics.accuracy([example.right for example in self.tested], chosen)}
        if self._task.is_scored:
            told = [float(example.choices[at]) for example, at in zip(self.tested, chosen, strict=True)]
            truth = [example.value for example in self.tested]
            found |= {"pearson": metrics.pearson(truth, told), "mse": float(np.mean((np.array(truth) - told) ** 2))}
        return found

    def _scores(self, pairs: Sequence[tuple[str, str]], what: str) -> list[tuple[float, int]]:
        """Of each context and answer the log-probability of the latter and how many tokens it has."""
        rows = [self._strategy.text_continuation_row(*pair) for pair in pairs]
        with self._bar(what, len(rows), "answer") as bar:
            told = score_rows(self._strategy, rows, bar.update)
        return [(of.score.log_likelihood, len(row.targets)) for of, row in zip(told, rows, strict=True)]

    def _normalised(self, choice: str, score: float, tokens: int) -> float:
        how = self._options.normalise
        if how == "unconditional":
            return score - self._unconditional[choice]
        return score / {"sum": 1, "token": tokens, "character": len(choice), "byte": len(choice.encode("utf-8"))}[how]

    def _of_written(self, asked: Sequence[prompts.Asked], new_tokens: int, what: str) -> dict[str, float]:
        """What the model writes, as its run decodes and up to the end of a line, against the right answers."""
        strategy, room = self._strategy, self._context - (0 if self._lm.config.has_decoder else new_tokens)
        given = [strategy.encode(of.context)[-room:] for of in asked]
        write = self._lm.writer(max_new_tokens=new_tokens, num_return_sequences=1)
        with self._bar(what, len(given), "answer") as bar:
            new = batches.by_length(given, self._batch_size, write, bar.update)
        texts = [strategy.to_text(*pair) for pair in zip(given, new, strict=True)]
        stops = (LINE_END, self._task.prompt.separator)
        pairs = [
            (example.answers, constraints.cut(text.lstrip(), stops).strip())
            for example, text in zip(self.tested, texts, strict=True)
        ]
        return {
            "exact_match": float(np.mean([metrics.exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([metrics.answer_f1(*pair) for pair in pairs])),
        }
