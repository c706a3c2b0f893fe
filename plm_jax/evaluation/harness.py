"""Evaluation on the tasks of EleutherAI's lm-eval (lm_eval 0.4), with the scoring code of `LanguageModel.score`.

Importing this module requires lm-eval, which the extra `harness` installs. Neither torch nor transformers is needed.
"""

import collections
import logging
import numbers
import random
from collections.abc import Callable, Sequence
from typing import Any

import lm_eval  # pyright: ignore[reportMissingImports]
import numpy as np
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.evaluation import perplexity, scoring
from plm_jax.generation import constraints
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.scoring import TokenScores, score_rows
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import move_spaces
from plm_jax.inference import batches
from plm_jax.inference.language_model import LanguageModel

# Number of new tokens if a task sets none, as in lm-eval's own models.
MAX_NEW_TOKENS = 256


def evaluate(
    lm: LanguageModel,
    tasks: Sequence[str],
    include_path: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    show_progress: bool = True,
) -> dict[str, dict[str, float]]:
    """Evaluates a model with lm-eval.

    Args:
      tasks: names of lm-eval's own tasks or groups, whose data lm-eval downloads, or of tasks defined in
        `include_path`.
      include_path: folder of YAML files with further tasks.
      limit: maximum number of examples of each task; None for all.
      batch_size: number of answers that are generated at the same time.

    Returns:
      The metrics of each task and of each group of tasks, by name. Accuracies are from 0 to 1.

    Raises:
      UserError: a task is unknown, cannot be loaded or is named twice, or the model is neither a decoder nor an
        encoder-decoder.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # lm-eval warns about every default that a YAML file omits.
    loaded = _load(TaskManager(include_path=include_path), tasks)
    model = HarnessModel(lm, batch_size, show_progress)
    # `simple_evaluate` would also run git and other programs to describe the machine.
    random.seed(DEFAULT_RANDOM_SEED)  # As in `simple_evaluate`: some tasks shuffle rows with it.
    np.random.seed(DEFAULT_OTHER_SEED)
    evaluated: Any = lm_eval.evaluate(model, loaded, limit=limit, log_samples=False)
    return {name: _numbers(metrics) for name, metrics in evaluated["results"].items()}


def _load(manager: TaskManager, names: Sequence[str]) -> Any:
    """Loads tasks and groups, with the same few-shot examples that `lm_eval.simple_evaluate` draws."""
    tasks = [task for name in names for task in _loaded(manager, name)]
    try:
        loaded = manager.load(tasks)
    except ValueError as error:
        raise UserError(f"--harness: {one_line(error)}: name each task once, either itself or its group") from error
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return loaded


def _loaded(manager: TaskManager, name: str) -> list[Any]:
    if name not in manager.all_tasks:
        raise UserError(f"lm-eval has no task '{name}': {_hint(name, manager)}")
    try:
        loaded: Any = manager.load(name)
    except Exception as error:  # A YAML file, a data set or a download can fail in any way.
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"lm-eval cannot load '{name}' ({reason}): fix its YAML file or fetch its data") from error
    return [loaded["groups"][name]] if name in loaded["groups"] else list(loaded["tasks"].values())


def _hint(name: str, manager: TaskManager) -> str:
    hint = nearest(name, manager.all_tasks)
    return (
        hint
        if hint.startswith("did you mean")
        else "use a task of lm-eval, or pass the folder of your tasks as --include_path"
    )


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Selects the numbers among the results of a task.

    Names such as `acc,none` become `acc`; names such as `acc,FILTER` are unchanged.
    """
    named = {name.removesuffix(",none"): value for name, value in metrics.items()}
    return {k: float(v) for k, v in named.items() if isinstance(v, numbers.Real) and not isinstance(v, bool)}


