"""Writes the golden file of twenty training steps with torch: `python tests/golden/make_gpt2_training.py`.

`gpt2_training.npz` holds, for the weights in `golden/gpt2`, the batches, the loss of each step and the final tensors.
The recipe is below: GPT2LMHeadModel without dropout, AdamW, warm-up, clipping, no decay on norms and biases, and two
microbatches of unequal target counts whose token sums are divided once.
"""

import pathlib

import numpy as np
import torch
from transformers import GPT2LMHeadModel

FOLDER = pathlib.Path(__file__).parent
STEPS, ROWS, LENGTH, MICROBATCHES = 20, 8, 12, 2
PEAK, WARMUP, CLIP_NORM, WEIGHT_DECAY, BETAS, EPSILON = 2e-3, 5, 0.5, 0.1, (0.9, 0.95), 1e-8


def batches(seed: int, vocab_size: int) -> dict[str, np.ndarray]:
    """`tokens`, `targets`, `target_weights` [STEPS, ROWS, LENGTH]; even rows have many more targets than odd ones."""
    rng = np.random.default_rng(seed)
    # Low ids are frequent, so that there is something to learn.
    tokens = (vocab_size * rng.random((STEPS, ROWS, LENGTH + 1)) ** 3).astype(np.int32)
    share = np.where(np.arange(ROWS) % MICROBATCHES == 0, 0.9, 0.2)[:, None]
    weights = (rng.random((STEPS, ROWS, LENGTH)) < share).astype(np.float32)
    return {"tokens": tokens[..., :-1], "targets": tokens[..., 1:], "target_weights": weights}


def train(model: GPT2LMHeadModel, batch: dict[str, np.ndarray]) -> list[float]:
    """Trains the model in place; the loss of each step."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=BETAS, eps=EPSILON)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, step / WARMUP)
        tokens, targets, weights = (torch.tensor(batch[k][step]) for k in ("tokens", "targets", "target_weights"))
        total = weights.sum()
        optimizer.zero_grad()
        loss_sum = 0.0
        for part in torch.arange(ROWS).chunk(MICROBATCHES):
            logits = model(tokens[part].long()).logits
            nll = torch.nn.functional.cross_entropy(logits.mT, targets[part].long(), reduction="none")
            part_sum = (nll * weights[part]).sum()
            (part_sum / total).backward()
            loss_sum += part_sum.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        losses.append(loss_sum / float(total))
    return losses


def main():
    """Writes the file."""
    model = GPT2LMHeadModel.from_pretrained(FOLDER / "gpt2")
    batch = batches(0, model.config.vocab_size)
    losses = train(model, batch)
    final = {k: v.numpy() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    np.savez_compressed(FOLDER / "gpt2_training.npz", losses=np.array(losses), **batch, **final)


if __name__ == "__main__":
    main()
