"""GLM's blank infilling: positions, prompts and answers.

Part A of a row is the prompt with its masks. The fillings follow part A in the order of the masks, each after a token
sop (start of piece). In the rows of `objectives.BlankInfilling`, the order of the fillings is random.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from plm_jax.data.vocabularies import Vocabulary
from plm_jax.generation import blanks
from plm_jax.models.protocol import ModelConfig

# Masks in prompts, and the names of their ids.
MASKS = {"[MASK]": "mask_token_id", "[sMASK]": "smask_token_id", "[gMASK]": "gmask_token_id"}

# Function that continues each row of ids up to its eop.
Write = Callable[[list[list[int]]], list[list[int]]]


class Marks(NamedTuple):
    """Special ids of blank infilling: the masks, and the ids that begin (sop) and end (eop) a filling."""

    masks: tuple[int, ...]
    sop: int
    eop: int


def marks(model: ModelConfig, special_ids: Mapping[str, Any]) -> Marks | None:
    """Returns the special ids of a decoder that fills blanks, or None.

    The result is None for other architectures, and for decoders that lack the id of sop, of eop, or of every mask.
    """
    masks = tuple(special_ids[name] for name in MASKS.values() if name in special_ids)
    sop, eop = special_ids.get("sop_token_id"), special_ids.get("eop_token_id")
    if model.architecture != "decoder" or not masks or sop is None or eop is None:
        return None
    return Marks(masks, sop, eop)


def positions(
    tokens: Integer[np.ndarray, "batch length"], mask: Integer[np.ndarray, "batch length"], marks: Marks
) -> dict[str, np.ndarray]:
    """Returns the position inputs of the model for rows of tokens, as defined by `objectives.BlankInfilling`.

    Args:
      tokens: ids of the rows. The k-th sop of a row begins the filling of the k-th mask. If a row has more sops than
        masks, the remaining fillings belong to the last mask or, without masks, to the end of part A.
      mask: 1 for tokens, 0 for padding.

    Returns:
      A dict of int32 arrays: `positions` and `block_positions` [B, L], and `prefix_lengths` [B], the index of the first
      sop. A row without a sop has the prefix length L.
    """
    real = mask > 0
    text_positions = np.maximum(real.cumsum(axis=1) - 1, 0)
    opens = real & (tokens == marks.sop)
    filling = opens.cumsum(axis=1)
    index = np.arange(tokens.shape[1])
    begin = np.maximum.accumulate(np.where(opens, index, 0), axis=1)
    result = text_positions.copy()
    for row, masked in enumerate(real & np.isin(tokens, marks.masks) & (filling == 0)):
        targets = text_positions[row, masked]
        if not len(targets):
            targets = text_positions[row, filling[row] == 0][-1:]
        if opens[row].any() and len(targets):
            number = np.clip(filling[row] - 1, 0, len(targets) - 1)
            result[row] = np.where(filling[row], targets[number], text_positions[row])
    return {
        "positions": result.astype(np.int32),
        "block_positions": np.where(filling, index - begin + 1, 0).astype(np.int32),
        "prefix_lengths": (filling == 0).sum(axis=1).astype(np.int32),
    }


def encode(vocabulary: Vocabulary, text: str, special_ids: Mapping[str, Any]) -> list[int]:
    """Returns the ids of part A of a prompt.

    If the prompt has no mask, gmask is appended, or mask if there is no gmask.

    If there is an id of cls, cls is added before the text, and eos after the text. The eos is left out after a final
    gmask (THUDM/GLM, generate_samples.py) or if there is no id of eos.
    """
    ids = {mask: special_ids[name] for mask, name in MASKS.items() if name in special_ids}
    if not any(mask in text for mask in ids):
        text += "[gMASK]" if "[gMASK]" in ids else "[MASK]"
    tokens = blanks.encode(vocabulary, text, ids)
    if "cls_token_id" not in special_ids:
        return tokens
    ends = "eos_token_id" in special_ids and tokens[-1:] != [special_ids.get("gmask_token_id")]
    return [special_ids["cls_token_id"], *tokens, *([special_ids["eos_token_id"]] if ends else [])]


def fill(prompts: Sequence[Sequence[int]], marks: Marks, write: Write) -> list[list[list[int]]]:
    """Returns, for each prompt, the fillings of its masks.

    Masks are filled in order. The model reads the earlier fillings.

    Args:
      prompts: rows of ids: part A of each prompt.
      write: function that continues each row of ids up to an eop.
    """
    rows: list[list[int]] = [[*prompt, marks.sop] for prompt in prompts]
    fillings: list[list[list[int]]] = [[] for _ in prompts]
    counts = [sum(token in marks.masks for token in prompt) for prompt in prompts]
    for number in range(max(counts, default=0)):
        unfilled = [i for i, count in enumerate(counts) if count > number]
        for i, filling in zip(unfilled, write([rows[i] for i in unfilled]), strict=True):
            fillings[i].append(filling)
            rows[i] += [*filling, marks.sop]
    return fillings


def decode(
    vocabulary: Vocabulary,
    text: str,
    prompt: Sequence[int],
    fillings: Sequence[Sequence[int]],
    marks: Marks,
    special_ids: Mapping[str, Any],
) -> str:
    """Returns the text with its masks filled, or the continuation of a text without masks."""
    frame = {special_ids.get(f"{name}_token_id") for name in ("cls", "eos")}
    rows = parts([token for token in prompt if token not in frame], fillings, marks)
    filled = vocabulary.decode([token for part in rows for token in part])
    if any(mask in text for mask in MASKS):
        return filled
    return filled[len(vocabulary.decode([token for part in rows[:-1] for token in part])) :]


def parts(prompt: Sequence[int], fillings: Sequence[Sequence[int]], marks: Marks) -> list[Sequence[int]]:
    """Returns a list of ids for each token of a prompt: the filling of a mask, or the token itself."""
    fillings_in_order = iter(fillings)
    return [next(fillings_in_order) if token in marks.masks else [token] for token in prompt]
