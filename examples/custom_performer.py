"""A job that is no neural network, as the API of 2015 allowed: count the words of some lines with four workers.

    python examples/custom_performer.py [TEXT_FILE]

What a job is, what a worker does with it and how results are put together are three small pieces of your own; the
master, the workers, leases, retries and the accounting are the same as for a network.
"""

import sys
from collections import Counter
from pathlib import Path

from dl4jlegacy import ActorNetworkRunner, CollectingAggregator, CollectionJobIterator, Conf, Job, Result

LINES = """the master hands out jobs and the workers perform them
the tracker knows which jobs are done and which are not
a job is done once and once only""".splitlines()


class WordCountPerformer:
    """Counts the words of one line. Every worker has its own."""

    progress = 0

    def update(self, model: Result) -> None:
        """The counts so far are of no use for counting on."""

    def perform(self, job: Job) -> Result:
        """Return the counts of the line that the job holds."""
        self.progress += 1
        return Result({"value": dict(Counter(job.work.split()))})


def add(total: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
    return dict(Counter(total) + Counter(counts))


def main(lines: list[str]) -> None:
    runner = ActorNetworkRunner(
        "master",
        CollectionJobIterator(lines),
        performer=lambda conf, kernels: WordCountPerformer(),
        aggregator=CollectingAggregator(add),
        first_model=Result({"value": {}}),
    )
    with runner:
        runner.setup(Conf(workers=4))
        result = runner.train()
    for word, count in Counter(result.model.values["value"]).most_common(5):
        print(f"{count:5d}  {word}")
    print(f"{result.head.batches} lines counted, {result.batches_lost} lost, {result.batches_duplicated} twice")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if len(sys.argv) > 1 else LINES)
