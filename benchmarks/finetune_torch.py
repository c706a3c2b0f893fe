"""Peer of `finetune.py`: Hugging Face's PyTorch model and tokenizer, fine-tuned by a plain loop on two threads."""

import json
import pathlib
import statistics
import time

EPOCHS, LENGTH, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, WARMUP = 2, 64, 32, 5e-5, 0.01, 0.1


def fine_tuned(directory: str, train: str, test: str, seed: int) -> dict[str, float]:
    """Returns the accuracy on the test rows and the median seconds of a training step without the first.

    Args:
      directory: encoder with its tokenizer.
      train: JSON Lines of training rows.
      test: JSON Lines of test rows.
      seed: seed of torch.
    """
    import torch
    import transformers

    torch.set_num_threads(2)
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    def read(path):
        rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
        texts, labels = [row["text"] for row in rows], torch.tensor([row["label"] == "positive" for row in rows]).long()
        encoded = tokenizer(texts, max_length=LENGTH, truncation=True, padding="max_length", return_tensors="pt")
        return dict(encoded), labels

    inputs, labels = read(train)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, num_labels=2)
    steps = len(labels) // BATCH_SIZE * EPOCHS
    decaying, constant = [], []
    for name, parameter in model.named_parameters():
        (constant if parameter.ndim < 2 or "LayerNorm" in name else decaying).append(parameter)
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": constant, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    warmup = max(1, round(WARMUP * steps))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    model.train()
    seconds = []
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels))
        for chosen in order[: len(order) // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE):
            began = time.perf_counter()
            loss = model(**{name: values[chosen] for name, values in inputs.items()}, labels=labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss.item()
            seconds.append(time.perf_counter() - began)
    return {"accuracy": _accuracy(model, *read(test)), "step_seconds": statistics.median(seconds[1:])}


def _accuracy(model, inputs, labels) -> float:
    import torch

    model.eval()
    hits = 0
    with torch.no_grad():
        for first in range(0, len(labels), 64):
            logits = model(**{name: values[first : first + 64] for name, values in inputs.items()}).logits
            hits += int((logits.argmax(-1) == labels[first : first + 64]).sum())
    return hits / len(labels)
