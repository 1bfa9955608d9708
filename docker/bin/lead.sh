#!/bin/sh
# Runs a master. When the run is over, well or badly, says so to the other containers, which then end (until_over.sh).
#
# A master that was stopped (over 128), found no tracker (4), ran out of time (5) or of workers (7) leaves a run behind
# that can go on, and says nothing. A standby gives the master $DL4J_LINGER seconds to finish and to say it itself: it
# may have seen the run's end before the master has printed the evaluation, or the master may have died just then.
set -u
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
esac
[ "$code" -le 128 ] || exit "$code"
left=${DL4J_LINGER:-0}
while [ "$left" -gt 0 ] && [ ! -e /run/over/over ]; do
    sleep 1 &
    wait $! || exit "$code" # stopped
    left=$((left - 1))
done
[ -e /run/over/over ] || : >/run/over/over
exit "$code"