class HarnessModel(LM):
    """Adapter with which lm-eval evaluates a decoder or an encoder-decoder. Requests are lm-eval's `Instance`s."""

    def __init__(self, lm: LanguageModel, batch_size: int = 32, show_progress: bool = True):
        super().__init__()
        self._lm, self._strategy = lm, lm.strategy
        self.batch_size, self._show = batch_size, show_progress
        self._strategy.continuation_row([1], [1])  # Raises if the model cannot continue text.

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in the model's context."""
        return scoring.context_length(self._lm)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Scores the continuation of each request after its context.

        Returns:
          A pair for each request: the log-probability of the continuation, in nats, and whether greedy decoding
          generates the continuation.
        """
        rows = [self._row(*request.args) for request in requests]
        scores = [scored.score for scored in self._score(rows, disable_tqdm)]
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def _row(self, context: str, continuation: str) -> ScoringRow:
        """Returns the row in which the model predicts a continuation, tokenized as in lm-eval's `hf` model.

        An encoder-decoder predicts the continuation without bos, even if its targets began with bos in training. If the
        context is empty, an encoder-decoder reads bos or, if there is no bos, eos.
        """
        if not self._lm.config.has_decoder:
            return self._strategy.text_continuation_row(context, continuation)
        prompt_text, answer = move_spaces(context, continuation)
        bos = self._lm.special_ids.get("bos_token_id")
        empty = self._strategy.eos_ids[:1] if bos is None else [bos]
        prompt_ids = self._strategy.encode(prompt_text) if context else empty
        return self._strategy.continuation_row(prompt_ids, list(self._lm.tokenizer.encode(answer)))

    def _score(self, rows: Sequence[ScoringRow], hidden: bool = False) -> list[TokenScores]:
        with perplexity.progress_bar("lm-eval: scoring", len(rows), "row", self._show and not hidden) as progress_bar:
            return score_rows(self._strategy, rows, progress_bar.update)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each text, scored in disjoint windows of the context length."""
        texts = [text for (text,) in (request.args for request in requests)]
        with perplexity.progress_bar("lm-eval: texts", 0, "row", self._show and not disable_tqdm) as progress_bar:
            return [score.log_likelihood for score in scoring.score_texts(self._lm, texts, advance=progress_bar.update)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the text that is generated for each request, cut at the first stop string.

        Only requests with `do_sample` use sampling.

        Raises:
          UserError: the new tokens of a request leave no room for a prompt in the decoder's context.
        """
        answers: dict[int, str] = {}
        with perplexity.progress_bar(
            "lm-eval: writing", len(requests), "answer", self._show and not disable_tqdm
        ) as progress_bar:
            for options, indices in _by_options(requests):
                encoded = [self._prompt(requests[i].args[0], options["max_new_tokens"]) for i in indices]
                stops = options.pop("stops")
                for i, text in zip(indices, self._generate(encoded, options, progress_bar.update), strict=True):
                    answers[i] = constraints.cut(text, stops)
        return [answers[i] for i in range(len(requests))]

    def _prompt(self, text: str, max_new_tokens: int) -> list[int]:
        """Returns the last tokens of a prompt. For a decoder, these leave room for `max_new_tokens` new tokens."""
        room = self.max_length - (0 if self._lm.config.has_decoder else max_new_tokens)
        if room < 1:
            raise UserError(
                f"a task asks for {max_new_tokens} new tokens, and the model's context has {self.max_length}: lower "
                "max_gen_toks of the task"
            )
        return self._strategy.encode(text)[-room:]

    def _generate(
        self, encoded: Sequence[list[int]], options: dict[str, Any], advance: Callable[[int], Any]
    ) -> list[str]:
        write = self._strategy.writer(DecodingConfig(), **options)  # Settings come from the task, not from the run.
        generated = batches.map_by_length(encoded, self.batch_size, write, advance)
        return [self._strategy.to_text(*pair) for pair in zip(encoded, generated, strict=True)]


def _by_options(requests: Sequence[Any]) -> list[tuple[dict[str, Any], list[int]]]:
    """Groups requests by their options.

    Returns:
      A pair for each group: its options (arguments of `lm.writer`, and `stops`), and the indices of its requests.
    """
    groups: dict[str, tuple[dict[str, Any], list[int]]] = collections.OrderedDict()
    for index, request in enumerate(requests):
        arguments = dict(request.args[1])
        stops = arguments.get("until") or []
        options: dict[str, Any] = {"stops": [stops] if isinstance(stops, str) else list(stops)}
        options["max_new_tokens"] = int(arguments.get("max_gen_toks", arguments.get("max_new_tokens", MAX_NEW_TOKENS)))
        if arguments.get("do_sample"):
            options |= {
                name: arguments[name] for name in ("temperature", "top_k", "top_p") if arguments.get(name) is not None
            }
            options.setdefault("temperature", 1.0)
        options |= {"num_beams": int(arguments["num_beams"])} if arguments.get("num_beams") else {}
        groups.setdefault(repr(sorted(options.items())), (options, []))[1].append(index)
    return list(groups.values())
