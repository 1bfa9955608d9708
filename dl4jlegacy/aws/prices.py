"""Prices of a cluster in US dollars: asked from AWS, or from a short table of list prices when that cannot be.

On demand prices come from the price list (``pricing:GetProducts``), spot prices from the last ones paid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dl4jlegacy.aws.cluster_spec import WITNESS_SIZES, ClusterSpec
from dl4jlegacy.aws.instances import describe_instance_type
from dl4jlegacy.errors import CloudError, ConfError, Dl4jError, counted
from dl4jlegacy.storage.s3.session import Aws, translate_errors

__all__ = ["LIST_PRICES", "Estimate", "Price", "estimate", "list_price", "on_demand", "spot"]

LIST_PRICES = {
    "t3.small": 0.0208,
    "t4g.small": 0.0168,
    "t3.medium": 0.0416,
    "t3.large": 0.0832,
    "t3.xlarge": 0.1664,
    "m3.medium": 0.067,
    "m3.xlarge": 0.266,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "m5.2xlarge": 0.384,
    "m6i.large": 0.096,
    "m6i.xlarge": 0.192,
    "c5.large": 0.085,
    "c5.xlarge": 0.17,
    "c5.2xlarge": 0.34,
    "c6i.xlarge": 0.17,
    "c6i.2xlarge": 0.34,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
}
"""Dollars an hour on demand, Linux, us-east-1; elsewhere more. A fallback: AWS's own price list is asked first."""

_GB_AN_HOUR = 0.08 / 730  # of gp3
_ADDRESS_AN_HOUR = 0.005
_PRICE_LIST_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars an hour of one instance, and the source of that figure."""

    size: str
    dollars: float
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a cluster costs: dollars an hour, and at most until its time to live is over (data transfer apart).

    And what that buys: the worker processes of all instances, and the jobs between two averagings; 0: not known.
    """

    master: Price
    worker: Price
    workers: int
    dollars_per_hour: float
    dollars_at_most: float
    ttl_seconds: int
    processes: int = 0
    jobs_per_round: int = 0
    disk: int = 0
    witness: Price | None = None

    def of_running(self, masters: int, workers: int, witnesses: int = 0) -> float:
        """Return the dollars an hour of so many instances of it; a standby is like a master."""
        dollars = masters * self.master.dollars + workers * self.worker.dollars
        dollars += witnesses * self.witness.dollars if self.witness else 0.0
        return _an_hour(dollars, masters + workers + witnesses, self.disk)

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "dollars_per_hour": round(self.dollars_per_hour, 4),
            "dollars_at_most": round(self.dollars_at_most, 2),
            "ttl_seconds": self.ttl_seconds,
            "workers": self.workers,
            "processes": self.processes or None,
            "jobs_per_round": self.jobs_per_round or None,
            **{
                role: {"size": price.size, "dollars_per_hour": round(price.dollars, 4), "source": price.source}
                for role, price in self._prices().items()
            },
        }

    def _prices(self) -> dict[str, Price]:
        """Return what one instance of each role costs."""
        prices = {"master": self.master, "worker": self.worker}
        return {**prices, "standby": self.master, "witness": self.witness} if self.witness else prices

    def text(self) -> str:
        """Return it as text."""
        hours = self.ttl_seconds / 3600
        lines = [
            f"master   {self.master.size}: {self.master.dollars:.4f} $/h ({self.master.source})",
            *([f"standby  {self.master.size}: {self.master.dollars:.4f} $/h"] if self.witness else []),
            *([f"witness  {self.witness.size}: {self.witness.dollars:.4f} $/h"] if self.witness else []),
            f"workers  {self.workers} x {self.worker.size}: {self.worker.dollars:.4f} $/h ({self.worker.source})",
            *([self._buys()] if self.processes else []),
            f"together {self.dollars_per_hour:.2f} $/h, {self.disk:,} GB of disk and an address each included",
            f"at most  {self.dollars_at_most:.2f} $ in {hours:.1f} h, then it ends by itself; data transfer apart",
        ]
        return "\n".join(lines)

    def _buys(self) -> str:
        jobs = counted(self.jobs_per_round, "job")
        return f"they run {counted(self.processes, 'worker process', 'worker processes')}, {jobs} a round"


