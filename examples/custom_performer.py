"""A job that is no neural network, as the API of 2015 allowed: count the words of some lines, with four workers here:

    python examples/custom_performer.py

or with workers in processes of their own, any of which may be killed (dl4j services up starts the servers):

    python examples/custom_performer.py --tracker hazelcast://127.0.0.1:5701 --zookeeper 127.0.0.1:2181
    dl4j worker --use examples.custom_performer --zookeeper 127.0.0.1:2181
"""

import argparse
from collections import Counter
from pathlib import Path

import dl4jlegacy as dl4j

LINES = """the master hands out jobs and the workers perform them
the tracker knows which jobs are done and which are not
a job is done once and once only""".splitlines()


@dl4j.register_performer("word-count")
class WordCountPerformer:
    """Counts the words of one line. Every worker has its own instance."""

    def __init__(self, conf: dl4j.Conf, kernels: object) -> None:
        self.progress = 0

    def update(self, model: dl4j.Result) -> None:
        """Ignore the counts so far: they are not needed for counting."""

    def perform(self, job: dl4j.Job) -> dl4j.Result:
        """Return the word counts of the line in the job."""
        self.progress += 1
        return dl4j.Result({"value": dict(Counter(job.work.split()))})


def add(total: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
    return dict(Counter(total) + Counter(counts))


def main(lines: list[str], **where: str) -> None:
    parts = {"aggregator": dl4j.CollectingAggregator(add), "first_model": dl4j.Result({"value": {}})}
    with dl4j.ActorNetworkRunner("master", dl4j.CollectionJobIterator(lines), **where, **parts) as runner:
        runner.setup(dl4j.Conf(workers=4, performer="word-count"))
        if where:
            print(f"now: dl4j worker --use examples.custom_performer --zookeeper {where['zookeeper']}", flush=True)
        result = runner.train()
    for word, count in Counter(result.model.values["value"]).most_common(5):
        print(f"{count:5d}  {word}")
    print(f"{result.head.batches} lines counted, {result.batches_lost} lost, {result.batches_duplicated} twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("text", nargs="?", help="a text file")
    for option, help in (("--tracker", "hazelcast://host:port of a cluster"), ("--zookeeper", "its host:port")):
        parser.add_argument(option, help=help)
    given = vars(parser.parse_args())
    main(Path(given.pop("text")).read_text(encoding="utf-8").splitlines() if "text" in given else LINES, **given)
