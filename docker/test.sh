#!/bin/sh
# Runs the tests of the cluster of containers, with the Docker engine that is there, or (as root, on Debian) with one that
# is started for the test; where neither can be, says why and fails. Flags go to pytest.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ ! -x .venv/bin/python ] || python=${PYTHON:-.venv/bin/python}
PYTHONPATH=. "$python" tests/docker/docker_engine.py
exec "$python" -m pytest -m docker tests/docker "$@"
