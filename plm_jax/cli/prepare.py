"""Tokenize and shuffle the training data of a config into a cache.

usage: plm_jax prepare --config=CONFIG [flags] [-- ENGINE_OPTIONS]

If the files of the vocabulary do not exist yet and config.vocabulary.train_size is above 0, the vocabulary is trained
first. Without --runner, the texts are tokenized by one process per core. With --runner, an engine divides the files of
a source into tasks and runs them on this machine or a cluster. Running the same command again skips the tasks that are
complete. The cache is byte-identical to the one written without --runner. plm_jax clean --help lists the engines and
the options that can be passed after `--`.

examples:
  plm_jax prepare --config=demo:bert
  plm_jax prepare --config=bert:base --output=/shared/cache --runner=dask -- --scheduler=tcp://HOST:8786
"""

import dataclasses

from absl import flags

from plm_jax import config
from plm_jax.common import command_line
from plm_jax.common.errors import UserError
from plm_jax.common.executors import engines
from plm_jax.config import checks
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_OUTPUT = flags.DEFINE_string("output", None, "directory of the cache (default: data.cache_dir of the config)")
_FROM = flags.DEFINE_string("from", None, "model whose vocabulary is used, as in pretrain --from")
_RUNNER = flags.DEFINE_enum(
    "runner",
    None,
    list(engines.ENGINES),
    "engine that tokenizes (default: no engine; one process per core on this machine)",
)


def main() -> None:
    """Writes the caches of the config's sources. For packed rows, also prints notes such as the share of padding."""
    run, options = _CONFIG.run(replaces_model=bool(_FROM.value)), command_line.options()
    if not _RUNNER.value and options:
        raise UserError(f"'{options[0]}' after -- is an option of an engine: add --runner=ENGINE before it")
    executor = engines.make(_RUNNER.value, options) if _RUNNER.value else None
    if _FROM.value:
        command_line.start_jax_on_host()
        from plm_jax.runs import transfer

        run = transfer.resolve(run, _FROM.value)
    checks.refuse_unused(run)
    from plm_jax.runs import preparation

    preparation.prepare(run, _OUTPUT.value, executor=executor)
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
