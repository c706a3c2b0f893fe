"""Extras of the package, as in `pip install '.[tasks]'`, and the optional modules that each extra installs."""

import contextlib
import importlib.util
from collections.abc import Iterator

from plm_jax.common.errors import UserError

EXTRAS = {
    "tasks": (
        *("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio"),
        *("importlib_resources", "sklearn", "sacrebleu", "rouge_score"),
    ),
    "beam": ("apache_beam", "google_crc32c"),
    "dask": ("distributed",),
    "ray": ("ray",),
    "spark": ("pyspark",),
    "clean": ("nltk", "punkt", "langdetect", "gcld3", "resiliparse", "fastwarc", "tldextract"),
    "report": ("matplotlib",),
    "tables": ("pyarrow",),
    "gcs": ("gcsfs",),
    "hub": ("huggingface_hub",),
    "wandb": ("wandb",),
    "harness": ("lm_eval",),
}


def fix(extra: str) -> str:
    """Returns the end of an error message: the command that installs an extra."""
    return f"run pip install '.[{extra}]' in a checkout of plm_jax"


def require(extra: str) -> None:
    """Raises a `UserError` if a module of an extra is not installed."""
    for module in EXTRAS[extra]:
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{module} is not installed: {fix(extra)}")


@contextlib.contextmanager
def report_missing() -> Iterator[None]:
    """Turns a failed import of a module that belongs to an extra into a `UserError` that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if user_error := missing(error):
            raise user_error from error
        raise


def missing(error: ModuleNotFoundError) -> UserError | None:
    """Returns the error that names the extra of a missing module, or None if no extra installs the module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return UserError(f"{module} is not installed: {fix(extra)}")
    return None
