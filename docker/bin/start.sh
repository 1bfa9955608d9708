#!/bin/sh
# What every container of the image begins with. The kernels were compiled when the image was built; Numba reads them
# only from a folder that it could write to, and the root file system is read-only. Then becomes the command.
set -eu
export NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR:-$HOME/kernels}"
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
    cp -R /opt/dl4j/kernels "$NUMBA_CACHE_DIR"
fi
exec "$@"
