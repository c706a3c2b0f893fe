"""`python -m plm_jax.prepare --config=FILE.py:SIZE [--output=DIR]`: tokenised, shuffled documents to train on."""

from absl import flags

from plm_jax import cli

_CONFIG = cli.define_config()
_OUTPUT = flags.DEFINE_string("output", None, "where the cache goes; by default the config's data.cache_dir")
_RUNNER = flags.DEFINE_enum("runner", "local", ["local"], "where it runs")


def main() -> None:
    """Writes the caches of the config's sources."""
    run = cli.resolve(_CONFIG)
    from plm_jax.data import prepare

    prepare.prepare(run, _OUTPUT.value)


if __name__ == "__main__":
    cli.run(main)
