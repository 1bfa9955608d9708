#!/bin/sh
# Before everything else: makes the run's secret, once, and forgets that an earlier run is over.
set -eu
umask 077
if [ ! -s /run/secret/secret ]; then
    python3 -I -c 'import secrets; print(secrets.token_urlsafe(32))' >/run/secret/new
    mv /run/secret/new /run/secret/secret
fi
rm -f /run/over/over
