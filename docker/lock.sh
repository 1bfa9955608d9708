#!/bin/sh
# Writes the lock files anew from setup.cfg: exact versions with the hashes of all their files. Needs uv (pip install uv).
#
#     docker/lock.sh                        keeps what is locked as far as setup.cfg allows
#     docker/lock.sh --upgrade              takes the newest versions
#     docker/lock.sh --upgrade-package X    takes the newest X
set -eu
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND=docker/lock.sh

lock() { # lock FILE SOURCE [FLAG...]
    file=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --output-file "$file" "$@"
}

lock docker/requirements.txt setup.cfg "$@"
lock docker/requirements-dev.txt setup.cfg --extra dev --constraints docker/requirements.txt "$@"
lock docker/requirements-bench.txt setup.cfg --extra bench --constraints docker/requirements-dev.txt "$@"
lock docker/requirements-gpu.txt setup.cfg --extra gpu --constraints docker/requirements-dev.txt "$@" # CUDA 12
for extra in aws docs gpu13 images keras metrics onnx otel serve services sklearn tensorboard tune ui; do
    lock "docker/requirements-$extra.txt" setup.cfg --extra "$extra" --constraints docker/requirements-dev.txt \
        --constraints docker/requirements-bench.txt "$@"
done
lock dl4jlegacy/aws/requirements.txt setup.cfg --extra aws --extra services \
    --constraints docker/requirements-dev.txt "$@" # what instances install
lock docker/requirements-build.txt docker/requirements-build.in "$@"
