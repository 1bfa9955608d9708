#!/bin/bash
# Runs a server or a worker until the run is over (lead.sh), or until it ends by itself or the container is stopped.
set -um # a job has a process group of its own, which is what gets the signals
over=${DL4J_OVER:-/run/over/over}
"$@" &
child=$!
stopped=
trap 'stopped=container; kill -TERM -- "-$child" 2>/dev/null' TERM INT
{ # bash would report the end of its job here
    while kill -0 "$child"; do
        if [ -z "$stopped" ] && [ -e "$over" ]; then
            stopped=over
            kill -TERM -- "-$child"
        fi
        sleep 0.5 &
        wait $! # unlike sleep itself, this lets a trap in at once
    done
    wait "$child"
    code=$?
} 2>/dev/null
if [ "$stopped" = over ] && [ "$code" -eq 143 ]; then
    code=0
fi
exit "$code"
