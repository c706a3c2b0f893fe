#!/usr/bin/env bash
# Lints, checks types and runs the default tests on two cores; makes .venv if it is missing. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/environment.sh
ruff check .
ruff format --check .
basedpyright --level error
basedpyright --level error --project tests/strict.json
exec python -m pytest --numprocesses=2 --dist=worksteal "$@"
