"""Location and version of this package."""

import functools
import hashlib
import os
import sys

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.cache
def version() -> str:
    """Returns the version of the package, with a hash of its source files."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(FOLDER):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(f"{os.path.relpath(path, FOLDER)}\n".encode() + file.read())
    return f"{sys.modules['plm_jax'].__version__}+{digest.hexdigest()[:12]}"
