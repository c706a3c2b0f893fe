"""Twenty steps of fine-tuning against torch's, on transformers' own models with heads of tasks."""

import jax
import numpy as np
import pytest

from plm_jax import config, losses
from plm_jax.common import keys
from plm_jax.hub import families, huggingface, tasks
from plm_jax.models import registry
from plm_jax.training import optimizers, state, step
from tests.support import torch_weights

STEPS, ROWS, LENGTH, VOCAB, CHOICES = 20, 8, 12, 61, 3
PEAK, WARMUP, DECAY, LM = 2e-3, 4, 0.1, 0.5
SIZES = {
    "bert": {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    | {"intermediate_size": 40, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0}
    | {"attention_probs_dropout_prob": 0.0},
    "gpt2": {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3, "pad_token_id": 0}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
# (parameter, layer) whose gradients are zero in mathematics: Adam walks by the sign of rounding errors. What is added
# to all places, the last norm's bias too, shifts all logits of a span's beginning alike, which a softmax does not see.
LAST = SIZES["bert"]["num_hidden_layers"] - 1
ZERO = {
    "span": [("heads_task/output/bias", ...), ("stack/blocks/feed_forward_norm/bias", LAST)],
    "choice": [("heads_task/output/bias", ...)],
}


def batches_of(kind):
    """[STEPS, ROWS, …]; rows differ in length, and something of the labels can be learnt from the tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, LENGTH + 1, (STEPS, ROWS, CHOICES) if kind == "choice" else (STEPS, ROWS))
    mask = (np.arange(LENGTH) < lengths[..., None]).astype(np.int32)
    # Torch gives the padding's embedding, BERT's first, no gradient.
    tokens = 1 + ((VOCAB - 1) * rng.random(mask.shape) ** 3).astype(np.int32)
    first = tokens[..., 1]
    labels = {
        "classes": {"label": first % 3},
        "labels": {"labels": np.stack([first % 3 == label for label in range(3)], -1).astype(np.float32)},
        "score": {"score": (first / 20).astype(np.float32)},
        "tags": {"tags": np.where((mask == 1) & (rng.random(mask.shape) < 0.8), tokens % 3, -1)},
        "span": {"span_starts": 1 + first % 3, "span_ends": 3 + first % 2},
        "choice": {"label": first.argmax(-1) if kind == "choice" else None},
    }[kind]
    return {"tokens": tokens, "mask": mask} | labels


def ours(pretrained, batches, lm):
    """The losses and the last parameters, in two microbatches of unequal counts."""
    settings = config.AdamWConfig(weight_decay=DECAY, epsilon=1e-8, clip_norm=1.0)
    rate = config.LinearSchedule(PEAK, warmup_steps=WARMUP).rate(STEPS)
    optimizer, model = optimizers.build(settings), registry.build(pretrained.model)
    loss = losses.get("task", lm_coefficient=lm)
    run = jax.jit(step.train_step(loss, model, optimizer, microbatches=2))
    current, found = state.new_state(pretrained.params, optimizer), []
    for number in range(STEPS):
        batch = {name: value[number] for name, value in batches.items()} | {"digest": np.zeros((ROWS, 2), np.uint32)}
        current, metrics = run(current, batch, keys.from_seed(0), rate(number))
        found.append(float(metrics["loss"]))
    return found, current.params


def loss_of(model, kind, batch, lm):
    """Their loss; GPT-1's is written out, over the states that both of its terms read."""
    import torch

    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    if not lm:
        labels = {
            "span": lambda: {"start_positions": batch["span_starts"], "end_positions": batch["span_ends"]},
            "tags": lambda: {"labels": torch.where(batch["tags"] < 0, -100, batch["tags"])},
            "score": lambda: {"labels": batch["score"]},
            "labels": lambda: {"labels": batch["labels"]},
        }.get(kind, lambda: {"labels": batch["label"]})
        return model(**inputs, **labels()).loss
    hidden = model.transformer(**inputs).last_hidden_state
    last = batch["mask"].sum(1) - 1
    task = torch.nn.functional.cross_entropy(model.score(hidden[torch.arange(ROWS), last]), batch["label"])
    logits = hidden @ model.transformer.wte.weight.T
    nll = torch.nn.functional.cross_entropy(logits.mT, batch["targets"], reduction="none")
    weights = batch["target_weights"]
    return task + lm * ((nll * weights).sum(1) / weights.sum(1)).mean()


def theirs(model, kind, batches, lm):
    """The losses; the model is trained in place."""
    import torch
    import transformers

    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.999), eps=1e-8)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    found = []
    for number in range(STEPS):
        arrays = {name: torch.tensor(value[number]) for name, value in batches.items()}
        batch = {name: value if value.is_floating_point() else value.long() for name, value in arrays.items()}
        optimizer.zero_grad()
        loss = loss_of(model, kind, batch, lm)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("family", "kind", "lm"),
    [*(("bert", kind, 0.0) for kind in tasks.FORMS if kind != "classes"), ("gpt2", "classes", LM)],
)
def test_twenty_steps_equal_torch(family, kind, lm, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    labels = (
        {"num_labels": 3} if kind in ("classes", "labels", "tags") else {"num_labels": 1} if kind == "score" else {}
    )
    if kind == "labels":
        labels["problem_type"] = "multi_label_classification"
    settings = transformers.AutoConfig.for_model(family, initializer_range=0.2, **SIZES[family], **labels)
    torch.manual_seed(1)
    model = getattr(transformers, f"{families.registered()[family].task_class}{tasks.FORMS[kind]}")(settings).train()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
    model.save_pretrained(tmp_path)
    pretrained, batches = huggingface.read(str(tmp_path)), batches_of(kind)
    if lm:
        weights = (np.arange(1, LENGTH + 1) < batches["mask"].sum(-1, keepdims=True)).astype(np.float32)
        batches |= {"targets": np.roll(batches["tokens"], -1, -1), "target_weights": weights}
    want = theirs(model, kind, batches, lm)
    got, params = ours(pretrained, batches, lm)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)
    assert np.mean(got[:5]) - np.mean(got[-5:]) > 0.03, "nothing was learnt"

    end = huggingface.Pretrained(pretrained.model, jax.device_get(params), pretrained.special_ids)
    layout = families.layout_of(families.registered()[family], pretrained.model)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    moved = 0
    for path, index, expected, trained, begun in torch_weights.pieces(layout, tensors, end.flat(), pretrained.flat()):
        if path.endswith("attention/key/bias") or (path, index) in ZERO.get(kind, []):
            assert np.abs(trained - begun).max() <= STEPS * PEAK
            continue
        np.testing.assert_allclose(trained, expected, atol=1e-4, err_msg=path)
        moved += np.abs(expected - begun).max() > 1e-3
    assert moved > 20
