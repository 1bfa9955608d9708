#!/bin/bash
# Starts a Hazelcast member under the name that prepare.sh has given to this cluster; clients must name it too (lead.sh).
set -eu
HZ_CLUSTERNAME=$(<"$(dirname "${DL4J_OVER:-/run/over/over}")/cluster-name")
export HZ_CLUSTERNAME
exec /bin/bash "$(dirname "$0")/until_over.sh" "$@"
