#!/bin/bash
# zkServer.sh start-foreground: a server with $ZOOCFGDIR/zoo.cfg and $JVMFLAGS.
[ "$1" = start-foreground ] || exit 2
mkdir -p "$ZOO_LOG_DIR"
# shellcheck disable=SC2086
exec /opt/java/bin/java "-Dzookeeper.log.dir=$ZOO_LOG_DIR" $JVMFLAGS -cp '/apache-zookeeper/lib/*' \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$ZOOCFGDIR/zoo.cfg"
