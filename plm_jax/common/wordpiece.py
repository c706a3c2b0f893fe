"""What BERT's vocab.txt tells of itself; here, because models from elsewhere and text alike are read by it."""

# More than four times as many as the largest published vocabulary has.
MOST_TOKENS = 2**22


def read(data: bytes) -> list[str]:
    """The tokens of a vocab.txt, one a line; id = line, from 0; raises as `lines`."""
    return lines(data)


def lines(data: bytes, errors: str = "strict") -> list[str]:
    """The lines of a file of tokens, none of which is empty; `errors` as of `bytes.decode`.

    Raises:
      ValueError: it is no text of UTF-8, or one of empty lines, a byte order mark or more lines than any vocabulary.
    """
    if data.count(b"\n") > MOST_TOKENS:
        raise ValueError(f"more than {MOST_TOKENS:,} lines")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it begins with a byte order mark: save it without")
    found = data.decode("utf-8", errors).removesuffix("\n").replace("\r\n", "\n").split("\n")
    if "" in found:
        raise ValueError(f"line {found.index('') + 1} is empty")
    return found


def is_uncased(tokens: list[str]) -> bool:
    """Whether no token but the bracketed has an upper-case letter."""
    return all(token == token.lower() for token in tokens if not token.startswith("["))
