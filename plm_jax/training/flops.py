"""Model FLOPs, counted, and what devices can do: together the MFU."""

import dataclasses
import math

from jax.extend import core

from plm_jax import config
from plm_jax.models import settings


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one device can do; None where only its peak was of interest.

    Attributes:
      flops: peak dense bfloat16 FLOP/s.
      hbm_bytes: its memory.
      hbm_bandwidth: bytes a second to and from it.
      network_bandwidth: bytes a second that it sends to the other chips of its slice, all links together.
    """

    flops: float
    hbm_bytes: int | None = None
    hbm_bandwidth: float | None = None
    network_bandwidth: float | None = None


# By a part of jax's device_kind, the first that fits. TPUs: the tables of docs.cloud.google.com/tpu/docs/v4 to /v6e
# (interconnect: half of the bandwidth of both directions); GPUs: NVIDIA's data sheets.
_V5E, _V5P, _V6E = (
    Chip(197e12, 16 * 2**30, 819e9, 200e9),
    Chip(459e12, 95 * 2**30, 2765e9, 600e9),
    Chip(918e12, 32 * 2**30, 1640e9, 400e9),
)
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1228e9, 300e9),
    "v5 lite": _V5E,
    "v5e": _V5E,
    "v5p": _V5P,
    "v5": _V5P,
    "v6 lite": _V6E,
    "v6e": _V6E,
    "A100": Chip(312e12),
    "H100 PCIe": Chip(756e12),
    "H100 NVL": Chip(835e12),
    "H100": Chip(989e12),
    "H200": Chip(989e12),
    "B200": Chip(2250e12),
}


def per_step(model: settings.Transformer, rows: int, length: int, targets: int, decoder_length: int = 0) -> int:
    """FLOPs of one training step on `rows` × `length` tokens.

    Matrix products of the forward pass × 3, causal attention halved, of layers with windows the keys within them, no
    recomputation, no embedding look-up, the head at target positions only.

    Args:
      targets: target positions a row.
      decoder_length: tokens a row of an encoder-decoder's second stack.
    """
    if isinstance(model, settings.Electra):
        pair = model.generator_model, model.discriminator_model
        return sum(per_step(one, rows, length, targets) for one in pair)
    products = _stack(model, length, isinstance(model, settings.Decoder))
    if isinstance(model, settings.EncoderDecoder):
        products += _stack(model.decoder_model, decoder_length, True, memory_length=length)
    if model.embedding.table_width is not None:
        products += (length + decoder_length) * model.embedding.columns * model.embedding.width
    return int(3 * 2 * rows * (products + _heads(model, length, targets)))


def _stack(model: settings.Transformer, length: int, causal: bool, memory_length: int = 0) -> float:
    """Multiplications of a row in a stack's matrix products, forward; with a memory also those of attention to it."""
    width, attention, blocks = model.embedding.width, model.attention, model.stack.blocks
    joined, joined_keys = attention.heads * attention.head_dim, attention.groups * attention.head_dim
    feed_forward = (3 if model.feed_forward.gated else 2) * width * model.feed_forward.width
    windows = attention.windows or (0,)
    attended = sum(_seen(windows[i % len(windows)], length) for i in range(blocks)) / blocks / (2 if causal else 1)
    products = length * (2 * width * (joined + joined_keys) + feed_forward + 2 * attended * joined)
    # Of attention to a memory queries and outputs are the stack's, keys and values the memory's.
    if memory_length:
        products += 2 * width * (joined * length + joined_keys * memory_length) + 2 * joined * length * memory_length
    return blocks * products


def _heads(model: settings.Transformer, length: int, targets: int) -> int:
    """Multiplications with the matrices of a row's heads, forward; a pooler's, at one token, are left out."""
    width, columns = model.embedding.width, model.embedding.columns
    products, unembedding = 0, targets * columns * model.embedding.vocab_size
    if isinstance(model.head, settings.Head):
        products += unembedding + (targets * width * columns if model.head.transform else 0)
    if not isinstance(model, settings.Encoder):
        return products
    if isinstance(model.discriminator, settings.Discriminator):
        products += length * (width * width + width)
    if isinstance(boundary := model.span_boundary, settings.SpanBoundary):
        products += unembedding + targets * ((2 * width + boundary.width) * width + width * columns)
    return products


def _seen(window: int, length: int) -> float:
    """Keys less than `window` (0: any number) places away, on either side, in the mean over `length` queries."""
    window = min(window or length, length)
    return 2 * window - 1 - window * (window - 1) / length


def of_elmo(model: settings.Elmo, rows: int, length: int, samples: int = 0) -> int:
    """FLOPs of one training step of a bidirectional model, counted as in `per_step`; each direction reads every word.

    Args:
      samples: words that a target is compared with; 0: all.
    """
    embedding, lstm = model.embedding, model.lstm
    places = ((width, number, embedding.max_characters - width + 1) for width, number in embedding.filters)
    filters = sum(number for _, number in embedding.filters)
    products = sum(width * embedding.dim * number * fits for width, number, fits in places)
    products += 2 * embedding.highway_layers * filters**2 + filters * embedding.width
    products += lstm.layers * (2 * embedding.width * 4 * lstm.cell + lstm.cell * embedding.width)
    products += embedding.width * (samples + 1 if samples else embedding.vocab_size)
    return 3 * 2 * 2 * rows * length * products


def of_stage(run: config.Run, stage: config.Stage) -> int:
    """FLOPs of one training step of a stage, counted as in `per_step`."""
    if isinstance(run.model, settings.Elmo):
        return of_elmo(run.model, stage.batch_size, stage.length, run.objective.negative_samples)
    tokens, targets, decoder_length = row_lengths(run, stage)
    return per_step(run.model, stage.batch_size, tokens - decoder_length, targets, decoder_length)


def row_lengths(run: config.Run, stage: config.Stage) -> tuple[int, int, int]:
    """Of a row of a stage: its tokens, target positions, and how many of the tokens are an encoder-decoder's second."""
    targets = config.target_length(run, stage.length)
    decoder_length = targets if isinstance(run.model, settings.EncoderDecoder) else 0
    return run.objective.row_length(stage.length) + decoder_length, targets, decoder_length


def of_program(jaxpr) -> int:
    """FLOPs of the matrix products of a traced program: loops as often as they run, recomputation as written."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            ((contracted, _), _) = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, features = equation.invars[1].aval, params["dimension_numbers"].rhs_spec[0]
            total += 2 * equation.outvars[0].aval.size * kernel.size // kernel.shape[features]
        elif name == "pallas_call":
            total += int(getattr(params["cost_estimate"], "flops", 0))
        else:
            times = {"scan": lambda p: p["length"], "shard_map": lambda p: p["mesh"].size}.get(name, lambda _: 1)
            inner = [of_program(j) for j in core.jaxprs_in_params(params)]
            total += times(params) * (max(inner, default=0) if name == "cond" else sum(inner))
    return total


def chip(device_kind: str) -> Chip | None:
    """What a device of this kind can do, None where it is not known."""
    return next((chip for part, chip in CHIPS.items() if part.lower() in device_kind.lower()), None)
