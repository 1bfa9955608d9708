"""The network: this machine's names and ports, and how a server is reached, or why it is not."""

from __future__ import annotations

import datetime
import email.utils
import errno
import http.client
import ipaddress
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, ok, one_line, skipped, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.services.ports import is_free, listener, member_answers, zookeeper_answers, zookeeper_version
from dl4jlegacy.services.settings import HAZELCAST_PORT, HOST, ZOOKEEPER_PORT, member_ports

__all__ = ["checks", "clock_finding", "reach", "servers_finding"]

_CONNECT_SECONDS = 3.0
_SKEW_SECONDS = 2.0
_HTTP_SECONDS = 5.0
_CREDENTIALS = re.compile(r"//[^/@]*@")


# -- reaching a server -------------------------------------------------------------------------------------------------


def reach(host: str, port: int) -> Finding:
    """Connect to a server; say which step did not work: the name, the way there, or that nobody listens."""
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        what = exc.strerror if isinstance(exc, OSError) and exc.strerror else one_line(exc)
        return failed(f"{where}: the name {host} leads to no address: {what}", "correct it, or enter it in /etc/hosts")
    last: OSError = TimeoutError()
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            try:
                connection.connect(address)
                return ok(f"{where} is reached at {address[0]}")
            except OSError as exc:
                last = exc
    return failed(f"{where}: {_reason(last)}", _remedy(last, host))


def _reason(exc: OSError) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "the machine answers, but nobody listens there"
    if isinstance(exc, TimeoutError):
        return f"no answer within {_CONNECT_SECONDS:g} s"
    return exc.strerror or one_line(exc)


def _remedy(exc: OSError, host: str) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "start the server ('dl4j services up' starts one on this machine), or correct the port"
    if exc.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return f"see whether this machine is on a network from which {host} is reached: ip route get {host}"
    return "see whether the machine runs, and whether a firewall or security group lets this port through"


def servers_finding(servers: str) -> Finding:
    """Connect to each of ``host:port[,host:port]``; one that is reached is enough, and the others are named."""
    findings = []
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            return failed(f"{server!r} is no address", "give host:port, such as 127.0.0.1:5701")
        findings.append(reach(host, int(port)))
    bad = [each for each in findings if each.status == "failed"]
    if not bad:
        return ok("; ".join(each.found for each in findings))
    found, remedy = "; ".join(each.found for each in bad), bad[0].remedy
    if len(bad) == len(findings):
        return failed(found, remedy)
    return warning(f"{counted(len(bad), 'server')} of {len(findings)} not reached: {found}", remedy)


def clock_finding(ahead: float, whose: str, precision: float = 0.0) -> Finding:
    """Compare clocks: ``ahead`` seconds is the other one before this machine's, give or take ``precision``."""
    if abs(ahead) <= _SKEW_SECONDS + precision:
        return ok(f"this machine's clock and {whose} differ by {abs(ahead):.2f} s")
    way = "behind" if ahead > 0 else "ahead of"
    difference = datetime.timedelta(seconds=round(abs(ahead)))
    remedy = "let a time service set both (timedatectl set-ntp true): logs are ordered by them, and AWS refuses others"
    return warning(f"this machine's clock is {difference} (h:m:s) {way} {whose}", remedy)


# -- this machine ------------------------------------------------------------------------------------------------------


def loopback(settings: Settings) -> Finding:
    """Connect this machine with itself: what local servers, and several processes, need."""
    try:
        with socket.create_server((HOST, 0)) as server:
            server.settimeout(_CONNECT_SECONDS)
            with socket.create_connection(server.getsockname(), timeout=_CONNECT_SECONDS):
                server.accept()[0].close()
    except OSError as exc:
        found = f"no connection to this machine itself at {HOST}: {exc.strerror or one_line(exc)}"
        return failed(found, "bring the loopback up: ip link set lo up")
    return ok(f"{HOST} can be connected to")


def hostname(settings: Settings) -> Finding:
    """Look at what this machine's name leads to, which others may be given: an address of its own, not the loopback."""
    name = socket.gethostname()
    remedy = "give --bind ADDRESS to a cluster's master, or correct /etc/hosts"
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        return warning(f"this machine's name, {name}, leads to no address: {one_line(exc)}", remedy)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    beyond = [each for each in addresses if not ipaddress.ip_address(each.partition("%")[0]).is_loopback]
    shown = ", ".join(addresses)
    if not beyond:
        return warning(f"{name} leads to {shown}: for others that is themselves", remedy)
    foreign = [each for each in beyond if not _is_own(each)]
    if foreign:
        return warning(f"{name} leads to {', '.join(foreign)}, which is no address of this machine", remedy)
    return ok(f"{name} leads to {shown}")


