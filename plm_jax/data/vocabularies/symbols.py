"""How files write special tokens, and what special ids a file allows."""

from collections.abc import Container, Sequence

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import words
from plm_jax.data.vocabulary_config import VocabularyConfig

# How a SentencePiece model writes the special ids for which it has no field (Lan et al. 2020, arXiv:1909.11942), and
# how a WordPiece file does.
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
WORD_SYMBOLS = {"bos": words.BOS, "eos": words.EOS, "unk": words.UNK}


def own_sentinels(path: str, tokens: Sequence[str], specials: VocabularyConfig) -> int:
    """With how many sentinels a file ends that are the config's; more, or other ids above them, would be their ids."""
    own = sum("<extra_id_" in token for token in tokens) if specials.sentinels else 0
    if own and specials.sentinels != own:
        raise UserError(f"config.vocabulary.sentinels is {specials.sentinels} but {path} has {own}: set it to that")
    if own and specials.added:
        raise UserError(f"{path} ends with its sentinels, no id goes above them: set config.vocabulary.added to 0")
    return own


def check_not_text(path: str, specials: VocabularyConfig, text: Container[int]) -> None:
    """No special id may be that of a token that text becomes."""
    for name in SPECIALS:
        if (given := getattr(specials, name)) is not None and given in text:
            raise UserError(f"config.vocabulary.{name} is {given}, a token of text in {path}: give a special one's id")


def check_symbols(path: str, ids: dict[str, int], symbols: dict[str, str], specials: VocabularyConfig) -> None:
    """The special ids must be those that a file gives their symbols, or lie above the file."""
    for name, symbol in symbols.items():
        own, given = ids.get(symbol), getattr(specials, name)
        is_added = own is None and given is not None and given >= len(ids)
        if given is not None and own != given and not is_added:
            has = f"has no {symbol}: add it" if own is None else f"has {own}: set it to {own}"
            raise UserError(f"config.vocabulary.{name} is {given} but {path} {has}")


def read(path: str) -> bytes:
    """What a file of a vocabulary holds, which is at most as large as the largest of any kind."""
    try:
        return storage.read(path, strict_json.MOST_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> UserError:
    """The mistake of naming a file that cannot be read."""
    return UserError(f"cannot read the vocabulary's {path} ({error.strerror}): mend config.vocabulary.spec")
