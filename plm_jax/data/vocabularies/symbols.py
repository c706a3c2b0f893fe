"""Names of special tokens in the files of vocabularies, and checks of special ids."""

from collections.abc import Container, Sequence

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import words
from plm_jax.data.vocabulary_config import VocabularyConfig

# Names of special tokens in SentencePiece models, which lack fields for them (Lan et al. 2020, arXiv:1909.11942), and
# in WordPiece files.
SYMBOLS = {
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "sop": "<|startofpiece|>",
    "eop": "<|endofpiece|>",
    "smask": "[sMASK]",
    "gmask": "[gMASK]",
    "dblock": "[dBLOCK]",
}
WORDPIECE_SYMBOLS = {"pad": "[PAD]", "unk": "[UNK]", **SYMBOLS}
# Symbols of MPNet, whose file also has BERT's; <s> and </s> begin and end texts, as in RoBERTa.
MPNET_SYMBOLS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "[UNK]", "mask": "<mask>"}
WORD_SYMBOLS = {"bos": words.BOS, "eos": words.EOS, "unk": words.UNK}


def num_sentinels(path: str, tokens: Sequence[str], specials: VocabularyConfig) -> int:
    """Returns the number of sentinels in a file, or 0 if the config has no sentinels.

    Sentinels are tokens that contain `<extra_id_`; they must be the last tokens of the file.

    Raises:
      UserError: the file has sentinels, but the config has a different number of them or adds ids.
    """
    number = sum("<extra_id_" in token for token in tokens) if specials.sentinels else 0
    if number and specials.sentinels != number:
        raise UserError(
            f"config.vocabulary.sentinels is {specials.sentinels} but {path} has {number}: set it to {number}"
        )
    if number and specials.added:
        raise UserError(f"{path} ends with its sentinels, which have the highest ids: set config.vocabulary.added to 0")
    return number


def check_not_text(path: str, specials: VocabularyConfig, text: Container[int]) -> None:
    """Raises a `UserError` if a special id is in `text`, the ids of text tokens; `path` is the file in the message."""
    for name in SPECIALS:
        if (i := getattr(specials, name)) is not None and i in text:
            raise UserError(f"config.vocabulary.{name} is {i}, a text token in {path}: use the id of a special token")


def check_symbols(path: str, ids: dict[str, int], symbols: dict[str, str], specials: VocabularyConfig) -> None:
    """Checks that special ids are the ids of their symbols in a file.

    If the file lacks a symbol, the special id must be above the ids of the file.

    Args:
      ids: id of each token in the file.
      symbols: symbols by name of the special id. Special ids that are None are not checked.

    Raises:
      UserError: a special id differs from the id of its symbol.
    """
    for name, symbol in symbols.items():
        actual, expected = ids.get(symbol), getattr(specials, name)
        is_added = actual is None and expected is not None and expected >= len(ids)
        if expected is not None and actual != expected and not is_added:
            problem = f"has no {symbol}: add it" if actual is None else f"has {actual}: set it to {actual}"
            raise UserError(f"config.vocabulary.{name} is {expected} but {path} {problem}")


def read(path: str) -> bytes:
    """Reads a file of a vocabulary.

    Raises:
      UserError: the file cannot be read, or has more than `strict_json.MOST_BYTES` bytes.
    """
    try:
        return storage.read(path, strict_json.MOST_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> UserError:
    """Returns the error for a file of a vocabulary that cannot be read."""
    return UserError(f"cannot read the vocabulary's {path} ({error.strerror}): fix config.vocabulary.spec")