def _is_own(address: str) -> bool:
    """Return whether a server here could listen at an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address.partition("%")[0], 0))
        except OSError as exc:
            return exc.errno == errno.EINVAL  # of an IPv6 address that holds for one link only
        return True


def usual_port(what: str, ports: Sequence[int], answers: Callable[[int], str], settings: Settings) -> Finding:
    """Look at the ports that a server takes: free, that server's, or somebody else's.

    Args:
        what: the server that belongs there.
        ports: of the loopback; at the first one it is looked for, the others it takes as well.
        answers: returns what the server at the first one says of itself, "" if it is none of this kind.
        settings: of the preflight.
    """
    taken = [port for port in ports if not is_free(port)]
    if not taken:
        shown = f"port {ports[0]}" if len(ports) == 1 else f"each of the ports {', '.join(map(str, ports))}"
        return ok(f"{shown} of {HOST} is free")
    if ports[0] in taken and (said := answers(ports[0])):
        return ok(f"port {ports[0]} of {HOST} is {said}")
    return warning(
        "; ".join(f"port {port} of {HOST}, {what}'s, is taken by {listener(port)}" for port in taken),
        "end that, or leave it: dl4j services up takes another port, and says which",
    )


def _member(port: int) -> str:
    return "a Hazelcast member's" if member_answers(port, 1) else ""


def _zookeeper(port: int) -> str:
    return f"Zookeeper {zookeeper_version(port)}'s" if zookeeper_answers(port) else ""


def proxies(settings: Settings) -> Finding:
    """Look at the proxies of the environment, through which downloads and AWS are reached."""
    named = {n.lower(): v for n, v in settings.environ.items() if n.lower().endswith("_proxy") and v}
    set_here = {name: value for name, value in named.items() if name in ("http_proxy", "https_proxy", "all_proxy")}
    if not set_here:
        return ok("none: the Web and AWS are reached without")
    shown = ", ".join(f"{name} {_CREDENTIALS.sub('//...@', value)}" for name, value in sorted(set_here.items()))
    if wrong := [name for name, value in set_here.items() if not _is_proxy(value)]:
        return warning(f"{shown}: {' and '.join(wrong)} is no address", "write it as http://host:port")
    if "no_proxy" in named:
        return ok(f"{shown}; not for {named['no_proxy']}")
    found = f"{shown}, and no no_proxy: requests to this machine itself would go there, too"
    return warning(found, "export no_proxy=localhost,127.0.0.1,169.254.169.254")


def _is_proxy(value: str) -> bool:
    try:
        split = urlsplit(value if "://" in value else f"http://{value}")
        return bool(split.hostname) and (split.port is None or split.port > 0)
    except ValueError:
        return False


def web_clock(settings: Settings) -> Finding:
    """Compare this machine's clock with that of an HTTP server, where one is named: nobody else is asked."""
    if not settings.clock_url:
        return skipped("no server was named whose clock could be compared", "--clock https://HOST names one")
    whose = f"that of {urlsplit(settings.clock_url).hostname}"
    request, sent = urllib.request.Request(settings.clock_url, method="HEAD"), time.time()
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as answer:
            said = answer.headers.get("Date")
    except urllib.error.HTTPError as exc:  # an answer all the same
        said = exc.headers.get("Date")
        exc.close()
    except (OSError, ValueError, http.client.HTTPException) as exc:
        found = f"{settings.clock_url} does not answer: {one_line(getattr(exc, 'reason', exc))}"
        return warning(found, "name another server with --clock")
    try:
        when = email.utils.parsedate_to_datetime(said or "").timestamp()
    except ValueError:
        return warning(f"{settings.clock_url} says no time", "name another server with --clock")
    return clock_finding(when + 0.5 - (sent + time.time()) / 2, whose, precision=0.5)


def checks() -> tuple[Check, ...]:
    """Return the checks of this machine's side of the network."""
    area = "Network"
    return (
        Check(name="loopback", area=area, look=loopback),
        Check(name="host name", area=area, look=hostname, is_waiting=True, seconds=15.0),
        Check(name="proxies", area=area, look=proxies),
        Check(
            name="Hazelcast's port",
            area=area,
            look=partial(usual_port, "Hazelcast", member_ports(HAZELCAST_PORT), _member),
            is_waiting=True,
        ),
        Check(
            name="Zookeeper's port",
            area=area,
            look=partial(usual_port, "Zookeeper", (ZOOKEEPER_PORT,), _zookeeper),
            is_waiting=True,
        ),
        Check(name="clock", area=area, look=web_clock, is_waiting=True, seconds=15.0),
    )
