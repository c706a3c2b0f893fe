"""Hashes of users' code: they cover its effect and every import from its folder, and nothing else."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import absl
import pytest

from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.common.users import code

SOURCE = '''
"""A module."""
import math


class Scale:
    """A scale."""

    factor: float = 2.0
    """Factor of the product."""

    def apply(self, x, *, unit=None):
        """Applies it."""
        text = f"{x!r:>{self.factor}.{unit}}" 'b'
        return x * self.factor, text, u"c", 0x10, -0.0, 1e400, b"d", ...


def empty():
    pass
'''
SAME = [
    SOURCE.replace('"""A module."""\n', ""),
    SOURCE.replace('    """A scale."""\n', "    # A comment.\n"),
    SOURCE.replace('"""Applies it."""', '"""Applies it.\n\n        At length.\n        """'),
    SOURCE.replace("\n    pass", '\n    """Does nothing."""'),
    SOURCE.replace("\n", "\n\n").replace('u"c"', "'c'").replace("0x10", "1_6"),
    SOURCE.replace("x * self.factor", "(x\n            * self.factor)"),
]
OTHERS = [
    SOURCE.replace("2.0", "3.0"),
    SOURCE.replace("2.0", "2"),
    SOURCE.replace("x * self", "x + self"),
    SOURCE.replace("*, unit", "unit"),
    SOURCE.replace("-0.0", "0.0"),
    SOURCE.replace('b"d"', '"d"'),
    SOURCE.replace("0x10", "True"),
    SOURCE.replace("!r:", "!s:"),
    SOURCE.replace("unit=None", "unit"),
    SOURCE.replace("'b'", "'c'"),
    SOURCE.replace("import math", "import cmath"),
]


def digest(text):
    return code.digest(text.encode())


def test_hash_ignores_comments_and_docstrings_only():
    assert {digest(text) for text in SAME} == {digest(SOURCE)}
    assert len({digest(text) for text in [SOURCE, *OTHERS]}) == 1 + len(OTHERS)
    assert digest("def broken(:") != digest("def broken(::")  # Bytes that are not Python are hashed.
    assert digest("x = " + "(" * 500 + ")" * 500) and digest("+".join("a" * 5000))


def test_the_hash_is_the_same_on_every_python():
    """The hash is the same on every installed Python version, and equals a fixed one."""
    assert digest(SOURCE) == "ef3efd470505b3c9bef697ca8737c3ac819db7326b7657daf356ed5408d1e7d6"
    script = "import runpy, sys; print(runpy.run_path(sys.argv[1])['digest'](sys.stdin.buffer.read()))"
    for python in filter(None, map(shutil.which, ("python3.11", "python3.12", "python3.13"))):
        finished = subprocess.run([python, "-c", script, code.__file__], input=SOURCE.encode(), capture_output=True)
        if not finished.returncode:  # The command may exist without a Python behind it.
            assert finished.stdout.decode().strip() == digest(SOURCE)


FILES = {
    "main.py": """
        import plain, package.deep.deepest as d
        from chosen import name
        from package import part
        import json, numpy, plm_jax.config, absent, random
        def later():
            from . import lazy
            import importlib
            return importlib.import_module("dynamic")
        try:
            import guarded
        except ImportError:
            import instead
        """,
    "plain.py": "import second",
    "second.py": "import plain, main",  # A cycle.
    "chosen.py": "from package.relative import x; name = 1",
    "lazy.py": "",
    "dynamic.py": "",
    "guarded.py": "def broken(",
    "package/__init__.py": "",
    "package/part.py": "from . import sibling",
    "package/sibling.py": "from .. import beyond",
    "package/relative.py": "from .deep import deepest; x = 1",
    "package/deep/__init__.py": "from ..unused_name import x",
    "package/deep/deepest.py": "from ... import too_far; from .... import out",
    "package/unused_name.py": "",
    "package/never.py": "",
    "namespace/inner.py": "",
    "beyond.py": "",
    "too_far.py": "",
    "never.py": "",
    "json.py": "",
    "numpy.py": "",
    "random.py": "",
    "plm_jax.py": "",
}
IMPORTED = {
    *("plain.py", "second.py", "chosen.py", "lazy.py", "dynamic.py", "guarded.py", "beyond.py", "too_far.py"),
    *("package/__init__.py", "package/part.py", "package/sibling.py", "package/relative.py"),
    *("package/deep/__init__.py", "package/deep/deepest.py", "package/unused_name.py"),
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text) + "\n")


def imports(folder, name="main.py"):
    path = folder / name
    return code.imports(str(path), path.read_bytes(), str(folder), lambda file: pathlib.Path(file).read_bytes())


def test_imports_are_followed_within_the_folder_and_nothing_is_run(tmp_path):
    folder = tmp_path / "own"
    write(folder, FILES | {"../out.py": "", "../beyond.py": ""})
    for name in FILES:  # A file that ran would raise.
        with open(folder / name, "a") as file:
            file.write("raise AssertionError('it was run')\n")
    loaded = set(sys.modules)
    digests = imports(folder)
    assert set(digests) == IMPORTED
    assert not {"plain", "package", "chosen"} & (set(sys.modules) - loaded)
    before = digests
    for name in sorted(IMPORTED):
        with open(folder / name, "a") as file:
            file.write("more = 1\n")
        after = imports(folder)
        assert {file for file in after if after[file] != before[file]} == {name}
        before = after
    for name in ("never.py", "json.py", "package/never.py", "../out.py"):
        (folder / name).write_text("other = 1\n")
    assert imports(folder) == before


def test_only_imports_from_the_own_folder_are_hashed():
    folder = pathlib.Path(absl.__file__).parents[1]
    digests = imports(folder, "absl/flags/__init__.py")
    assert {name.split("/")[0] for name in digests} == {"absl"}


KIND = """
from dataclasses import dataclass
from typing import ClassVar
from plm_jax import config
from {helper} import LENGTH

