"""Zero- and few-shot evaluation: a model answers prompts by choosing or generating answers, without training."""

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
from plm_jax.data.labeled import metrics
from plm_jax.data.layouts import randomness
from plm_jax.evaluation import perplexity, prompts, scoring
from plm_jax.generation import constraints
from plm_jax.generation.scoring import score_rows
from plm_jax.inference import batches
from plm_jax.inference.language_model import LanguageModel

Normalization = Literal["sum", "token", "character", "byte", "unconditional"]
# Generated answers end here or at the separator between examples.
LINE_END = "\n"
# Share of random guessers whose accuracy is between `chance_low` and `chance_high`.
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class FewShotOptions:
    """Settings of a zero- or few-shot evaluation.

    Attributes:
      shots: numbers of examples in the prompt, such as (0, 1, 5); each number yields one set of metrics.
      seeds: seeds with which the examples are drawn; metrics are means over the seeds.
      normalize: normalization of the log-probability of a choice. `token`, `character` and `byte` divide it by the
        number of tokens, characters or UTF-8 bytes of the choice. `unconditional` subtracts the log-probability of the
        choice after `prompt.condition` alone. `sum` does not normalize.
      balanced: whether examples are drawn evenly over the choices, so that the numbers of examples per choice differ by
        at most one.
      limit: maximum number of rows that are evaluated; None for all. The rows are drawn at random, because files are
        often sorted by label. All models are evaluated on the same rows.
      show: number of prompts that are printed in full, for each number of shots.
    """

    shots: tuple[int, ...] = (0,)
    seeds: tuple[int, ...] = (0,)
    normalize: Normalization = "sum"
    balanced: bool = False
    limit: int | None = None
    show: int = 0

    def __post_init__(self):
        if self.normalize not in get_args(Normalization):
            raise UserError(f"--normalize is {self.normalize}: {nearest(self.normalize, get_args(Normalization))}")
        if not self.shots or not self.seeds:
            raise UserError("--shots or --seeds is empty: pass at least one number")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit is {self.limit}: pass at least 1")


def evaluate(
    lm: LanguageModel, run: config.Run | None, task_name: str, options: FewShotOptions, show_progress: bool = True
) -> dict[str, float]:
    """Returns the metrics of a model's answers to the prompts of a task.

    Args:
      run: run whose sources the task may name; other names are looked up in `configs/tasks`.
      task_name: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Returns:
      A dict of metrics. Metrics with the prefix `K_shots/` are computed with K examples in each prompt.

      - For all tasks: `examples`, the number of rows; `K_shots/dropped`, the number of examples that were left out of
        prompts because they did not fit into the model's context; and `K_shots/cut`, the number of prompts that were
        cut because they did not fit even without examples.
      - For choices: `K_shots/accuracy`; `chance`, the expected accuracy of guessing; `chance_low` and `chance_high`,
        the range that contains the accuracies of 95 % of guessers; and, if all rows have the same choices,
        `trivial_accuracy`, the accuracy of always answering with the most frequent choice.
      - For choices, if rows have scores: `K_shots/pearson` and `K_shots/mse`.
      - For generated answers: `K_shots/exact_match`, `K_shots/f1`, and `trivial_exact_match`, the exact match of always
        giving the most frequent answer.

      With several seeds, metrics of K shots are means over the seeds. `K_shots/accuracy_deviation` for choices, or
      `K_shots/exact_match_deviation` for generated answers, is then the standard deviation over the seeds. Zero shots
      use only the first seed.

    Raises:
      UserError: the task cannot be loaded (`prompts.load_task`), examples cannot be drawn (`prompts.ShotSampler`), or
        the model cannot continue text.
    """
    lm.strategy.continuation_row([0], [0])  # Raises for such a model before any row is read.
    task = prompts.load_task(run, task_name)
    row_numbers = np.arange(len(task.tested))
    if options.limit is not None and options.limit < len(row_numbers):
        row_numbers = np.sort(randomness.generator(0, "limit").choice(row_numbers, options.limit, replace=False))
    batch_size = 32 if run is None else run.evaluation.batch_size
    evaluator = _FewShotEvaluator(lm, task, row_numbers.tolist(), options, batch_size, show_progress)
    results = {"examples": len(row_numbers)} | _without_model(task, evaluator.tested)
    for shots in options.shots:
        seeds = options.seeds if shots else options.seeds[:1]  # Zero-shot prompts do not depend on the seed.
        metrics_per_seed = [evaluator.evaluate(shots, seed, show=seed == seeds[0]) for seed in seeds]
        for name in metrics_per_seed[0]:
            results[f"{shots}_shots/{name}"] = float(np.mean([seed_metrics[name] for seed_metrics in metrics_per_seed]))
        if len(seeds) > 1:
            name = next(iter(metrics_per_seed[0]))
            results[f"{shots}_shots/{name}_deviation"] = float(
                np.std([seed_metrics[name] for seed_metrics in metrics_per_seed], ddof=1)
            )
    return results


