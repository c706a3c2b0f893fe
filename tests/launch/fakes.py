"""Programs put first on the PATH: `gcloud`, SLURM's, and the `python3` and `curl` of a fresh machine.

Each notes its calls and fails on arguments that it does not know.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

# A Python that installs nothing; what is no installation runs on the Python of the tests.
PYTHON = f"""#!/usr/bin/env bash
echo "$*" >> "$HOME/python.calls"
case "$*" in
  "-m pip install --quiet --user uv" | "-m uv python install --quiet 3.11") ;;
  "-m uv python find 3.11") command -v python3 ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip install --disable-pip-version-check -r requirements.txt --editable .["*"]") ;;
  "-m pip"* | "-m uv"* | "-m venv"*) echo "unknown: $*" >&2; exit 64 ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
# The metadata server's answers: a worker's home ends with the numbers of its node and its own; there are two a node.
CURL = """#!/usr/bin/env bash
url=http://metadata.google.internal/computeMetadata/v1/instance/attributes
worker=${HOME##*-} node=${HOME%-*} node=${node##*-}
case "$*" in
  "--silent --fail --header Metadata-Flavor: Google $url/agent-worker-number") echo "$worker" ;;
  "--silent --fail --header Metadata-Flavor: Google $url/worker-network-endpoints")
    echo "a:0:10.0.$node.0,b:1:10.0.$node.1" ;;
  "--silent --fail --header Metadata-Flavor: Google $url/tpu-env")
    echo "ACCELERATOR_TYPE: 'v5litepod-16'"
    if [ "${FAKE_NODES:-1}" != 1 ]; then
      printf "%s: '%s'\\n" MEGASCALE_NUM_SLICES "$FAKE_NODES" MEGASCALE_SLICE_ID "$node" \\
        MEGASCALE_COORDINATOR_ADDRESS 10.0.0.0:8080
    fi ;;
  *) exit 64 ;;
esac
"""


def programs(folder: pathlib.Path) -> pathlib.Path:
    """Writes the programs into `folder/bin`."""
    folder = folder / "bin"
    folder.mkdir()
    texts = {"python3": PYTHON, "curl": CURL}
    modules = {"gcloud": "gcloud", "kubectl": "kubectl", "sbatch": "slurm", "srun": "slurm", "scontrol": "slurm"}
    for name, module in modules.items():
        # Most need nothing but Python itself, which then starts in half the time.
        python = sys.executable if module == "kubectl" else f"{sys.executable} -I -S"
        texts[name] = f'#!/usr/bin/env bash\nexec {python} {ROOT}/tests/launch/{module}.py {name} "$@"\n'
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def project(folder: pathlib.Path) -> pathlib.Path:
    """Returns a project with our launchers and nothing else, committed."""
    folder = folder / "project"
    shutil.copytree(ROOT / "launch", folder / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirements.txt", folder)
    (folder / ".gitignore").write_text(".venv/\n__pycache__/\n")
    name = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    for words in (["init", "--quiet"], ["add", "."], [*name, "commit", "--quiet", "--message=launchers"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def environment(folder: pathlib.Path, **variables: str) -> dict[str, str]:
    """Returns variables with `folder/bin` first on the PATH; its programs keep their state in `folder`."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(folder), "FAKES": str(folder)} | variables


def finish(launcher: subprocess.Popen, status: int = 0) -> tuple[str, str]:
    """Waits for a launcher, which must end with a status; returns its output and errors."""
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == status, err
    return out, err
