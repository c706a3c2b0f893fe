"""What BERT's vocab.txt tells of itself; here, because models from elsewhere and text alike are read by it."""


def read(data: bytes) -> list[str]:
    """The tokens of a vocab.txt, one a line; id = line, from 0."""
    return data.decode("utf-8", "replace").removesuffix("\n").replace("\r\n", "\n").split("\n")


def is_uncased(tokens: list[str]) -> bool:
    """Whether no token but the bracketed has an upper-case letter."""
    return all(token == token.lower() for token in tokens if not token.startswith("["))
