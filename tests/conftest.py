import jax

# Tests compile much and compute little: this halves their time.
jax.config.update("jax_disable_most_optimizations", True)
