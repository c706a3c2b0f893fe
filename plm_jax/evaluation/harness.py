"""A model before lm-eval's tasks (EleutherAI, lm_eval 0.4): what that asks of one, by rows of ids as `lm.score` reads.

Importing this imports lm-eval, the extra `harness`, which needs neither torch nor transformers.
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
from plm_jax.evaluation import batches, perplexity, scoring
from plm_jax.generation import constraints
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.scoring import TokenScores, score_rows
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import move_spaces
from plm_jax.inference.language_model import LanguageModel

# What lm-eval's own models write at most where a task does not say.
MAX_NEW_TOKENS = 256


def evaluate(
    lm: LanguageModel,
    tasks: Sequence[str],
    include_path: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    show_progress: bool = True,
) -> dict[str, dict[str, float]]:
    """The metrics of lm-eval's tasks or groups of tasks, by their names, as lm-eval gives them: shares from 0 to 1.

    Args:
      tasks: names of lm-eval's own, whose data it downloads, or of YAML files in `include_path`.
      limit: only so many examples of each.
      batch_size: of answers that are written.

    Raises:
      UserError: an unknown task, one that cannot be loaded, a model that is neither a decoder nor an encoder-decoder.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # It tells of every default that a YAML file leaves out.
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
        raise UserError(f"--harness: {one_line(error)}: name each task once, alone or by its group") from error
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return loaded


def _loaded(manager: TaskManager, name: str) -> list[Any]:
    if name not in manager.all_tasks:
        raise UserError(f"lm-eval has no task '{name}': {_hint(name, manager)}")
    try:
        found: Any = manager.load(name)
    except Exception as error:  # Whatever a YAML file, a data set or a download can have wrong.
        what = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"lm-eval cannot load '{name}' ({what}): mend its YAML file or fetch its data") from error
    return [found["groups"][name]] if name in found["groups"] else list(found["tasks"].values())


def _hint(name: str, manager: TaskManager) -> str:
    hint = nearest(name, manager.all_tasks)
    return hint if hint.startswith("did you mean") else "name one of its own, or the folder of yours by --include_path"


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The numbers among what lm-eval says of a task; `acc,none` is `acc`, of another filter than none `acc,FILTER`."""
    named = {name.removesuffix(",none"): value for name, value in metrics.items()}
    return {k: float(v) for k, v in named.items() if isinstance(v, numbers.Real) and not isinstance(v, bool)}


class HarnessModel(LM):
    """lm-eval interface of a decoder or an encoder-decoder; requests are lm-eval's `Instance`s."""

    def __init__(self, lm: LanguageModel, batch_size: int = 32, show_progress: bool = True):
        super().__init__()
        self._lm, self._strategy = lm, lm.strategy
        self.batch_size, self._show = batch_size, show_progress
        self._strategy.continuation_row([1], [1])  # Raises for a model that continues no text.

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in the model's context."""
        return scoring.context_length(self._lm)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the log-probability of each continuation after its context, and whether it is the greedy one."""
        rows = [self._row(*request.args) for request in requests]
        scores = [scored.score for scored in self._told(rows, disable_tqdm)]
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def _row(self, context: str, continued: str) -> ScoringRow:
        """Returns the row of a continuation, tokenized as lm-eval's `hf` model does.

        An encoder-decoder scores the continuation without the bos that targets may begin with in training. It reads bos
        or eos alone in place of an empty context.
        """
        if not self._lm.config.has_decoder:
            return self._strategy.text_continuation_row(context, continued)
        moved, answer = move_spaces(context, continued)
        bos = self._lm.special_ids.get("bos_token_id")
        empty = self._strategy.eos_ids[:1] if bos is None else [bos]
        read = self._strategy.encode(moved) if context else empty
        return self._strategy.continuation_row(read, list(self._lm.tokenizer.encode(answer)))

    def _told(self, rows: Sequence[ScoringRow], hidden: bool = False) -> list[TokenScores]:
        with perplexity.bar("lm-eval: scoring", len(rows), "row", self._show and not hidden) as bar:
            return score_rows(self._strategy, rows, bar.update)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, each token after as much before it as windows have that follow one another."""
        texts = [text for (text,) in (request.args for request in requests)]
        with perplexity.bar("lm-eval: texts", 0, "row", self._show and not disable_tqdm) as bar:
            return [told.log_likelihood for told in scoring.score_texts(self._lm, texts, advance=bar.update)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes, up to the first of the texts that end it; greedily unless `do_sample`."""
        answers: dict[int, str] = {}
        with perplexity.bar("lm-eval: writing", len(requests), "answer", self._show and not disable_tqdm) as bar:
            for options, numbers_of in _by_options(requests):
                encoded = [self._prompt(requests[i].args[0], options["max_new_tokens"]) for i in numbers_of]
                stops = options.pop("stops")
                for i, text in zip(numbers_of, self._written(encoded, options, bar.update), strict=True):
                    answers[i] = constraints.cut(text, stops)
        return [answers[i] for i in range(len(requests))]

    def _prompt(self, text: str, max_new_tokens: int) -> list[int]:
        """The last tokens of a prompt beside which a decoder has room for its answer."""
        room = self.max_length - (0 if self._lm.config.has_decoder else max_new_tokens)
        if room < 1:
            raise UserError(
                f"a task asks for {max_new_tokens} new tokens, the model reads {self.max_length}: lower the task's "
                "max_gen_toks"
            )
        return self._strategy.encode(text)[-room:]

    def _written(
        self, encoded: Sequence[list[int]], options: dict[str, Any], advance: Callable[[int], Any]
    ) -> list[str]:
        write = self._strategy.writer(DecodingConfig(), **options)  # The task says how, not the run.
        new = batches.by_length(encoded, self.batch_size, write, advance)
        return [self._strategy.to_text(*pair) for pair in zip(encoded, new, strict=True)]


def _by_options(requests: Sequence[Any]) -> list[tuple[dict[str, Any], list[int]]]:
    """Which requests share a task's options, and these as `lm.writer` takes them, with `stops`."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = collections.OrderedDict()
    for number, request in enumerate(requests):
        given = dict(request.args[1])
        stops = given.get("until") or []
        options: dict[str, Any] = {"stops": [stops] if isinstance(stops, str) else list(stops)}
        options["max_new_tokens"] = int(given.get("max_gen_toks", given.get("max_new_tokens", MAX_NEW_TOKENS)))
        if given.get("do_sample"):
            options |= {name: given[name] for name in ("temperature", "top_k", "top_p") if given.get(name) is not None}
            options.setdefault("temperature", 1.0)
        options |= {"num_beams": int(given["num_beams"])} if given.get("num_beams") else {}
        groups.setdefault(repr(sorted(options.items())), (options, []))[1].append(number)
    return list(groups.values())
