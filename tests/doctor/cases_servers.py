"""A network, servers, devices and surroundings that are not as they should be."""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from dl4jlegacy.arrays.devices import Device
from dl4jlegacy.doctor import Settings
from dl4jlegacy.errors import CloudError, DeviceError, NotAuthorisedError
from dl4jlegacy.kernels import load
from dl4jlegacy.services.jars import pinned_jars
from tests.doctor.broken_things import Thing, answering, breaks, script

# -- the network -------------------------------------------------------------------------------------------------------


@breaks("loopback", "failed", "Cannot assign", "ip link set lo up")
def no_loopback(thing: Thing) -> Settings:
    thing.returns("socket.create_server", OSError(99, "Cannot assign requested address"))
    return thing.settings()


def named(thing: Thing, *addresses: str) -> Settings:
    """This machine's name leads to these addresses."""
    thing.returns("socket.gethostname", "here")
    thing.returns("socket.getaddrinfo", [(socket.AF_INET, 1, 6, "", (each, 0)) for each in addresses])
    return thing.settings()


@breaks("host name", "warning", "here leads to 127.0.1.1", "--bind")
def a_name_that_leads_to_the_loopback(thing: Thing) -> Settings:
    return named(thing, "127.0.1.1")


@breaks("host name", "warning", "203.0.113.7, which is no address of this machine")
def a_name_that_leads_elsewhere(thing: Thing) -> Settings:
    return named(thing, "203.0.113.7")


@breaks("host name", "warning", "Name or service not known", "/etc/hosts")
def a_name_that_nobody_knows(thing: Thing) -> Settings:
    thing.returns("socket.gethostname", "here")
    thing.returns("socket.getaddrinfo", socket.gaierror(-2, "Name or service not known"))
    return thing.settings()


@breaks("proxies", "warning", "https_proxy", "no address")
def a_proxy_that_is_no_address(thing: Thing) -> Settings:
    thing.patch.setenv("https_proxy", "http://proxy:port")
    return thing.settings()


@breaks("proxies", "warning", "//...@proxy:3128", "export no_proxy")
def a_proxy_for_everything(thing: Thing) -> Settings:
    thing.patch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy:3128")
    return thing.settings()


