"""Lists of sites, URLs and bad words, and evaluation sets. They are not part of plm_jax; settings name their files."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.cleaning import decontamination, rules, settings
from plm_jax.common import storage
from plm_jax.common.errors import UserError

# A list's file name, such as `en` or `fr-CA-u-sd-caqc`. Other files (LICENSE, README.md) are ignored.
_LANGUAGE = re.compile(r"([a-z]{2,3})(-[A-Za-z-]+)?")


class Lists(NamedTuple):
    """Lists of a run. Lists that the settings do not use are empty.

    Attributes:
      domains: dict from a registered domain to its allowed subdomains.
      url_files: paths of files with URLs.
      badwords: dict from a language to its bad words.
      files: dict from the path of each file to its SHA-256.
      evaluations: files of evaluation sets.
    """

    domains: Mapping[str, Any]
    url_files: list[str]
    badwords: Mapping[str, set[str]]
    files: Mapping[str, str]
    evaluations: Sequence[decontamination.EvaluationFile] = ()


def load(rule: settings.CleaningConfig) -> Lists:
    """Reads the lists that settings name. Lists of URLs may be long and stay in their files.

    Raises:
      UserError: a list is missing or invalid.
    """
    files, domains, url_files, badwords = [], {}, [], {}
    if rule.pages is not None:
        files += _files(rule.pages.path, "settings.pages.path")
        if isinstance(rule.pages, settings.DomainsConfig):
            domains = _domains(files)
        else:
            url_files = list(files)
    if rule.badwords is not None:
        word_files = _files(rule.badwords.path, "settings.badwords.path")
        badwords = _badwords(word_files, rule.badwords.path, rule.language)
        files += word_files
    evaluations = [] if rule.decontamination is None else decontamination.describe(rule.decontamination)
    files += [evaluation.path for evaluation in evaluations]
    return Lists(domains, url_files, badwords, {path: storage.sha256(path) for path in files}, evaluations)


def check_unchanged(path: str, sha256: str, expected: str) -> None:
    """Checks that a task has read the same version of a list as the command.

    Raises:
      UserError: the hashes of the two versions differ.
    """
    if sha256 != expected:
        raise UserError(f"{path} has changed since the command read it: run the same command again")


def _files(path: str, field: str) -> list[str]:
    files = [storage.absolute(file) for file in storage.glob(path)]
    if not files:
        raise UserError(f"there is no file at {path}: fix {field}")
    return files


def _text(path: str) -> str:
    try:
        return storage.read(path).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: convert it to UTF-8") from error


def _domains(files: list[str]) -> dict[str, Any]:
    domains = {}
    for path in files:
        try:
            domains |= json.loads(_text(path))
        except (ValueError, TypeError, RecursionError):
            raise UserError(
                f"{path} is not a JSON object of domains: use RealNews' domain_to_allowed_subdomains"
            ) from None
    return domains


def _badwords(
    files: list[str], path: str, language: settings.LangdetectConfig | settings.Cld3Config | None
) -> dict[str, set[str]]:
    words: dict[str, set[str]] = {}
    for file in files:
        match = _LANGUAGE.fullmatch(os.path.basename(file))
        if match:
            listed = {line.strip() for line in _text(file).splitlines()} - {""}
            words.setdefault(match[1], set()).update(listed)
    words = {code: listed - rules.ALLOWED_WORDS.get(code, set()) for code, listed in words.items()}
    only = language.language if isinstance(language, settings.LangdetectConfig) else None
    if not any(words.values()) or (only and not words.get(only)):
        raise UserError(f"{path} has no words for {only or 'any language'}: name each file by its language")
    return {code: listed for code, listed in words.items() if listed}
