#!/bin/sh
# Runs a master. When the run is over, well or badly, says so to the other containers, which then end (until_over.sh).
#
# A master that was stopped (over 128), found no tracker (4), ran out of time (5) or of workers (7) leaves a run behind
# that can go on, and says nothing; so does one that could not write its model (8, with the run still registered): the
# servers stay, since only they and the volume have it. A standby gives the master $DL4J_LINGER seconds to finish and to say it itself: it
# may have seen the run's end before the master has printed the evaluation, or the master may have died just then.
set -u
# a folder holds one run's checkpoints
export DL4J_CHECKPOINT_DIR="${DL4J_CHECKPOINT_DIR:-/models/checkpoints/$(date -u +%Y-%m-%dT%H-%M-%S)}"
over=${DL4J_OVER:-/run/over/over}
name=$(dirname "$over")/cluster-name # of the Hazelcast cluster, from prepare.sh
if [ -s "$name" ]; then
    export DL4J_CLUSTER_NAME="${DL4J_CLUSTER_NAME:-$(cat "$name")}"
fi
"$@" &
master=$!
trap 'kill -TERM "$master" 2>/dev/null' TERM INT
while :; do # a signal ends wait, not the master
    wait "$master"
    code=$?
    kill -0 "$master" 2>/dev/null || break
done
case $code in
    4 | 5 | 7) exit "$code" ;;
    8) dl4j status >/dev/null 2>&1 && exit "$code" ;;
esac
[ "$code" -le 128 ] || exit "$code"
left=${DL4J_LINGER:-0}
while [ "$left" -gt 0 ] && [ ! -e "$over" ]; do
    sleep 1 &
    wait $! || exit "$code" # stopped
    left=$((left - 1))
done
[ -e "$over" ] || : >"$over"
exit "$code"
