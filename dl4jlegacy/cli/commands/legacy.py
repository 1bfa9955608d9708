"""``actor-network-runner``: the command line of the legacy ``ActorNetworkRunnerApp``, word for word.

Flags and defaults are those of 2014; flags that the original parsed and then ignored (``-i``, ``-o``) are checked here.
``-data`` took the name of a Java class; besides our own names, the class names of the available data sets are accepted.
``-t master`` trains in this process; with ``-stp`` it is the master of a run on a cluster, whose tracker is at that
port of ``-h`` and which is registered with Zookeeper at port 2181 there. ``-t worker`` joins the run that is registered
at ``-ad``. ``--use``, ``--out`` and ``--stay``, which the original did not have, are those of ``dl4j``, as are
``DL4J_USE`` and ``DL4J_ID``.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from dl4jlegacy.cli.commands.cluster import worker
from dl4jlegacy.cli.commands.observing import ObservedWorkerOptions
from dl4jlegacy.cli.options.read import cluster_address, import_used
from dl4jlegacy.cli.options.values import rate, whole_number
from dl4jlegacy.errors import ConfError, UsageError, nearest
from dl4jlegacy.system.console import run_guarded

if TYPE_CHECKING:
    from dl4jlegacy.datasets import DataSource
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["main"]

_MODELS = ("dbn", "mlp", "sda")
_ZOOKEEPER_PORT = 2181
_CLASSES = {"DigitsDataSetIterator": "digits", "IrisDataSetIterator": "iris", "MnistDataSetIterator": "mnist"}


class _Parser(argparse.ArgumentParser):
    """Argparse with this package's errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no comma list of layer sizes, such as 500,250,100")
    return sizes


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="actor-network-runner", add_help=False, allow_abbrev=False)
    add = parser.add_argument

    def whole(flag: str, least: int, *, default: int, help: str, metavar: str = "N") -> None:
        add(flag, type=partial(whole_number, flag, least=least), default=default, metavar=metavar, help=help)

    add("--help", action="help", help="show this and leave")
    add("-a", default=None, metavar="ALGORITHM", help="sda, dbn or mlp")
    whole("-i", 0, default=0, help="inputs; 0: as the data have")
    whole("-o", 0, default=0, help="outputs; 0: as the data have")
    whole("-fte", 1, default=100, help="finetune epochs")
    whole("-pte", 0, default=100, help="pretrain epochs")
    whole("-r", -(2**63), default=123, metavar="SEED", help="seed")
    whole("-k", 1, default=1, metavar="K", help="Gibbs steps of the RBMs")
    add("-c", type=partial(rate, "-c"), default=0.3, metavar="X", help="corruption level")
    add("-ftl", type=partial(rate, "-ftl"), default=0.1, metavar="X", help="finetune learning rate")
    add("-ptl", type=partial(rate, "-ptl"), default=0.1, metavar="X", help="pretrain learning rate")
    add("-hl", type=_sizes, default=(300, 300, 300), metavar="N,N", help="hidden layer sizes")
    whole("-sp", 1, default=10, help="split: examples of a worker's batch")
    add("-data", default=None, metavar="NAME", help="digits, iris or mnist")
    add("-datasetpath", default=None, metavar="PATH", help="a CSV file or a folder; excludes -data")
    whole("-e", -1, default=-1, help="number of examples; -1: all")
    add("-adg", type=_boolean, default=True, metavar="BOOL", help="AdaGrad (else plain SGD)")
    add("-h", default="localhost", metavar="HOST", help="the master's host, with Zookeeper and the state tracker")
    add("-t", default="master", metavar="TYPE", help="master or worker")
    add("-ad", default=None, metavar="HOST", help="the master's host, for a worker")
    add("--use", default=None, metavar="MODULE,...", help="modules that register parts of the run ($DL4J_USE)")
    add("--stay", action="store_true", help="a worker: wait for the next run after each")
    add("--out", default=None, metavar="FILE", help="where a master writes its model")
    whole("-stp", -1, default=-1, metavar="PORT", help="state tracker port of a master on a cluster; -1: train here")
    return parser


def _network(args: argparse.Namespace, n_in: int, n_out: int) -> Any:
    """Return the network that the flags describe."""
    from dl4jlegacy.nn import zoo
    from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
    from dl4jlegacy.nn.layers.rbm import RBM
    from dl4jlegacy.nn.optimization.updaters import AdaGrad, Sgd

    def updater(rate: float) -> Any:
        return AdaGrad(learning_rate=rate) if args.adg else Sgd(learning_rate=rate)

    model = zoo.select(args.a)
    conf = model.build(n_in, n_in if model.reconstructs else n_out, hidden=args.hl, seed=args.r)
    layers = []
    for layer in conf.layers:
        changes: dict[str, Any] = {}
        if isinstance(layer, RBM):
            changes = {"k": args.k, "pretrain_learning_rate": args.ptl}
        elif isinstance(layer, AutoEncoder):
            changes = {"corruption_level": args.c, "pretrain_learning_rate": args.ptl}
        layers.append(msgspec.structs.replace(layer, **changes))
    base = msgspec.structs.replace(conf.conf, updater=updater(args.ftl))
    return msgspec.structs.replace(conf, conf=base, layers=tuple(layers))


