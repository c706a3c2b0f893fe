"""The peer of `finetune.py`: Hugging Face's PyTorch model and tokenizer, fine-tuned by a plain loop on two threads.

    python finetune_torch.py DIRECTORY TRAIN.jsonl TEST.jsonl --seed=0

Prints JSON: the accuracy on the test rows, a fraction, and the median seconds of a training step without the first.
"""

import argparse
import json
import pathlib
import statistics
import time


def main() -> None:
    """Fine-tunes and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="of the encoder, with its tokenizer")
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps")
    print(json.dumps(fine_tuned(parser.parse_args())))


def fine_tuned(given: argparse.Namespace) -> dict[str, float]:
    """Accuracy and seconds a step of the run that the flags describe."""
    import torch
    import transformers

    torch.set_num_threads(2)
    torch.manual_seed(given.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.directory)

    def read(path):
        rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
        texts, labels = [row["text"] for row in rows], torch.tensor([row["label"] == "positive" for row in rows]).long()
        made = tokenizer(texts, max_length=given.length, truncation=True, padding="max_length", return_tensors="pt")
        return dict(made), labels

    inputs, labels = read(given.train)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(given.directory, num_labels=2)
    steps = len(labels) // given.batch_size * given.epochs
    decaying, others = [], []
    for name, parameter in model.named_parameters():
        (others if parameter.ndim < 2 or "LayerNorm" in name else decaying).append(parameter)
    groups = [{"params": decaying, "weight_decay": given.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=given.learning_rate)
    warmup = max(1, round(given.warmup * steps))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    model.train()
    seconds = []
    for _ in range(given.epochs):
        order = torch.randperm(len(labels))
        for chosen in order[: len(order) // given.batch_size * given.batch_size].split(given.batch_size):
            began = time.perf_counter()
            loss = model(**{name: values[chosen] for name, values in inputs.items()}, labels=labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss.item()
            seconds.append(time.perf_counter() - began)
    return {"accuracy": _accuracy(model, *read(given.test)), "step_seconds": statistics.median(seconds[1:])}


def _accuracy(model, inputs, labels) -> float:
    import torch

    model.eval()
    hits = 0
    with torch.no_grad():
        for first in range(0, len(labels), 64):
            logits = model(**{name: values[first : first + 64] for name, values in inputs.items()}).logits
            hits += int((logits.argmax(-1) == labels[first : first + 64]).sum())
    return hits / len(labels)


if __name__ == "__main__":
    main()
