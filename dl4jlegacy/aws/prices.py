"""Prices of a cluster in US dollars: from AWS, or from a short table of list prices if AWS cannot be asked.

On demand prices come from the price list (``pricing:GetProducts``), spot prices from the last ones paid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dl4jlegacy.aws.calls import call
from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, WITNESS, WITNESS_SIZES, WORKER, ClusterSpec
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
"""Dollars an hour on demand, Linux, us-east-1; other regions cost more. A fallback: AWS's price list is asked first."""

_GB_AN_HOUR = 0.08 / 730  # of gp3
_ADDRESS_AN_HOUR = 0.005
_PRICE_LIST_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars an hour of one instance, and the source of the price."""

    size: str
    dollars: float
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a cluster until the end of its time to live (without data transfer), and its computing power.

    Attributes:
        prices: of one instance, by its role.
        workers: instances with workers.
        ttl_seconds: time to live.
        disk: GB of each instance.
        processes: workers of all instances; 0: not known.
        jobs_per_round: jobs between two averagings; 0: not known.
    """

    prices: dict[str, Price]
    workers: int
    ttl_seconds: int
    disk: int
    processes: int = 0
    jobs_per_round: int = 0

    def of_running(self, counts: Mapping[str, int]) -> float:
        """Return the dollars an hour for ``counts`` instances of each role, with their disks and addresses."""
        more = self.disk * _GB_AN_HOUR + _ADDRESS_AN_HOUR
        return sum(count * (self.prices[role].dollars + more) for role, count in counts.items())

    @property
    def dollars_per_hour(self) -> float:
        """The cost of the whole cluster in an hour."""
        return self.of_running({**dict.fromkeys(self.prices, 1), WORKER: self.workers})

    @property
    def dollars_at_most(self) -> float:
        """The cost of the whole cluster until its time to live is over."""
        return self.dollars_per_hour * self.ttl_seconds / 3600

    def fields(self) -> dict[str, Any]:
        """Return the estimate for JSON."""
        return {
            "dollars_per_hour": round(self.dollars_per_hour, 4),
            "dollars_at_most": round(self.dollars_at_most, 2),
            "ttl_seconds": self.ttl_seconds,
            "workers": self.workers,
            "processes": self.processes or None,
            "jobs_per_round": self.jobs_per_round or None,
            **{
                role: {"size": price.size, "dollars_per_hour": round(price.dollars, 4), "source": price.source}
                for role, price in self.prices.items()
            },
        }

    def text(self) -> str:
        """Return the estimate as text."""
        lines = [f"{role:8} {each.size}: {each.dollars:.4f} $/h ({each.source})" for role, each in self.prices.items()]
        lines[1] = lines[1].replace("worker  ", f"workers  {self.workers} x", 1)
        if self.processes:
            jobs = f"{counted(self.jobs_per_round, 'job')} a round"
            if not self.jobs_per_round:
                jobs = f"and the data decide the jobs of a round: --jobs-per-round {self.processes} after -- uses all"
            lines.append(f"they run {counted(self.processes, 'worker process', 'worker processes')}, {jobs}")
        return "\n".join(
            [
                *lines,
                f"together {self.dollars_per_hour:.2f} $/h, {self.disk:,} GB of disk and an address each included",
                f"at most  {self.dollars_at_most:.2f} $ in {self.ttl_seconds / 3600:.1f} h, then it ends by itself; "
                "data transfer apart",
            ]
        )


def on_demand(aws: Aws, size: str) -> Price:
    """Return the on demand price of a size (Linux, shared); raises ``ConfError`` if it is unknown."""
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
        terms = [term for text in found for term in json.loads(text)["terms"]["OnDemand"].values()]
        prices = [float(each["pricePerUnit"]["USD"]) for term in terms for each in term["priceDimensions"].values()]
        if dollars := min(filter(None, prices), default=0.0):
            return Price(size, dollars, f"AWS's price list, {aws.region}")
    except (Dl4jError, ValueError, KeyError):
        pass  # not allowed, or not reached: the table is good enough
    return list_price(size)


def list_price(size: str) -> Price:
    """Return a size's price in ``LIST_PRICES``; raises ``ConfError`` if it is not in the table."""
    if size not in LIST_PRICES:
        raise ConfError(
            f"the price of {size} is not known: AWS's price list could not be asked (it needs pricing:GetProducts)"
        )
    return Price(size, LIST_PRICES[size], "list price of us-east-1")


def spot(aws: Aws, size: str) -> Price:
    """Return the lowest of the newest spot prices in the region's zones; raises ``CloudError`` if there is none."""
    history = call(
        aws,
        "ec2",
        "describe_spot_price_history",
        what=f"the spot price of {size}",
        InstanceTypes=[size],
        ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        StartTime=datetime.fromtimestamp(aws.clock.wall(), UTC),
    )["SpotPriceHistory"]
    prices = [(float(entry["SpotPrice"]), entry["AvailabilityZone"]) for entry in history]
    if not prices:
        raise CloudError(f"AWS has no spot price for {size} in {aws.region}; take another -s, or leave out --spot")
    price, zone = min(prices)
    return Price(size, price, f"spot, {zone}")


def estimate(aws: Aws | None, spec: ClusterSpec) -> Estimate:
    """Return the cost of the cluster; without AWS from on demand list prices."""
    leads, architecture, processes = spec.master_size or spec.size, "x86_64", 0
    if aws is not None:
        architecture = describe_instance_type(aws, leads).architecture
        processes = spec.workers * spec.processes_of(describe_instance_type(aws, spec.size).cores)
    sizes = {MASTER: leads, WORKER: spec.size}
    if spec.standby:
        sizes |= {STANDBY: leads, WITNESS: WITNESS_SIZES[architecture]}

    def price(role: str, size: str) -> Price:
        if aws is None:
            return list_price(size)
        return spot(aws, size) if spec.spot and role == WORKER else on_demand(aws, size)

    prices = {role: price(role, size) for role, size in sizes.items()}
    return Estimate(prices, spec.workers, spec.ttl_seconds, spec.disk, processes, spec.jobs_per_round())
