"""Settings and lists of a job: the driver writes them to the job's folder, and workers build the rules from them."""

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from plm_jax.cleaning import decontamination, duplicates, lists, quality, rules, settings
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.common import storage, tasks, trees

_FILE = "settings.json"


class _JobRules(NamedTuple):
    """Settings and lists of a job.

    Attributes:
      domains: dict from a registered domain to its allowed subdomains.
      badwords: dict from a language to its bad words.
      evaluations: dict from the path of each file of the evaluation sets to its SHA-256.
    """

    rule: settings.CleaningConfig
    domains: Mapping[str, Any]
    badwords: Mapping[str, set[str]]
    evaluations: Mapping[str, str]


def write(folder: str, rule: settings.CleaningConfig, loaded: lists.Lists) -> None:
    """Writes settings and lists to the job's folder."""
    content = {
        "settings": trees.to_dict(rule),
        "domains": loaded.domains,
        "badwords": {language: sorted(words) for language, words in loaded.badwords.items()},
        "evaluations": {evaluation.path: loaded.files[evaluation.path] for evaluation in loaded.evaluations},
    }
    storage.write(os.path.join(folder, _FILE), json.dumps(content, ensure_ascii=False).encode("utf-8"))


@functools.lru_cache(2)
def _read(folder: str, identity: str) -> _JobRules:
    del identity
    content = json.loads(storage.read(os.path.join(folder, _FILE)))
    rule = trees.parse(settings.CleaningConfig, content["settings"], "settings")
    badwords = {language: set(words) for language, words in content["badwords"].items()}
    return _JobRules(rule, content["domains"], badwords, content["evaluations"])


def config(workspace: tasks.Workspace) -> settings.CleaningConfig:
    """Returns the settings of the job."""
    return _read(workspace.folder, workspace.identity).rule


@functools.lru_cache(4)
def comparison(rule: settings.CleaningConfig, compared: str) -> Any:
    """Returns the object that compares pages for the settings field `compared`: `duplicates` or `near_duplicates`."""
    section = getattr(rule, compared)
    return duplicates.KINDS[type(section)](section)


def apply(workspace: tasks.Workspace, segments: Iterable[str], pages: Iterable[Page], counts: Tally) -> Iterator[Page]:
    """Yields the pages that pass the rules of some segments, as the rules have changed them.

    Counts the pages after each rule. A segment is a group of consecutive rules: `read` (length and sites), `before` or
    `after` the comparison `duplicates`.
    """
    steps = [step for name in segments for step in _segment(workspace.folder, workspace.identity, name)]
    for page in pages:
        result: Page | None = page
        for name, rule in steps:
            result = rule(result, counts)
            if result is None:
                break
            counts.count(f"after {name}", result.text)
        else:
            yield result


@functools.lru_cache(8)
def _segment(folder: str, identity: str, name: str) -> list[tuple[str, rules.PageRule]]:
    """Returns the name and the rule of each step of a segment. Cached: it takes long to make a language detector."""
    known = _read(folder, identity)
    rule, result = known.rule, []
    if name == "read":
        result.append(("length", rules.MaxCharacters(rule.max_characters)))
        if isinstance(rule.pages, settings.DomainsConfig):
            result.append(("sites", rules.InDomains(known.domains)))
    elif name == "before":
        if rule.repetition is not None:
            result.append(("repetition", quality.GopherRepetition(rule.repetition)))
        if rule.quality is not None:
            result.append(("quality", quality.GopherQuality(rule.quality)))
        if rule.paragraphs is not None:
            result.append(("paragraphs", rules.HasParagraphs(rule.paragraphs)))
        if rule.lines is not None:
            result.append(("lines", rules.LineFilter(rule.lines)))
        if rule.fineweb is not None:
            result.append(("FineWeb", quality.FineWebQuality(rule.fineweb)))
    else:
        if rule.language is not None:
            result.append(("language", rules.LANGUAGES[type(rule.language)](rule.language)))
        if rule.badwords is not None:
            result.append(("bad words", rules.NoBadWords(known.badwords, rule.badwords.fraction)))
        if rule.decontamination is not None:
            for path, sha256 in known.evaluations.items():
                lists.check_unchanged(path, storage.sha256(path), sha256)
            sets = decontamination.NoEvaluationText(rule.decontamination, list(known.evaluations))
            result.append(("decontamination", sets))
    return result