def on_demand(aws: Aws, size: str) -> Price:
    """Return the on demand price of a size (Linux, shared); raises ``ConfError`` if it is not known."""
    filters = {
        "instanceType": size,
        "regionCode": aws.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    asked = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in filters.items()]
    try:
        with translate_errors(f"the price of {size}"):
            client = aws.client("pricing", _PRICE_LIST_REGION)
            found = client.get_products(ServiceCode="AmazonEC2", Filters=asked, MaxResults=10)["PriceList"]
        dollars = [value for text in found if (value := _dollars(json.loads(text)))]
        if dollars:
            return Price(size, min(dollars), f"AWS's price list, {aws.region}")
    except (Dl4jError, ValueError, KeyError):
        pass  # not allowed, or not reached: the table will do for an estimate
    return list_price(size)


def list_price(size: str) -> Price:
    """Return a size's price in ``LIST_PRICES``; raises ``ConfError`` if it is not there."""
    if size not in LIST_PRICES:
        raise ConfError(
            f"the price of {size} is not known: AWS's price list could not be asked (it needs pricing:GetProducts)"
        )
    return Price(size, LIST_PRICES[size], "list price of us-east-1")


def _dollars(product: dict[str, Any]) -> float:
    for term in product["terms"]["OnDemand"].values():
        for dimension in term["priceDimensions"].values():
            return float(dimension["pricePerUnit"]["USD"])
    return 0.0


def spot(aws: Aws, size: str) -> Price:
    """Return the lowest last spot price of a size among the region's zones; raises ``CloudError`` if there is none."""
    with translate_errors(f"the spot price of {size}"):
        history = aws.client("ec2").describe_spot_price_history(
            InstanceTypes=[size],
            ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
            StartTime=datetime.fromtimestamp(aws.clock.wall(), UTC),
            MaxResults=100,
        )["SpotPriceHistory"]
    prices = [(float(entry["SpotPrice"]), entry["AvailabilityZone"]) for entry in history]
    if not prices:
        raise CloudError(f"AWS has no spot price for {size} in {aws.region}; take another -s, or leave out --spot")
    price, zone = min(prices)
    return Price(size, price, f"spot, {zone}")


def _an_hour(dollars: float, instances: int, disk: int) -> float:
    """Return what instances cost that are ``dollars`` an hour, with their disks (GB of each) and addresses."""
    return dollars + (disk * _GB_AN_HOUR + _ADDRESS_AN_HOUR) * instances


def estimate(aws: Aws | None, spec: ClusterSpec) -> Estimate:
    """Return what the cluster would cost; by list prices, on demand, if there is no AWS to be asked."""
    processes, leads, witness = 0, spec.master_size or spec.size, None
    if aws is None:
        master, worker = list_price(leads), list_price(spec.size)
        witness = list_price(WITNESS_SIZES["x86_64"]) if spec.standby else None
    else:
        master = on_demand(aws, leads)
        if spec.standby:
            witness = on_demand(aws, WITNESS_SIZES[describe_instance_type(aws, leads).architecture])
        worker = spot(aws, spec.size) if spec.spot else on_demand(aws, spec.size)
        processes = spec.workers * spec.processes_of(describe_instance_type(aws, spec.size).cores)
    servers = master.dollars + (master.dollars + witness.dollars if witness else 0.0)
    hour = _an_hour(servers + spec.workers * worker.dollars, spec.workers + len(spec.server_roles), spec.disk)
    return Estimate(
        master=master,
        worker=worker,
        workers=spec.workers,
        dollars_per_hour=hour,
        dollars_at_most=hour * spec.ttl_seconds / 3600,
        ttl_seconds=spec.ttl_seconds,
        disk=spec.disk,
        witness=witness,
        processes=processes,
        jobs_per_round=processes and spec.jobs_per_round(processes),
    )
