"""Writes the golden files of twenty training steps with torch: `python -m tests.golden.make_training`.

`FAMILY_training.npz` holds, for the weights in `golden/FAMILY`, the batches, the loss of each step and the final
tensors. The recipe is below: no dropout, warm-up, clipping, two microbatches of unequal target counts whose sums are
divided once; AdamW without decay on norms and biases, or, for T5, the Adafactor of transformers.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
ARCHITECTURES = {
    "gpt2": transformers.GPT2LMHeadModel,
    "bert": transformers.BertForPreTraining,
    "t5": transformers.T5ForConditionalGeneration,
}
STEPS, ROWS, LENGTH, TARGETS, MICROBATCHES = 20, 8, 12, 6, 2
PEAK, WARMUP, CLIP_NORM, WEIGHT_DECAY, BETAS, EPSILON = 2e-3, 5, 0.5, 0.1, (0.9, 0.95), 1e-8
ADAFACTOR_PEAK = 0.05


def batches(family: str, seed: int, vocab_size: int) -> dict[str, np.ndarray]:
    """What the family's objective gives, [STEPS, ROWS, ...]; even rows have many more targets than odd ones."""
    rng = np.random.default_rng(seed)
    # Low ids are frequent, so that there is something to learn.
    tokens = (vocab_size * rng.random((STEPS, ROWS, LENGTH + 1)) ** 3).astype(np.int32)
    num_targets = LENGTH if family == "gpt2" else TARGETS
    share = np.where(np.arange(ROWS) % MICROBATCHES == 0, 0.9, 0.2)[:, None]
    weights = (rng.random((STEPS, ROWS, num_targets)) < share).astype(np.float32)
    if family == "gpt2":
        return {"tokens": tokens[..., :-1], "targets": tokens[..., 1:], "target_weights": weights}
    # Torch gives the padding's embedding, BERT's first, no gradient.
    batch = {"tokens": np.maximum(tokens[..., :-1], 1), "target_weights": weights}
    batch["mask"] = np.ones((STEPS, ROWS, LENGTH), np.int32)
    batch["mask"][:, 3, LENGTH - 4 :] = 0
    others = (vocab_size * rng.random((STEPS, ROWS, num_targets + 1)) ** 3).astype(np.int32)
    if family == "t5":
        return batch | {"decoder_tokens": others[..., :-1], "targets": others[..., 1:]}
    positions = [np.sort(rng.choice(LENGTH - 4, num_targets, replace=False)) for _ in range(STEPS * ROWS)]
    return batch | {
        "targets": others[..., 1:],
        "target_positions": np.reshape(positions, (STEPS, ROWS, num_targets)).astype(np.int32),
        "token_types": np.broadcast_to(np.arange(LENGTH) >= LENGTH // 2, (STEPS, ROWS, LENGTH)).astype(np.int32),
        "pair_label": rng.integers(0, 2, (STEPS, ROWS)).astype(np.int32),
    }


def outputs(model, part):
    """(logits at the targets [rows, T, V], logits of the pairs or None)."""
    kind = model.config.model_type
    if kind == "gpt2":
        return model(part["tokens"]).logits, None
    if kind == "t5":
        given = {"decoder_input_ids": part["decoder_tokens"], "attention_mask": part["mask"]}
        return model(part["tokens"], **given).logits, None
    found = model(part["tokens"], attention_mask=part["mask"], token_type_ids=part["token_types"])
    rows = torch.arange(len(part["tokens"]))[:, None]
    return found.prediction_logits[rows, part["target_positions"]], found.seq_relationship_logits


def train(model, batch: dict[str, np.ndarray]) -> list[float]:
    """Trains the model in place; the loss of each step."""
    model.train()
    for module in model.modules():
        for rate in ("p", "dropout", "dropout_prob", "attention_dropout"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    peak, optimizer = optimizer_of(model)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, step / WARMUP)
        arrays = {key: torch.tensor(value[step]) for key, value in batch.items()}
        arrays = {key: value if value.is_floating_point() else value.long() for key, value in arrays.items()}
        total = arrays["target_weights"].sum()
        optimizer.zero_grad()
        loss = 0.0
        for rows in torch.arange(ROWS).chunk(MICROBATCHES):
            part = {key: value[rows] for key, value in arrays.items()}
            logits, pair_logits = outputs(model, part)
            nll = torch.nn.functional.cross_entropy(logits.mT, part["targets"], reduction="none")
            part_loss = (nll * part["target_weights"]).sum() / total
            if pair_logits is not None:
                pair_loss = torch.nn.functional.cross_entropy(pair_logits, part["pair_label"], reduction="sum")
                part_loss = part_loss + pair_loss / ROWS
            part_loss.backward()
            loss += part_loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        losses.append(loss)
    return losses


def optimizer_of(model):
    """(the peak of the learning rate, the optimizer)."""
    if model.config.model_type == "t5":
        settings = {"scale_parameter": True, "relative_step": False, "warmup_init": False}
        return ADAFACTOR_PEAK, transformers.optimization.Adafactor(model.parameters(), lr=ADAFACTOR_PEAK, **settings)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return PEAK, torch.optim.AdamW(groups, lr=PEAK, betas=BETAS, eps=EPSILON)


def main(families):
    """Writes the files."""
    for family in families:
        model = ARCHITECTURES[family].from_pretrained(FOLDER / family)
        batch = batches(family, 0, model.config.vocab_size)
        losses = train(model, batch)
        final = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        np.savez_compressed(FOLDER / f"{family}_training.npz", losses=np.array(losses), **batch, **final)


if __name__ == "__main__":
    main(sys.argv[1:] or ARCHITECTURES)
