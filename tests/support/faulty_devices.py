"""Devices that compute matrix products wrongly, for tests and benchmarks of audits.

A fault is a row [forward, d_x, d_kernel, column] of an array with a row for each physical device: relative errors of
one column of every product that the device computes, in the forward pass, in the gradients of inputs, and in its share
of the gradients of kernels.
"""

import contextlib
from collections.abc import Iterator, Mapping
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.losses import NextTokenLoss
from plm_jax.models import layers
from plm_jax.training import audit

KINDS = ("forward", "d_x", "d_kernel")
NAME = "faults"


def faults(devices: int, device: int | None = None, kind: str = "forward", error: float = 1e-4, column: int = 0):
    """Returns the faults of all devices, float32 [devices, 4], of which at most one has an error."""
    array = np.zeros((devices, len(KINDS) + 1), np.float32)
    if device is not None:
        array[device, KINDS.index(kind)], array[device, -1] = error, column
    return array


@jax.custom_vjp
def _faulty_product(x, kernel, faults):
    return (x @ kernel.astype(x.dtype)) * _scales(faults, 0, kernel.shape[1], x.dtype)


def _forward(x, kernel, faults):
    return _faulty_product(x, kernel, faults), (x, kernel, faults)


def _backward(residuals, d_y):
    x, kernel, faults = residuals
    d_x = (d_y @ kernel.astype(x.dtype).T) * _scales(faults, 1, kernel.shape[0], x.dtype)
    faulty = d_y * _scales(faults, 2, kernel.shape[1], x.dtype)
    rows, columns = x.reshape(-1, x.shape[-1]), faulty.reshape(-1, faulty.shape[-1])
    return d_x, (rows.T @ columns).astype(kernel.dtype), jnp.zeros_like(faults)


_faulty_product.defvjp(_forward, _backward)


def _scales(faults, kind: int, width: int, dtype):
    """Returns the factors of a product [rows, ..., width] from the faults of its rows [rows, 4]."""
    is_faulty = jnp.arange(width) == faults[..., 3:].astype(jnp.int32) % width
    return (1 + faults[..., kind : kind + 1] * is_faulty).astype(dtype)


def _product_with(faults):
    """Returns a replacement of `layers.product` for faults [rows, 4], with rows like those of x or a single row."""

    def product(x, kernel, spec, of_rows=()):
        of_x = faults if len(faults) == 1 else jnp.repeat(faults, len(x) // len(faults), axis=0)
        return _faulty_product(x, kernel, of_x.reshape(len(of_x), *[1] * (x.ndim - 2), 4))

    return product


def block(inputs: Mapping[str, jax.Array]) -> jax.Array:
    """Computes `audit.block` on a device with its faults [1, 4], one of the inputs."""
    with mock.patch.object(layers, "product", _product_with(inputs[NAME])):
        return audit.block({name: array for name, array in inputs.items() if name != NAME})


@contextlib.contextmanager
def faulty_losses() -> Iterator[None]:
    """Lets losses that are traced within it read the faults of each row of a batch, [B, 4], from the batch."""
    compute = NextTokenLoss.__call__

    def faulty(self, model, params, batch, rngs, carry):
        batch = dict(batch)
        if NAME not in batch:
            return compute(self, model, params, batch, rngs, carry)
        with mock.patch.object(layers, "product", _product_with(batch.pop(NAME))):
            return compute(self, model, params, batch, rngs, carry)

    with mock.patch.object(NextTokenLoss, "__call__", faulty):
        yield
