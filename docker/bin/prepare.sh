#!/bin/sh
# Before everything else: makes the run's secret and the name of the Hazelcast cluster, once, both at random, and forgets
# that an earlier run is over.
set -eu
umask 077
if [ ! -s /run/secret/secret ]; then
    python3 -I -c 'import secrets; print(secrets.token_urlsafe(32))' >/run/secret/new
    mv /run/secret/new /run/secret/secret
fi
if [ ! -s /run/over/cluster-name ]; then
    python3 -I -c 'import secrets; print("dl4j-" + secrets.token_hex(8))' >/run/over/new
    chmod 0444 /run/over/new # the members run as another user
    mv /run/over/new /run/over/cluster-name
fi
rm -f /run/over/over
