"""`python -m plm_jax prepare --config=FILE.py:SIZE [--output=DIR]`: tokenised, shuffled documents to train on.

`--runner=beam` has Apache Beam tokenise; its own options follow after `--`: `-- --direct_num_workers=8`, or
`-- --runner=DataflowRunner --temp_location=gs://bucket/temporary …`. The cache is the same.
"""

import importlib.util

from absl import flags

from plm_jax.common import command_line
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_OUTPUT = flags.DEFINE_string("output", None, "where the cache goes; by default the config's data.cache_dir")
_FROM = flags.DEFINE_string("from", None, "the checkpoint whose vocabulary it is for, as of `pretrain --from`")
_RUNNER = flags.DEFINE_enum("runner", "local", ["local", "beam"], "where it runs; after -- options of Beam's pipeline")


def main() -> None:
    """Writes the caches of the config's sources."""
    run, options = _CONFIG.run(replaces_model=bool(_FROM.value)), command_line.options()
    if _RUNNER.value == "local" and options:
        raise UserError(f"'{options[0]}' is an option of a pipeline: add --runner=beam before the --")
    if _RUNNER.value == "beam":
        if importlib.util.find_spec("apache_beam") is None:
            raise UserError("--runner=beam needs Apache Beam: pip install 'plm_jax[beam]'")
        from plm_jax.data.prepare import runners

        runners.pipeline(options)  # What it refuses is told before a vocabulary is trained.
    if _FROM.value:
        command_line.start_jax_on_host()
        from plm_jax.runs import transfer

        run = transfer.resolve(run, _FROM.value)
    from plm_jax.runs import preparation

    preparation.prepare(run, _OUTPUT.value, beam_options=options if _RUNNER.value == "beam" else None)


if __name__ == "__main__":
    command_line.run(main, takes_options=True)
