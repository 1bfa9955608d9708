#!/bin/bash
# As the image's: refuses nothing, writes a myid, becomes the command. It would write a zoo.cfg if there were none.
set -e
if [ ! -f "$ZOO_CONF_DIR/zoo.cfg" ]; then
    echo "this stand-in needs a mounted $ZOO_CONF_DIR/zoo.cfg" >&2
    exit 1
fi
if [ ! -f "$ZOO_DATA_DIR/myid" ]; then
    echo 1 >"$ZOO_DATA_DIR/myid"
fi
exec "$@"
