"""From AWS credentials to a trained model in S3 and an empty account, with what it cost.

python examples/aws_cluster.py s3://MY-BUCKET/digits.zip --allow MY.PUBLIC.IP.ADDRESS [--workers 2] [--spot] [--yes]

It tells the price and asks; starts a master and workers, waits until the model is in S3, and ends everything, whatever
happens on the way: an error, Ctrl-C, a training that fails. Should this machine vanish meanwhile, the instances end
by themselves after --ttl, and `dl4j aws reap` removes the rest. docs/aws.md says more.
"""

import argparse
import sys

from dl4jlegacy.aws import Aws, S3Downloader, S3Uploader
from dl4jlegacy.aws.cluster_spec import MASTER, ClusterSpec, parse_cidr, parse_ttl
from dl4jlegacy.aws.payload import load_payload
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.setup import ClusterSetup, ListWorkers, list_workers_over_ssh
from dl4jlegacy.datasets import DigitsDataSetIterator
from dl4jlegacy.errors import CloudError, ConfError, Dl4jError, TrainingError
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.storage.s3.cache import fetch
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.system.console import run_guarded

RUN = ("--model", "dbn", "--dataset", "digits", "--epochs", "10", "--jobs-per-round", "4", "--seed", "7")


def main(arguments: list[str] | None = None, list_workers: ListWorkers = list_workers_over_ssh) -> None:
    """Run the example; ``list_workers`` returns the registered workers (the tests' instances register none)."""
    args = parse(arguments)
    spec = ClusterSpec(
        name=args.name,
        out=args.out,
        allow=parse_cidr(args.allow),
        ttl_seconds=parse_ttl(args.ttl),
        workers=args.workers,
        size=args.size,
        spot=args.spot,
        run=tuple(args.run) or RUN,
    )
    spec.check()
    with Aws(args.region) as aws:
        setup = ClusterSetup(aws, spec.name, list_workers=list_workers)
        setup.check(spec)
        if any(instance.alive for instance in setup.status(ask=False).instances):
            raise ConfError(f"there is a cluster {spec.name} already, which this would end; give another --name")
        price = estimate(aws, spec)
        print(price.text())
        if not args.yes and input("Start it? [y/N] ").strip().lower() not in ("y", "yes"):
            return
        S3Uploader(aws).ensure_bucket(Location.parse(spec.out).bucket)
        began, before = aws.clock.wall(), version_of(aws, spec.out)
        try:
            setup.up(spec, load_payload(args.wheel))
            print(f"{spec.workers} workers have registered; training")
            wait_for_model(aws, setup, spec, before)
        finally:
            removed = setup.down()
            hours = (aws.clock.wall() - began) / 3600
            print(f"ended {len(removed)} things; nothing of cluster {spec.name} is left")
            print(f"{hours * 60:.0f} minutes, about {price.dollars_per_hour * hours:.2f} $ (billed by the second)")
    network = restore_multi_layer_network(fetch(spec.out))
    print(f"{spec.out}: {network.num_params} parameters")
    if not args.run:
        print(network.evaluate(DigitsDataSetIterator(100)).stats())


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on a cluster of EC2 instances; the model stays, all else goes.")
    parser.add_argument("out", metavar="s3://BUCKET/MODEL.zip", help="where the model goes")
    parser.add_argument("run", nargs="*", help="after --: what dl4j master is to do (a DBN on the digits)")
    parser.add_argument("--allow", required=True, help="your public address: from it alone the instances admit SSH")
    parser.add_argument("--name", default="example", help="of the cluster")
    parser.add_argument("--region", help="your default, else us-east-1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", default="m5.large", help="instance type")
    parser.add_argument("--ttl", default="1h", help="when the instances end by themselves")
    parser.add_argument("--spot", action="store_true", help="workers at the spot price")
    parser.add_argument("--wheel", default="", help="this package's wheel; else one is made of what runs here")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(arguments)


def version_of(aws: Aws, out: str) -> str:
    """Return an identifier that distinguishes a new model from an earlier one."""
    head = S3Downloader(aws).head(Location.parse(out))
    return f"{head['ETag']} {head['LastModified']}" if head else ""


def wait_for_model(aws: Aws, setup: ClusterSetup, spec: ClusterSpec, before: str) -> None:
    """Return once there is a new model; raise ``TrainingError`` if the master has ended without one."""
    end, looks = aws.clock.now() + spec.ttl_seconds, 0
    while version_of(aws, spec.out) in ("", before):
        if aws.clock.now() >= end:
            raise CloudError(
                f"there is no model at {spec.out} after {spec.ttl_seconds / 3600:.1f} h; try a longer --ttl"
            )
        looks += 1
        if looks % 6 == 0 and (said := why_ended(setup)) and version_of(aws, spec.out) in ("", before):
            raise TrainingError(f"the master has ended without a model; it said: {said}")
        aws.clock.wait(10.0)


def why_ended(setup: ClusterSetup) -> str:
    """Return the last output of the master's service if it has ended; "" if it runs, or cannot be asked."""
    masters = [instance for instance in setup.status(ask=False).instances if instance.role == MASTER and instance.alive]
    if not masters:
        return "its instance is gone"
    try:
        with setup.provisioner(masters[0]) as host:
            if host.run_remote_command("systemctl is-active --quiet dl4j-master", seconds=60).status == 0:
                return ""
            done = host.run_remote_command("sudo journalctl --no-pager -n 3 -o cat -u dl4j-master", seconds=60)
    except Dl4jError:
        return ""
    return " ".join(done.out.split())[-500:]


if __name__ == "__main__":
    sys.exit(run_guarded(main))
