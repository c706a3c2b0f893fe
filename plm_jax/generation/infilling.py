"""How GLM fills blanks, one after another behind the text: positions, prompts and answers.

Part A is a prompt with masks; each sop behind it begins the filling of the next mask (see `objectives.BlankInfilling`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.inference import blanks
from plm_jax.models.protocol import ModelConfig

# The masks as prompts have them, and the special ids that they are.
MASKS = {"[MASK]": "mask_token_id", "[sMASK]": "smask_token_id", "[gMASK]": "gmask_token_id"}


class Marks(NamedTuple):
    """The ids that stand for blanks, and those that begin and end what fills one."""

    masks: tuple[int, ...]
    sop: int
    eop: int


def marks(model: ModelConfig, special_ids: Mapping[str, Any]) -> Marks | None:
    """The marks of a decoder that fills blanks; None: it is none, or its ids are not known."""
    masks = tuple(special_ids[name] for name in MASKS.values() if name in special_ids)
    ends = [special_ids.get(name) for name in ("sop_token_id", "eop_token_id")]
    if model.architecture != "decoder" or not masks or None in ends:
        return None
    return Marks(masks, *ends)


def places(tokens: np.ndarray, mask: np.ndarray, marks: Marks) -> dict[str, np.ndarray]:
    """The inputs of the model that say what is where, as the objective makes them, for rows in their order.

    Args:
      tokens: [B, L]; the k-th sop fills the k-th mask, further ones the last mask, or the end where there is none.
      mask: [B, L], 1 for real tokens.

    Returns:
      int32 `positions` and `block_positions` [B, L]; `prefix_lengths` [B], the place of the first sop: of a row
      without one all is part A.
    """
    real = mask > 0
    in_text = np.maximum(real.cumsum(axis=1) - 1, 0)
    opens = real & (tokens == marks.sop)
    filling = opens.cumsum(axis=1)
    index = np.arange(tokens.shape[1])
    begin = np.maximum.accumulate(np.where(opens, index, 0), axis=1)
    positions = in_text.copy()
    for row, masked in enumerate(real & np.isin(tokens, marks.masks) & (filling == 0)):
        at = in_text[row, masked]
        if not len(at):
            at = in_text[row, filling[row] == 0][-1:]
        if opens[row].any() and len(at):
            positions[row] = np.where(filling[row], at[np.clip(filling[row] - 1, 0, len(at) - 1)], in_text[row])
    return {
        "positions": positions.astype(np.int32),
        "block_positions": np.where(filling, index - begin + 1, 0).astype(np.int32),
        "prefix_lengths": (filling == 0).sum(axis=1).astype(np.int32),
    }


def encode(vocabulary, text: str, special_ids: Mapping[str, Any]) -> list[int]:
    """Part A of a prompt: its masks as their ids; one at the end if it has none, gmask where there is such.

    The text stands behind cls, and before eos unless it ends with gmask, where the vocabulary has cls (THUDM/GLM,
    generate_samples.py); ChatGLM-6B has none of the two.
    """
    known = {mask: special_ids[name] for mask, name in MASKS.items() if name in special_ids}
    if not any(mask in text for mask in known):
        text += "[gMASK]" if "[gMASK]" in known else "[MASK]"
    tokens = blanks.encode(vocabulary, text, known)
    if "cls_token_id" not in special_ids:
        return tokens
    ends = "eos_token_id" in special_ids and tokens[-1:] != [special_ids.get("gmask_token_id")]
    return [special_ids["cls_token_id"], *tokens, *([special_ids["eos_token_id"]] if ends else [])]


def fill(
    prompts: Sequence[Sequence[int]], marks: Marks, generate: Callable[[list[list[int]]], list[list[int]]]
) -> list[list[list[int]]]:
    """What fills the masks of each prompt, from the first to the last, each known to those that follow.

    Args:
      prompts: part A of each.
      generate: continues rows of tokens, each up to its eop.
    """
    rows, fillings = [[*prompt, marks.sop] for prompt in prompts], [[] for _ in prompts]
    counts = [sum(token in marks.masks for token in prompt) for prompt in prompts]
    for number in range(max(counts)):
        unfilled = [i for i, count in enumerate(counts) if count > number]
        for i, filling in zip(unfilled, generate([rows[i] for i in unfilled]), strict=True):
            fillings[i].append(filling)
            rows[i] += [*filling, marks.sop]
    return fillings


def decode(vocabulary, text: str, prompt: Sequence[int], fillings: Sequence[Sequence[int]], marks: Marks, special_ids):
    """The text with its masks filled, or what continues one that has none."""
    frame = {special_ids.get(f"{name}_token_id") for name in ("cls", "eos")}
    found = parts([token for token in prompt if token not in frame], fillings, marks)
    filled = vocabulary.decode([token for part in found for token in part])
    if any(mask in text for mask in MASKS):
        return filled
    return filled[len(vocabulary.decode([token for part in found[:-1] for token in part])) :]


def parts(prompt: Sequence[int], fillings: Sequence[Sequence[int]], marks: Marks) -> list[Sequence[int]]:
    """Each token of a prompt, or what fills it."""
    of_masks = iter(fillings)
    return [next(of_masks) if token in marks.masks else [token] for token in prompt]
