"""Checks of the network: this machine's name, its proxies, its clock, and whether servers can be reached."""

from __future__ import annotations

import datetime
import email.utils
import http.client
import ipaddress
import re
import socket
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, ok, one_line, skipped, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.services.ports import is_of_this_machine

__all__ = ["CHECKS", "clock_finding", "reach"]

_CONNECT_SECONDS = 3.0
_SKEW_SECONDS = 2.0
_HTTP_SECONDS = 5.0
_CREDENTIALS = re.compile(r"//[^/@]*@")
_ERRORS: tuple[tuple[type[Exception], str, str], ...] = (
    (socket.gaierror, "its name leads to no address", "correct it, or enter it in /etc/hosts"),
    (UnicodeError, "its name leads to no address", "correct it"),
    (
        ConnectionRefusedError,
        "the machine answers, but nobody listens there",
        "start the server ('dl4j services up' starts one on this machine), or correct the port",
    ),
    (
        TimeoutError,
        f"no answer within {_CONNECT_SECONDS:g} s",
        "see whether the machine runs, and whether a firewall or security group lets this port through",
    ),
)


def reach(servers: str) -> Finding:
    """Connect to each of ``host:port[,host:port]``; if only some can be reached, that is a warning."""
    faults = dict[str, str]()
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            return failed(f"{server!r} is no address", "give host:port, such as 127.0.0.1:5701")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except (OSError, UnicodeError) as exc:
            other = (one_line(exc), f"see whether this machine is on a network from which {host} is reached")
            what, remedy = next((texts for kind, *texts in _ERRORS if isinstance(exc, kind)), other)
            faults[f"{server}: {what}"] = remedy
    if not faults:
        return ok(f"{servers} can be connected to")
    found, remedy = "; ".join(faults), next(iter(faults.values()))
    count = servers.count(",") + 1
    if len(faults) == count:
        return failed(found, remedy)
    return warning(f"{counted(len(faults), 'server')} of {count} not reached: {found}", remedy)


def clock_finding(ahead: float, whose: str, precision: float = 0.0) -> Finding:
    """Compare clocks: the other clock is ``ahead`` seconds ahead of this machine's, give or take ``precision``."""
    if abs(ahead) <= _SKEW_SECONDS + precision:
        return ok(f"this machine's clock and {whose} differ by {abs(ahead):.2f} s")
    way = "behind" if ahead > 0 else "ahead of"
    difference = datetime.timedelta(seconds=round(abs(ahead)))
    remedy = "let a time service set both (timedatectl set-ntp true): logs are ordered by them, and AWS refuses others"
    return warning(f"this machine's clock is {difference} (h:m:s) {way} {whose}", remedy)


def host_name(settings: Settings) -> Finding:
    """Check whether this machine's name resolves to one of its addresses that others can use."""
    name = socket.gethostname()
    remedy = "give --bind ADDRESS to a cluster's master, or correct /etc/hosts"
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        return warning(f"this machine's name, {name}, leads to no address: {one_line(exc)}", remedy)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    beyond = [each for each in addresses if not ipaddress.ip_address(each.partition("%")[0]).is_loopback]
    shown = f"{name} leads to {', '.join(addresses)}"
    if not beyond:
        return warning(f"{shown}: others would connect to themselves", remedy)
    if not all(":" in each or is_of_this_machine(each) for each in beyond):
        return warning(f"{shown}, which is no address of this machine", remedy)
    return ok(shown)


def proxies(settings: Settings) -> Finding:
    """Check the proxies in the environment, through which downloads and AWS are reached."""
    named = {name.lower(): value for name, value in settings.environ.items() if value}
    used = {name: named[name] for name in ("all_proxy", "http_proxy", "https_proxy") if name in named}
    if not used:
        return ok("none")
    shown = ", ".join(f"{name} {_CREDENTIALS.sub('//...@', value)}" for name, value in used.items())
    if "no_proxy" in named:
        return ok(f"{shown}; not for {named['no_proxy']}")
    remedy = "export no_proxy=localhost,127.0.0.1,169.254.169.254"
    return warning(f"{shown}, and no no_proxy: requests to this machine itself would go there, too", remedy)


def clock(settings: Settings) -> Finding:
    """Compare this machine's clock with that of an HTTP server, if one is named."""
    if not settings.clock_url:
        return skipped("no server was named whose clock could be compared", "--clock https://HOST names one")
    whose, another = f"that of {urlsplit(settings.clock_url).hostname}", "name another server with --clock"
    request, sent = urllib.request.Request(settings.clock_url, method="HEAD"), time.time()
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as exc:  # an error status is an answer, too
        date = exc.headers.get("Date")
        exc.close()
    except (OSError, ValueError, http.client.HTTPException) as exc:
        return warning(f"{settings.clock_url} does not answer: {one_line(getattr(exc, 'reason', exc))}", another)
    try:
        when = email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return warning(f"{settings.clock_url} says no time", another)
    return clock_finding(when + 0.5 - (sent + time.time()) / 2, whose, precision=0.5)


CHECKS = (
    Check("host name", "Network", host_name, is_waiting=True),
    Check("proxies", "Network", proxies),
    Check("clock", "Network", clock, is_waiting=True),
)
