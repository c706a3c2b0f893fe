"""Sweeps: files with `base` and `overrides()` (`plm_jax.experiments.sweep`)."""
