"""Model FLOPs, counted, and what devices can do: together the MFU."""

import jax

# Peak dense bfloat16 FLOP/s of one device, by a part of jax's device_kind; vendors' data sheets.
PEAK_FLOPS = {
    "v4": 275e12,
    "v5 lite": 197e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v5": 459e12,
    "v6 lite": 918e12,
    "v6e": 918e12,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}


def per_step(model, rows: int, length: int, targets: int | None = None) -> int:
    """FLOPs of one training step of a decoder on `rows` × `length` tokens.

    Matrix products of the forward pass × 3, causal attention halved, no recomputation, no embedding look-up, the head
    at target positions only (all unless `targets` are counted).
    """
    tokens = rows * length
    width = model.embedding.width
    joined = model.attention.heads * model.attention.head_dim
    weights = 4 * width * joined + 2 * width * model.feed_forward.width
    attention = 2 * length * joined / 2
    blocks = model.stack.layers * tokens * (weights + attention)
    head = (tokens if targets is None else targets) * width * model.embedding.vocab_size
    return int(3 * 2 * (blocks + head))


def peak(device: jax.Device) -> float | None:
    """Peak FLOP/s of a device, None where it is not known."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part.lower() in device.device_kind.lower()), None)
