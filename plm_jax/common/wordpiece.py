"""Reading of BERT's vocab.txt."""

# More than four times the size of the largest published vocabulary.
MOST_TOKENS = 2**22


def read(data: bytes) -> list[str]:
    """Returns the tokens of a vocab.txt: one token per line, in the order of ids. Raises the errors of `lines`."""
    return lines(data)


def lines(data: bytes, errors: str = "strict") -> list[str]:
    """Returns the lines of a file of tokens, without line breaks; `errors` is passed to `bytes.decode`.

    Raises:
      ValueError: the file has an empty line, a byte order mark or more than `MOST_TOKENS` lines, or it is not UTF-8 and
        `errors` is "strict".
    """
    if data.count(b"\n") > MOST_TOKENS:
        raise ValueError(f"more than {MOST_TOKENS:,} lines")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it begins with a byte order mark: save it without")
    tokens = data.decode("utf-8", errors).replace("\r\n", "\n").removesuffix("\n").split("\n")
    if "" in tokens:
        raise ValueError(f"line {tokens.index('') + 1} is empty")
    return tokens


def is_uncased(tokens: list[str]) -> bool:
    """Whether no token has upper-case letters, except tokens that begin with `[`."""
    return all(token == token.lower() for token in tokens if not token.startswith("["))
