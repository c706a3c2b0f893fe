"""Sweeps: pages with `base` and `overrides()`, see `plm_jax.experiments.sweep`."""
