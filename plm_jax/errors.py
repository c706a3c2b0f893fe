"""The one exception that means "the user can mend this": a verb prints its line and exits with status 2."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave; the message is one line that says what to do."""


def one_line(error: Exception, limit: int | None = 200) -> str:
    """What an exception says, on one line of at most `limit` characters."""
    return " ".join(str(error).split())[:limit]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'steps'?`, or the list of what there is when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}"
