# Source this file from the root of the project: it creates and activates .venv with the versions of requirements.txt.
#
#   source launch/environment.sh [base]
#
# `base` installs only what the package itself needs (0.9 GB), which is enough for the demo; by default, the packages of
# all extras and tests are installed too (4.7 GB). With PLM_JAX_ACCELERATOR=gpu or tpu, it installs the jax for that
# accelerator.
case "$(uname -s)" in
  Linux) ;;
  Darwin) echo "note: macOS is untested; there may be no wheel of TensorFlow" >&2 ;;
  *) echo "error: Windows has no TensorFlow and Grain wheels of these versions: use WSL 2, which is Linux" >&2; exit 2 ;;
esac
python=${PYTHON:-python3}
installed=.venv/complete
if [ "${1:-}" = base ] && [ ! -f .venv/complete ]; then
  installed=.venv/base
fi
if [ ! -f "$installed" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: $("$python" --version) is too old: install Python 3.11 or newer, or set PYTHON to one" >&2
    exit 2
  }
  echo "installing into .venv (only once; takes a few minutes)"
  [ -d .venv ] || "$python" -m venv .venv
  pins=-r
  [ "$installed" = .venv/complete ] || pins=-c
  .venv/bin/python -m pip install --disable-pip-version-check "$pins" requirements.txt \
    --editable ".${PLM_JAX_ACCELERATOR:+[$PLM_JAX_ACCELERATOR]}"
  touch "$installed"
fi
# Huge pages for large arrays: on CPUs with 4 KiB pages a training step takes a third less time. glibc only.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
export PATH="$PWD/.venv/bin:$PATH"
