"""Which extra of the package, as in `pip install 'plm_jax[tasks]'`, brings a module that is not installed."""

import contextlib
from collections.abc import Iterator

from plm_jax.common.errors import UserError

EXTRAS = {
    "tasks": (
        *("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio"),
        *("importlib_resources", "sklearn", "sacrebleu", "rouge_score"),
    ),
    "beam": ("apache_beam", "google_crc32c"),
    "clean": ("nltk", "punkt", "langdetect", "gcld3", "resiliparse", "fastwarc", "tldextract"),
    "report": ("matplotlib",),
    "gcs": ("gcsfs",),
    "wandb": ("wandb",),
    "harness": ("lm_eval",),
}


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Within it the import of a module that an extra brings, and that is not there, becomes a `UserError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if module in modules:
                raise UserError(f"{module} is needed and not installed: pip install 'plm_jax[{extra}]'") from error
        raise
