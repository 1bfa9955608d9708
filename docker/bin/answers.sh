#!/bin/bash
# Exit status 0 if the server in this container answers: answers.sh zookeeper|hazelcast. Needs nothing but bash.
case $1 in
    zookeeper) port=2181 question='ruok' answer='imok' ;;
    hazelcast) port=7701 question='GET /hazelcast/health/ready HTTP/1.0\r\n\r\n' answer='HTTP/1.1 200' ;;
    *) echo "answers.sh: zookeeper or hazelcast, not $1" >&2 && exit 2 ;;
esac
exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
# shellcheck disable=SC2059
printf "$question" >&3
read -r -t 2 -n "${#answer}" got <&3
read -r -t 0.1 -d '' <&3 # a connection closed with something unread is a warning in the server's log
[ "$got" = "$answer" ]
