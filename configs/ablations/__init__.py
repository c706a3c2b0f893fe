"""Sweeps: pages with `base` and `overrides()` (`plm_jax.experiments.sweep`)."""
