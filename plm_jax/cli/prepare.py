"""Tokenize and shuffle the training data of a config into a cache.

usage: plm_jax prepare --config=CONFIG [flags] [-- BEAM_FLAGS]

The vocabulary is trained first if its files do not exist yet. --runner=beam tokenizes with Apache Beam and writes the
same cache; flags after -- are then passed to Beam, such as --direct_num_workers=8 or --runner=DataflowRunner.

example:
  plm_jax prepare --config=demo:bert
"""

import dataclasses
import importlib.util

from absl import flags

from plm_jax import config
from plm_jax.common import command_line, extras
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_OUTPUT = flags.DEFINE_string("output", None, "directory of the cache (default: data.cache_dir of the config)")
_FROM = flags.DEFINE_string("from", None, "model whose vocabulary is used, as in pretrain --from")
_RUNNER = flags.DEFINE_enum("runner", "local", ["local", "beam"], "tokenize in local processes or with Apache Beam")


def main() -> None:
    """Writes the caches of the config's sources."""
    run, options = _CONFIG.run(replaces_model=bool(_FROM.value)), command_line.options()
    if _RUNNER.value == "local" and options:
        raise UserError(f"'{options[0]}' after -- is a flag of Beam: add --runner=beam before it")
    if _RUNNER.value == "beam":
        if importlib.util.find_spec("apache_beam") is None:
            raise UserError(f"--runner=beam needs Apache Beam: {extras.fix('beam')}")
        from plm_jax.common import beam_pipeline

        beam_pipeline.pipeline(options)  # Rejects wrong options before a vocabulary is trained.
    if _FROM.value:
        command_line.start_jax_on_host()
        from plm_jax.runs import transfer

        run = transfer.resolve(run, _FROM.value)
    from plm_jax.runs import preparation

    preparation.prepare(run, _OUTPUT.value, beam_options=options if _RUNNER.value == "beam" else None)
    if run.data.layout.kind == "packed":
        from plm_jax.data.reader import Reader

        data = dataclasses.replace(run.data, cache_dir=_OUTPUT.value or run.data.cache_dir)
        expanded = config.expand_mixtures(dataclasses.replace(run, data=data))
        try:
            for note in Reader(config.reader_config(expanded)).notes():
                print(note)
        except UserError as error:  # The caches are complete.
            print(f"note: {error}")


if __name__ == "__main__":
    command_line.run(main, accepts_options=True)