@breaks("Hazelcast's port", "warning", "is taken by", f"pid {os.getpid()}", "dl4j services up takes another")
def somebody_at_the_port_of_hazelcast(thing: Thing) -> Settings:
    port = thing.stack.enter_context(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
    thing.patch.setattr("dl4jlegacy.doctor.network.HAZELCAST_PORT", port)
    return thing.settings()


@breaks("Hazelcast's port", "warning", "is taken by", f"pid {os.getpid()}", "dl4j services up takes another")
def somebody_at_the_port_where_members_meet(thing: Thing) -> Settings:
    port = thing.stack.enter_context(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
    thing.patch.setattr("dl4jlegacy.doctor.network.HAZELCAST_PORT", port - 1000)
    return thing.settings()


@breaks("Zookeeper's port", "warning", "is taken by", f"pid {os.getpid()}")
def somebody_at_the_port_of_zookeeper(thing: Thing) -> Settings:
    port = thing.stack.enter_context(answering(b"220 mail.example ESMTP"))
    thing.patch.setattr("dl4jlegacy.doctor.network.ZOOKEEPER_PORT", port)
    return thing.settings()


ZOOKEEPER = b"Zookeeper version: 3.9.5-abc, built on 2026-01-01\nLatency min/avg/max: 0/0.0/0\nMode: standalone\n"


@breaks("Zookeeper's port", "ok", "is Zookeeper 3.9.5's")
def zookeeper_at_its_port(thing: Thing) -> Settings:
    thing.patch.setattr("dl4jlegacy.doctor.network.ZOOKEEPER_PORT", thing.stack.enter_context(answering(ZOOKEEPER)))
    return thing.settings()


def dated(thing: Thing, ahead: float | None, status: int = 200) -> Settings:
    """A server of the Web whose clock is so many seconds ahead; None: it says no time."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(status)
            if ahead is not None:
                self.send_header("Date", self.date_time_string(int(time.time() + ahead)))
            self.end_headers()

    server = thing.stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Handler))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    thing.stack.callback(thread.join)
    thing.stack.callback(server.shutdown)
    return thing.settings(clock_url=f"http://127.0.0.1:{server.server_port}")


@breaks("clock", "warning", "1:00:00 (h:m:s) behind that of 127.0.0.1", "set-ntp")
def a_clock_that_is_slow(thing: Thing) -> Settings:
    return dated(thing, 3600.0)


@breaks("clock", "warning", "(h:m:s) ahead of")
def a_clock_that_is_fast(thing: Thing) -> Settings:
    return dated(thing, -3600.0, status=404)


@breaks("clock", "ok", "differ by")
def a_clock_that_is_right(thing: Thing) -> Settings:
    return dated(thing, 0.0)


@breaks("clock", "warning", "says no time", "--clock")
def a_server_without_a_time(thing: Thing) -> Settings:
    return dated(thing, None)


@breaks("clock", "warning", "does not answer", "refused")
def a_server_that_is_not_there(thing: Thing) -> Settings:
    return thing.settings(clock_url="http://127.0.0.1:1")


# -- the cluster -------------------------------------------------------------------------------------------------------


@breaks("Java", "warning", "is Java 8", "Java 17 or newer")
def an_old_java(thing: Thing) -> Settings:
    script(thing.folder / "jdk/bin/java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    thing.patch.setenv("JAVA_HOME", str(thing.folder / "jdk"))
    thing.patch.setenv("PATH", "/nowhere")
    thing.patch.setattr("dl4jlegacy.services.java._from_wheel", lambda: None)
    return thing.settings()


@breaks("Java", "skipped", "only dl4j services", "./install services")
def no_java(thing: Thing) -> Settings:
    thing.patch.delenv("JAVA_HOME", raising=False)
    thing.patch.setenv("PATH", "/nowhere")
    thing.patch.setattr("dl4jlegacy.services.java._from_wheel", lambda: None)
    return thing.settings()


@breaks("jars", "warning", "hazelcast-", "damaged")
def a_jar_that_is_damaged(thing: Thing) -> Settings:
    folder = thing.folder / ".cache/dl4jlegacy/jars"
    folder.mkdir(parents=True)
    (folder / pinned_jars("hazelcast")[0].file_name).write_bytes(b"half a jar")
    return thing.settings()


@breaks("jars", "skipped", "7 jars of 7", "Maven")
def no_jars(thing: Thing) -> Settings:
    return thing.settings()


def services(thing: Thing, **server: Any) -> Settings:
    """A folder of local services in which one server was started."""
    state = {"cluster_name": "dl4j-x", "folder": str(thing.folder)}
    ended = {"pid": 1, "mark": "another start"}
    one = {"name": "zookeeper", "port": 1, "command": ["java"], "process": ended, **server}
    (thing.folder / "services.json").write_text(json.dumps({**state, "servers": [one]}))
    thing.patch.setenv("DL4J_SERVICES", str(thing.folder))
    return thing.settings()


@breaks("local services", "warning", "zookeeper of", "ended", "dl4j services up")
def a_local_server_that_has_ended(thing: Thing) -> Settings:
    return services(thing)


@breaks("local services", "warning", "not answering", "logs")
def a_local_server_that_does_not_answer(thing: Thing) -> Settings:
    thing.patch.setattr("dl4jlegacy.services.servers.Server.is_running", property(lambda server: True))
    return services(thing)


@breaks("local services", "warning", "services.json cannot be read")
def a_list_of_local_servers_that_is_damaged(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_SERVICES", str(thing.folder))
    (thing.folder / "services.json").write_text("{")
    return thing.settings()


@breaks("secret", "failed", "10.0.0.7:2181", "no secret", "DL4J_SECRET_FILE")
def no_secret_beyond_loopback(thing: Thing) -> Settings:
    return thing.settings(zookeeper="10.0.0.7:2181")


@breaks("secret", "warning", "10.0.0.7:5701", "DL4J_ALLOW_UNSIGNED")
def no_secret_because_the_user_says_so(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_ALLOW_UNSIGNED", "1")
    return thing.settings(tracker="hazelcast://10.0.0.7:5701")


@breaks("secret", "failed", "cannot be read", "No such file")
def a_secret_s_file_that_is_missing(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_SECRET_FILE", str(thing.folder / "none"))
    return thing.settings()


@breaks("secret", "warning", "3 bytes", "guess")
def a_secret_that_is_short(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_SECRET", "abc")
    return thing.settings()


@breaks("secret", "warning", "open to other users", "chmod 600")
def a_secret_that_others_can_read(thing: Thing) -> Settings:
    file = thing.folder / "secret"
    file.write_text("x" * 40)
    file.chmod(0o644)
    thing.patch.setenv("DL4J_SECRET_FILE", str(file))
    return thing.settings()


@breaks("tracker address", "failed", "127.0.0.1:1: the machine answers, but nobody listens", "dl4j services up")
def a_tracker_that_is_not_there(thing: Thing) -> Settings:
    return thing.settings(tracker="hazelcast://127.0.0.1:1")


@breaks("tracker address", "failed", "leads to no address", "/etc/hosts")
def a_tracker_with_a_name_that_nobody_knows(thing: Thing) -> Settings:
    return thing.settings(tracker="hazelcast://no-such-host.invalid:5701")


@breaks("tracker address", "failed", "no answer within", "firewall")
def a_tracker_behind_a_firewall(thing: Thing) -> Settings:
    thing.returns("socket.socket.connect", TimeoutError())
    return thing.settings(tracker="hazelcast://127.0.0.1:5701")


@breaks("tracker address", "failed", "Network is unreachable", "ip route get 127.0.0.1")
def a_tracker_on_another_network(thing: Thing) -> Settings:
    thing.returns("socket.socket.connect", OSError(101, "Network is unreachable"))
    return thing.settings(tracker="hazelcast://127.0.0.1:5701")


@breaks("tracker address", "failed", "is no address", "host:port")
def a_tracker_without_a_port(thing: Thing) -> Settings:
    return thing.settings(tracker="hazelcast://127.0.0.1")


@breaks("tracker address", "warning", "1 server of 2 not reached")
def one_tracker_of_two(thing: Thing) -> Settings:
    port = thing.stack.enter_context(answering(b""))
    return thing.settings(tracker=f"hazelcast://127.0.0.1:{port},127.0.0.1:1")


@breaks("tracker", "failed", "127.0.0.1:", "no Hazelcast")
def something_else_than_a_tracker(thing: Thing) -> Settings:
    thing.patch.setattr("dl4jlegacy.doctor.servers._ANSWER_SECONDS", 0.5)
    port = thing.stack.enter_context(answering(b"220 mail.example ESMTP"))
    return thing.settings(tracker=f"hazelcast://127.0.0.1:{port}", cluster_name="dev")


def grid(thing: Thing, version: str) -> Settings:
    """A grid of another release."""
    store = SimpleNamespace(member_version=lambda: version, close=lambda: None)
    thing.returns("dl4jlegacy.doctor.servers.HazelcastStore", store)
    return thing.settings(tracker="hazelcast://127.0.0.1:5701", cluster_name="dev")


@breaks("tracker version", "warning", "Hazelcast 4.2.8", "5.7")
def an_old_tracker(thing: Thing) -> Settings:
    return grid(thing, "4.2.8")


@breaks("tracker version", "warning", "does not say")
def a_tracker_without_a_version(thing: Thing) -> Settings:
    return grid(thing, "")


@breaks("Zookeeper address", "failed", "nobody listens")
def a_zookeeper_that_is_not_there(thing: Thing) -> Settings:
    return thing.settings(zookeeper="127.0.0.1:1")


@breaks("Zookeeper", "failed", "does not answer as Zookeeper does", "srvr")
def something_else_than_zookeeper(thing: Thing) -> Settings:
    return thing.settings(zookeeper=f"127.0.0.1:{thing.stack.enter_context(answering(b'220 ESMTP'))}")


@breaks("Zookeeper", "failed", "does not see the greater part", "ensemble")
def a_zookeeper_that_waits_for_others(thing: Thing) -> Settings:
    answer = b"This ZooKeeper instance is not currently serving requests\n"
    return thing.settings(zookeeper=f"127.0.0.1:{thing.stack.enter_context(answering(answer))}")


@breaks("Zookeeper", "warning", "serves, 127.0.0.1:1 does not")
def one_zookeeper_of_two(thing: Thing) -> Settings:
    port = thing.stack.enter_context(answering(ZOOKEEPER))
    return thing.settings(zookeeper=f"127.0.0.1:{port},127.0.0.1:1")


@breaks("Zookeeper version", "warning", "Zookeeper 3.4.14", "3.9")
def an_old_zookeeper(thing: Thing) -> Settings:
    old = ZOOKEEPER.replace(b"3.9.5", b"3.4.14")
    return thing.settings(zookeeper=f"127.0.0.1:{thing.stack.enter_context(answering(old))}")


@breaks("Zookeeper session", "failed", "did not answer within 0.5 s")
def a_zookeeper_that_gives_no_session(thing: Thing) -> Settings:
    thing.patch.setattr("dl4jlegacy.doctor.servers._ANSWER_SECONDS", 0.5)
    return thing.settings(zookeeper=f"127.0.0.1:{thing.stack.enter_context(answering(ZOOKEEPER))}")


class Session:
    """A session whose server's clock is so many seconds ahead."""

    session_seconds = 3.0

    def __init__(self, ahead: float | Exception) -> None:
        self.ahead = ahead

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def seconds_ahead(self) -> float:
        if isinstance(self.ahead, Exception):
            raise self.ahead
        return self.ahead


@breaks("Zookeeper clock", "warning", "1 day, 0:00:00 (h:m:s) ahead of Zookeeper's", "timedatectl")
def a_clock_that_is_not_zookeeper_s(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.servers.ZooKeeperSession", Session(-86400.0))
    return thing.settings(zookeeper="127.0.0.1:2181")


@breaks("Zookeeper clock", "skipped", "no node")
def a_zookeeper_that_lets_nothing_be_made(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.servers.ZooKeeperSession", Session(NotAuthorisedError("no")))
    return thing.settings(zookeeper="127.0.0.1:2181")


# -- GPUs --------------------------------------------------------------------------------------------------------------


def seen(thing: Thing) -> None:
    """The system shows an NVIDIA GPU."""
    thing.patch.setattr("dl4jlegacy.doctor.gpus._NODES", (str(thing.folder),))


@breaks("GPU driver", "failed", "no driver that programs can use", "--gpus all")
def a_gpu_without_a_driver(thing: Thing) -> Settings:
    seen(thing)
    thing.returns("ctypes.CDLL", OSError("libcuda.so.1: cannot open shared object file"))
    return thing.settings()


@breaks("GPU driver", "failed", "does not say its version", "nvidia-smi")
def a_driver_that_does_not_answer(thing: Thing) -> Settings:
    thing.returns("ctypes.CDLL", SimpleNamespace(cuDriverGetVersion=lambda version: 999))
    return thing.settings()


@breaks("GPU driver", "skipped", "no NVIDIA GPU")
def no_gpu(thing: Thing) -> Settings:
    thing.patch.setattr("dl4jlegacy.doctor.gpus._NODES", ())
    thing.returns("ctypes.CDLL", OSError("libcuda.so.1: cannot open shared object file"))
    return thing.settings()


def packages(thing: Thing, *names: str) -> None:
    """These of CuPy's packages are installed."""
    thing.patch.setattr("dl4jlegacy.doctor.gpus._version", lambda name: "14.0" if name in names else "")


@breaks("CuPy", "failed", "not installed", "./install gpu")
def a_gpu_without_cupy(thing: Thing) -> Settings:
    seen(thing)
    packages(thing)
    return thing.settings()


@breaks("CuPy", "failed", "both installed", "pip uninstall cupy-cuda12x cupy-cuda13x")
def two_cupys(thing: Thing) -> Settings:
    packages(thing, "cupy-cuda12x", "cupy-cuda13x")
    return thing.settings()


@breaks("CuPy", "failed", "cannot be imported: file too short")
def a_broken_cupy(thing: Thing) -> Settings:
    packages(thing, "cupy-cuda12x")
    thing.returns("dl4jlegacy.doctor.gpus.import_cupy", ImportError("file too short"))
    return thing.settings()


@breaks("GPUs", "failed", "somebody else's", "nvidia-smi")
def a_gpu_that_hangs(thing: Thing) -> Settings:
    error = DeviceError("gpu:0 has not answered for 60 s, is it somebody else's; does nvidia-smi work here")
    thing.returns("dl4jlegacy.arrays.devices.choose", error)
    return thing.settings(device="gpu")


class Inaccurate:
    """NumPy's kernels, under whose name something else may be computed."""

    def __init__(self, **others: Any) -> None:
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(load("numpy"), name)


def computing(thing: Thing, kernels: Any) -> Settings:
    """A GPU with these kernels."""
    numpy = load("numpy")
    thing.returns("dl4jlegacy.arrays.devices.choose", (Device(kind="gpu", name="H100"),))
    thing.patch.setattr("dl4jlegacy.doctor.gpus.load", lambda name, *rest: kernels if name == "cupy" else numpy)
    return thing.settings()


@breaks("GPU kernels", "failed", "on gpu:0 they differ", "matrix product", "do not use this GPU")
def a_gpu_that_computes_wrongly(thing: Thing) -> Settings:
    return computing(thing, Inaccurate(matmul=lambda a, b, out: out.fill(7.0)))


@breaks("cuDNN", "warning", "libcudnn.so.9 is missing", "./install gpu")
def a_gpu_without_cudnn(thing: Thing) -> Settings:
    kernels = Inaccurate(convolution_path="own", convolution_reason="libcudnn.so.9 is missing")
    return computing(thing, kernels)


# -- AWS ---------------------------------------------------------------------------------------------------------------


class Cloud:
    """A session with AWS that answers like this."""

    region = "us-east-1"

    def __init__(self, silent: str = "", caller: Any = ("123456789012", "arn:aws:iam::123456789012:user/me")) -> None:
        self.silent, self.answer = silent, caller

    def __enter__(self) -> Cloud:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def why_silent(self) -> str:
        return self.silent

    def caller(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@breaks("AWS credentials", "warning", "could not be reached", "proxy")
def an_aws_that_is_not_reached(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.cloud.Aws", Cloud("AWS could not be reached: timeout"))
    return thing.settings()


@breaks("AWS credentials", "warning", "does not accept", "renew them")
def credentials_that_are_too_old(thing: Thing) -> Settings:
    error = NotAuthorisedError("AWS does not accept these credentials: ExpiredToken; renew them, or check the clock")
    thing.returns("dl4jlegacy.doctor.cloud.Aws", Cloud(caller=error))
    return thing.settings()


@breaks("AWS credentials", "warning", "aws.accessSecret is not", "set both or neither")
def half_of_the_credentials(thing: Thing) -> Settings:
    thing.patch.setenv("ORG_DEEPLEARNING4J_AWS_ACCESS_KEY", "key")
    return thing.settings()


@breaks("AWS credentials", "skipped", "no AWS credentials")
def no_credentials(thing: Thing) -> Settings:
    return thing.settings()


@breaks("AWS rights", "warning", "2 of 56 actions are not allowed: ec2:RunInstances, iam:P", "aws-iam-policy.json")
def rights_that_are_not_enough(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.cloud.denied_actions", ["ec2:RunInstances", "iam:PassRole"])
    return thing.settings()


@breaks("AWS rights", "skipped", "iam:SimulatePrincipalPolicy")
def rights_that_cannot_be_asked(thing: Thing) -> Settings:
    error = NotAuthorisedError("AWS denies SimulatePrincipalPolicy: AccessDenied")
    thing.returns("dl4jlegacy.doctor.cloud.denied_actions", error)
    return thing.settings()


@breaks("AWS rights", "warning", "did not answer", "repeat")
def an_aws_that_ends_in_the_middle(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.cloud.denied_actions", CloudError("AWS did not answer; repeat"))
    return thing.settings()


# -- surroundings ------------------------------------------------------------------------------------------------------

KNOWN = frozenset({"DL4J_WORKERS", "DL4J_EPOCHS"})


@breaks("variables", "warning", "DL4J_WORKRES is read by nothing (is DL4J_WORKERS meant?)", "unset DL4J_WORKRES")
def a_variable_that_nobody_reads(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_WORKRES", "8")
    return thing.settings(variables=KNOWN)


@breaks("variables", "warning", "DL4J_EPOCHS is empty", "unset")
def a_variable_that_is_empty(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_EPOCHS", " ")
    return thing.settings(variables=KNOWN)


@breaks("encoding", "warning", "ISO-8859-1", "LC_ALL=C.UTF-8")
def a_locale_of_the_nineties(thing: Thing) -> Settings:
    thing.returns("locale.getencoding", "ISO-8859-1")
    return thing.settings()


def terminal(thing: Thing, name: str, columns: int) -> Settings:
    """A terminal."""
    thing.patch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    thing.patch.setenv("TERM", name)
    thing.returns("shutil.get_terminal_size", os.terminal_size((columns, 24)))
    return thing.settings()


@breaks("terminal", "warning", "'dumb'", "TERM=xterm")
def a_dumb_terminal(thing: Thing) -> Settings:
    return terminal(thing, "dumb", 80)


@breaks("terminal", "warning", "40 columns")
def a_narrow_terminal(thing: Thing) -> Settings:
    return terminal(thing, "xterm", 40)


@breaks("terminal", "ok", "xterm, 120 columns")
def a_terminal(thing: Thing) -> Settings:
    return terminal(thing, "xterm", 120)


@breaks("time", "warning", "it is 1970-01-01", "set-ntp")
def a_clock_that_was_never_set(thing: Thing) -> Settings:
    thing.returns("time.time", 0.0)
    return thing.settings()


@breaks("user", "warning", "sudo of alice", "without sudo")
def sudo(thing: Thing) -> Settings:
    thing.returns("os.geteuid", 0)
    thing.patch.setenv("SUDO_USER", "alice")
    return thing.settings()


def docker(thing: Thing, text: str) -> Settings:
    """A docker that says this."""
    script(thing.folder / "bin/docker", text)
    thing.patch.setenv("PATH", f"{thing.folder / 'bin'}:{os.environ['PATH']}")
    return thing.settings()


@breaks("Docker", "warning", "permission denied", "usermod -aG docker")
def a_docker_of_another_group(thing: Thing) -> Settings:
    return docker(thing, "echo 'permission denied while trying to connect' >&2; exit 1")


@breaks("Docker", "warning", "Is the docker daemon running", "systemctl start docker")
def a_docker_whose_engine_does_not_run(thing: Thing) -> Settings:
    return docker(thing, "echo 'Cannot connect. Is the docker daemon running?' >&2; exit 1")


@breaks("Docker", "skipped", "docker/README.md")
def no_docker(thing: Thing) -> Settings:
    thing.patch.setenv("PATH", "/nowhere")
    return thing.settings()


@breaks("Docker", "ok", "engine 27.1")
def a_docker(thing: Thing) -> Settings:
    return docker(thing, "echo 27.1")


@breaks("Docker compose", "warning", "is not a docker command", "plugin compose")
def a_docker_without_compose(thing: Thing) -> Settings:
    return docker(thing, "echo \"docker: 'compose' is not a docker command\" >&2; exit 1")