def _without_model(task: prompts.PromptTask, tested: Sequence[prompts.PromptExample]) -> dict[str, float]:
    """Returns the metrics in the result of `evaluate` that do not depend on the model."""
    if not tested[0].choices:
        ((answer, _),) = collections.Counter(example.answers[0] for example in tested).most_common(1)
        matches = [metrics.exact_match(example.answers, answer) for example in tested]
        return {"trivial_exact_match": float(np.mean(matches))}
    chance = float(np.mean([1 / len(example.choices) for example in tested]))
    low, high = stats.binom.interval(CONFIDENCE, len(tested), chance)
    chances = {"chance": chance, "chance_low": low / len(tested), "chance_high": high / len(tested)}
    if task.labels:
        ((_, count),) = collections.Counter(example.right for example in tested).most_common(1)
        chances["trivial_accuracy"] = count / len(tested)
    return {name: float(value) for name, value in chances.items()}


class _FewShotEvaluator:
    """Evaluator of a model on the rows of a task."""

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
        self._bar = functools.partial(perplexity.progress_bar, show=show_progress)
        self._unconditional: dict[str, float] = {}

    def evaluate(self, shots: int, seed: int, show: bool) -> dict[str, float]:
        """Returns the metrics over all rows, for one number of shots and one seed. Prints prompts if `show` is true."""
        sample_shots = prompts.ShotSampler(self._task, shots, seed, self._options.balanced)
        is_generated = not self.tested[0].choices
        delimiter = self._task.prompt.delimiter
        answers = {delimiter + answer for example in self.tested for answer in example.choices or example.answers}
        longest = max(len(self._lm.tokenizer.encode(answer)) for answer in answers)
        # More tokens than any correct answer has, so that a longer answer counts as wrong.
        new_tokens = min(1 << longest.bit_length(), max(1, self._context // 2))
        room = self._context - (0 if self._lm.config.has_decoder else new_tokens if is_generated else longest)
        fitted_prompts = [
            prompts.fit_prompt(
                self._task.prompt, sample_shots(number), example.question, self._count_tokens, max(1, room)
            )
            for number, example in zip(self._numbers, self.tested, strict=True)
        ]
        if show:
            self._print(fitted_prompts, shots, seed)
        description = f"{self._task.name}, {shots} shots, seed {seed}"
        if is_generated:
            results = self._evaluate_generated(fitted_prompts, new_tokens, description)
        else:
            results = self._evaluate_choices(fitted_prompts, description)
        dropped = sum(fitted.dropped for fitted in fitted_prompts)
        return results | {"dropped": dropped, "cut": sum(fitted.is_cut for fitted in fitted_prompts)}

    def _count_tokens(self, text: str) -> int:
        return len(self._strategy.encode(text))

    def _print(self, fitted_prompts: Sequence[prompts.FittedPrompt], shots: int, seed: int) -> None:
        rows = zip(self._numbers, fitted_prompts, self.tested, strict=True)
        for number, fitted, example in itertools.islice(rows, self._options.show):
            print(f"--- {self._task.name}, row {number}, {shots} shots, seed {seed}, {fitted.dropped} dropped ---")
            print(fitted.context, end="")
            delimiter, answers = self._task.prompt.delimiter, " or ".join(example.answers)
            wrong_choices = [choice for choice in example.choices if choice != example.answers[0]]
            print(f"{delimiter}[{answers}]" + "".join(f" not [{choice}]" for choice in wrong_choices), flush=True)

    def _evaluate_choices(self, fitted_prompts: Sequence[prompts.FittedPrompt], description: str) -> dict[str, float]:
        """Returns the accuracy of answering with the choice whose normalized log-probability is highest.

        If rows have scores, also returns `pearson` and `mse`.
        """
        prompt, rows = self._task.prompt, list(zip(fitted_prompts, self.tested, strict=True))
        pairs = [(fitted.context, choice) for fitted, example in rows for choice in example.choices]
        pair_scores = self._scores([(text, prompt.delimiter + choice) for text, choice in pairs], description)
        scores = dict(zip(pairs, pair_scores, strict=True))
        if self._options.normalize == "unconditional":
            new_choices = [
                choice for choice in dict.fromkeys(pair[1] for pair in pairs) if choice not in self._unconditional
            ]
            unconditional_scores = self._scores(
                [(prompt.condition, prompt.delimiter + choice) for choice in new_choices], description
            )
            self._unconditional |= {
                choice: score for choice, (score, _) in zip(new_choices, unconditional_scores, strict=True)
            }
        chosen = [
            int(np.argmax([self._normalize(choice, *scores[fitted.context, choice]) for choice in example.choices]))
            for fitted, example in rows
        ]
        results = {"accuracy": metrics.accuracy([example.right for example in self.tested], chosen)}
        if self._task.is_scored:
            predicted = [float(example.choices[index]) for example, index in zip(self.tested, chosen, strict=True)]
            expected = [example.value for example in self.tested]
            squared_error = float(np.mean((np.array(expected) - predicted) ** 2))
            results |= {"pearson": metrics.pearson(expected, predicted), "mse": squared_error}
        return results

    def _scores(self, pairs: Sequence[tuple[str, str]], description: str) -> list[tuple[float, int]]:
        """Returns the log-probability and the number of tokens of the answer in each pair (context, answer)."""
        rows = [self._strategy.text_continuation_row(*pair) for pair in pairs]
        with self._bar(description, len(rows), "answer") as progress_bar:
            scores = score_rows(self._strategy, rows, progress_bar.update)
        return [(scored.score.log_likelihood, len(row.targets)) for scored, row in zip(scores, rows, strict=True)]

    def _normalize(self, choice: str, score: float, num_tokens: int) -> float:
        normalization = self._options.normalize
        if normalization == "unconditional":
            return score - self._unconditional[choice]
        lengths = {"sum": 1, "token": num_tokens, "character": len(choice), "byte": len(choice.encode("utf-8"))}
        return score / lengths[normalization]

    def _evaluate_generated(
        self, fitted_prompts: Sequence[prompts.FittedPrompt], new_tokens: int, description: str
    ) -> dict[str, float]:
        """Generates answers and compares them with the correct answers.

        A generated answer ends at the first line end or at the separator between examples.
        """
        strategy, room = self._strategy, self._context - (0 if self._lm.config.has_decoder else new_tokens)
        encoded = [strategy.encode(fitted.context)[-room:] for fitted in fitted_prompts]
        write = self._lm.writer(max_new_tokens=new_tokens, num_return_sequences=1)
        with self._bar(description, len(encoded), "answer") as progress_bar:
            generated = batches.map_by_length(encoded, self._batch_size, write, progress_bar.update)
        texts = [strategy.to_text(*pair) for pair in zip(encoded, generated, strict=True)]
        stops = (LINE_END, self._task.prompt.separator)
        pairs = [
            (example.answers, constraints.cut(text.lstrip(), stops).strip())
            for example, text in zip(self.tested, texts, strict=True)
        ]
        return {
            "exact_match": float(np.mean([metrics.exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([metrics.answer_f1(*pair) for pair in pairs])),
        }