def _check(args: argparse.Namespace, given: set[str]) -> None:
    """Raise ``UsageError`` for a missing flag, and for flags that contradict each other."""
    if args.t == "worker":
        if others := sorted(given - {"-t", "-ad", "-h", "-a", "--use", "--stay"}):
            raise UsageError(f"{', '.join(others)} with -t worker: these are the master's; a worker takes them from it")
        if {"-ad", "-h"} <= given:
            raise UsageError("-ad and -h both name the master's host to a worker; give one of them")
        return
    if args.stay:
        raise UsageError("--stay without -t worker: it is a worker that waits for the next run")
    if args.t != "master":
        raise UsageError(f"-t {args.t}: the type is master or worker")
    if args.ad is not None:
        raise UsageError(f"-ad {args.ad}: it tells a worker (-t worker) where its master is; a master's own host is -h")
    if "-h" in given and args.stp < 0:
        raise UsageError(
            f"-h {args.h} without -stp: a run on a cluster needs the port of its state tracker (Hazelcast), such as "
            "-stp 5701; without both it trains in this process"
        )
    if args.a is None:
        raise UsageError(f"-a is missing; give one of {', '.join(_MODELS)}")
    if args.a not in _MODELS:
        raise UsageError(f"-a {args.a}: unknown algorithm{nearest(args.a, _MODELS)}")
    if (args.data is None) == (args.datasetpath is None):
        found = "neither is given" if args.data is None else "both are given"
        raise UsageError(f"give the data with one of -data and -datasetpath; {found}")


def _zookeeper(host: str) -> str:
    """Return Zookeeper's address on the master's host or hosts; the environment may give another one."""
    servers = ",".join(f"{each}:{_ZOOKEEPER_PORT}" for each in host.split(","))
    return os.environ.get("DL4J_ZOOKEEPER") or servers


def _work(args: argparse.Namespace) -> None:
    """Join the run registered at the master's host; if ``-a`` is given, the run must have that algorithm."""
    from dl4jlegacy.cluster.address import find_conf
    from dl4jlegacy.nn import zoo

    options = ObservedWorkerOptions(
        zookeeper=_zookeeper(args.ad or args.h),
        id=os.environ.get("DL4J_ID"),
        use=args.use,
        stay=args.stay,
        data_dir=os.environ.get("DL4J_DATA_DIR"),
    )
    if args.a is not None:
        conf = find_conf(cluster_address(options.zookeeper, options.id), wait_seconds=float(options.wait))
        clazz = zoo.select(args.a).clazz  # a program's run has a network of its own, which is of some class
        ours = conf.model == args.a if conf.model else conf.multi_layer_clazz == clazz
        if not ours:
            trained = conf.model or f"a {conf.multi_layer_clazz} of its own"
            raise ConfError(f"-a {args.a}: run {conf.run} trains {trained}; leave -a out")
    worker(options)


def _dataset(args: argparse.Namespace) -> str:
    """Return the data set's name or path; for a Java class, the last part of its name decides."""
    name = str(args.data or args.datasetpath)
    return _CLASSES.get(name.rsplit(".", 1)[-1], name)


def _run(arguments: list[str]) -> None:
    from dl4jlegacy.cli.terminal.next_steps import RunLocation
    from dl4jlegacy.cli.terminal.progress import show_training
    from dl4jlegacy.nn import zoo
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training import run_data
    from dl4jlegacy.training.run import resolve

    args = _parser().parse_args(arguments)
    words = {word.partition("=")[0] for word in arguments}
    _check(args, {f"{dashes}{name}" for name in vars(args) for dashes in ("-", "--")} & words)
    args.use = args.use or os.environ.get("DL4J_USE")
    import_used(args.use)
    if args.t == "worker":
        _work(args)
        return
    data = run_data.load_data(_dataset(args))
    training.check_classes(data)
    if args.e >= 0:
        data = run_data.first_examples(data, args.e)
    train = data.train
    for flag, given, has in (("-i", args.i, train.n_in), ("-o", args.o, train.n_out)):
        if given not in (0, has):
            raise ConfError(f"{flag} {given} does not fit the data, which have {has}; leave it out or give {has}")
    conf = Conf(
        multi_layer_conf=_network(args, train.n_in, train.n_out),
        multi_layer_clazz=zoo.select(args.a).clazz,
        model=args.a,
        dataset=data.name,
        batch_size=args.sp,
        epochs=args.fte,
        pretrain_epochs=args.pte,
        seed=args.r,
        averaging_frequency=5,
    )
    data = run_data.standardized(conf, data)
    if args.stp >= 0:
        _lead(conf, data, args.h, args.stp, args.out or "")
        return
    show_training(
        lambda display: training.train(
            resolve(conf, training.training_data(conf, data)), data, out=args.out or "", tick=display.tick
        ),
        RunLocation(),
    )


def _lead(conf: Conf, data: DataSource, host: str, port: int, out: str) -> None:
    """Lead a run on a cluster, whose servers are on this machine, at ``host``."""
    from dl4jlegacy.cli.terminal.next_steps import RunLocation
    from dl4jlegacy.cli.terminal.progress import show_training
    from dl4jlegacy.cluster.leadership import MasterOptions
    from dl4jlegacy.cluster.master import run_master
    from dl4jlegacy.services.grid import grid_of
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training.run import resolve

    address = cluster_address(_zookeeper(host), os.environ.get("DL4J_ID"))
    members, cluster_name = grid_of(f"hazelcast://{host}:{port}", os.environ.get("DL4J_CLUSTER_NAME"), label="-stp ")
    conf = conf.replace(state_tracker_connection_string=members, cluster_name=cluster_name)
    run = resolve(conf, training.training_data(conf, data), local_workers=0, on_cluster=True)
    bind = "127.0.0.1" if host == "localhost" else host
    show_training(
        lambda display: run_master(run, data, address, MasterOptions(bind=bind, tick=display.tick, out=out)),
        RunLocation(name=run.conf.run, address=address),
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``actor-network-runner``."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_guarded(lambda: _run(given)))