@dataclass(frozen=True)
class Steps(config.Schedule):
    kind: ClassVar[str] = "{kind}"

    def rate(self, total_steps, stages=()):
        return lambda step: LENGTH

def get_config():
    return {returned}
"""


@pytest.fixture
def own(tmp_path):
    """`own(kind, helper)` writes a user's file and returns its path; its helper is one of two."""
    (tmp_path / "kit/parts").mkdir(parents=True)
    for name in ("kit", "kit/parts"):
        (tmp_path / name / "__init__.py").write_text("")

    def write(kind, helper, returned=1, length=1):
        (tmp_path / f"{helper.replace('.', '/')}.py").write_text(f"LENGTH = {length}\n")
        (tmp_path / f"{kind}.py").write_text(KIND.format(kind=kind, helper=helper, returned=returned))
        return tmp_path / f"{kind}.py"

    return write


CHECK = """
import json, sys
from plm_jax.common import users
settings = {"schedule": users.load(sys.argv[1]).Steps(0.1)}
record = json.loads(sys.stdin.read() or "null")
print(json.dumps(users.used(settings) if record is None else users.changed(record, settings)))
"""


def check(path, record="", folder="/"):
    """Returns the record of a file's kind from a new process, or the changes since a record."""
    command = [sys.executable, "-P", "-c", CHECK, str(path)]
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    finished = subprocess.run(command, input=record, cwd=folder, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_changed_helper_is_named_and_a_config_may_change(own, tmp_path):
    kind, helper = "tests_steps", "tests_beside"
    path = own(kind, helper)
    record = check(path)
    own(kind, helper, returned=2)  # The result of `get_config` is compared field by field.
    (tmp_path / "kit/unused.py").write_text("x = 1\n")
    assert check(path, record) == "{}\n"
    own(kind, helper, length=2)
    changed = json.loads(check(path, record))
    assert list(changed) == [str(tmp_path / "tests_beside.py")]


def test_a_package_named_by_its_module_is_found_in_the_working_directory(own, tmp_path):
    path = own("tests_packaged", "kit.parts.tests_deeper")
    os.rename(path, tmp_path / "kit/tests_packaged.py")
    record = check("kit.tests_packaged", folder=tmp_path)
    (tmp_path / "kit/parts/tests_deeper.py").write_text("LENGTH = 3\n")
    changed = json.loads(check("kit.tests_packaged", record, folder=tmp_path))
    assert list(changed) == [str(tmp_path / "kit/parts/tests_deeper.py")]


def test_libraries_do_not_import_modules_next_to_user_files(own, tmp_path, monkeypatch):
    """A module next to a user's file is importable from that file, but not from a library that looks for it."""
    (tmp_path / "tests_optional.py").write_text("raise AssertionError('a library imported it')\n")
    (tmp_path / "library").mkdir()
    (tmp_path / "library/tests_library.py").write_text(
        "try:\n    import tests_optional\nexcept ImportError:\n    FOUND = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "library")
    (tmp_path / "tests_asker.py").write_text("import tests_library\nFOUND = tests_library.FOUND\n")
    assert users.load(str(tmp_path / "tests_asker.py")).FOUND is False
    (tmp_path / "tests_asker_2.py").write_text("import tests_optional\n")
    with pytest.raises(UserError, match="a library"):
        users.load(str(tmp_path / "tests_asker_2.py"))


def test_a_loss_that_an_objective_names_is_code_that_it_uses(tmp_path):
    (tmp_path / "tests_named_loss.py").write_text(
        "from plm_jax.losses import Loss\nclass Named(Loss):\n    kind = 'tests_named_loss'\n"
    )
    users.load(str(tmp_path / "tests_named_loss.py"))

    @dataclasses.dataclass(frozen=True)
    class Objective:
        loss = "tests_named_loss"

    record = users.used({"objective": Objective()})
    assert record[str(tmp_path / "tests_named_loss.py")]["kinds"] == {"objective.loss": "tests_named_loss"}
