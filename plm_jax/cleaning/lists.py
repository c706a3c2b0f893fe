"""The lists that settings name: RealNews' sites, WebText's URLs, bad words. None is part of plm_jax."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax.cleaning import rules, settings
from plm_jax.common import storage
from plm_jax.common.errors import UserError

# As in `en` or `fr-CA-u-sd-caqc`: what else a folder of lists holds (LICENSE, README.md) is none.
_LANGUAGE = re.compile(r"([a-z]{2,3})(-[A-Za-z-]+)?")


class Lists(NamedTuple):
    """Registered domain → allowed subdomains, files of URLs, language → bad words; what is not asked for is empty."""

    domains: Mapping[str, Any]
    url_files: list[str]
    badwords: Mapping[str, set[str]]
    files: list[str]


def load(rule: settings.CleaningConfig) -> Lists:
    """Reads the lists of some settings; of URLs, which may be many, only the names of the files.

    Raises:
      UserError: a list is not there or not what it should be.
    """
    files, domains, url_files, badwords = [], {}, [], {}
    if rule.pages is not None:
        files += _files(rule.pages.path, "settings.pages.path")
        if isinstance(rule.pages, settings.DomainsConfig):
            domains = _domains(files)
        else:
            url_files = list(files)
    if rule.badwords is not None:
        found = _files(rule.badwords.path, "settings.badwords.path")
        badwords = _badwords(found, rule.badwords.path, rule.language)
        files += found
    return Lists(domains, url_files, badwords, files)


def _files(path: str, what: str) -> list[str]:
    found = storage.glob(path)
    if not found:
        raise UserError(f"there is no file at {path}: mend {what}")
    return found


def _text(path: str) -> str:
    try:
        return storage.read(path).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: convert it") from error


def _domains(files: list[str]) -> dict[str, Any]:
    domains = {}
    for path in files:
        try:
            domains |= json.loads(_text(path))
        except (ValueError, TypeError, RecursionError):
            raise UserError(
                f"{path} is no JSON object of domains: give RealNews' domain_to_allowed_subdomains"
            ) from None
    return domains


def _badwords(
    files: list[str], path: str, language: settings.LangdetectConfig | settings.Cld3Config | None
) -> dict[str, set[str]]:
    words: dict[str, set[str]] = {}
    for file in files:
        named = _LANGUAGE.fullmatch(os.path.basename(file))
        if named:
            listed = {line.strip() for line in _text(file).splitlines()} - {""}
            words.setdefault(named[1], set()).update(listed)
    words = {code: listed - rules.ALLOWED_WORDS.get(code, set()) for code, listed in words.items()}
    wanted = language.language if isinstance(language, settings.LangdetectConfig) else None
    if not any(words.values()) or (wanted and not words.get(wanted)):
        raise UserError(f"{path} has no words for {wanted or 'any language'}: name each file by its language")
    return {code: listed for code, listed in words.items() if listed}
