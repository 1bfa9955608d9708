"""The programs of "Distributed DL4J", and the list of data sets of its successor on Spark, in Python, for the tests.

    python -m tests.support.distributed_dl4j master|list|alone|list-alone [TRACKER ZOOKEEPER CLUSTER_NAME BIND]
    python -m tests.support.distributed_dl4j retriever HOST

The master prints its parameters' digest, the retriever what it has found.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from dl4jlegacy import (
    DBN,
    ActorNetworkRunner,
    Conf,
    DataSet,
    IrisDataSetIterator,
    NeuralNetConfiguration,
    ZookeeperConfigurationRetriever,
)
from dl4jlegacy.training.prepare import params_sha256

NUMBER_OF_INPUTS, NUMBER_OF_OUTPUTS = 4, 3


def conf() -> Conf:
    """Return the page's Conf and network."""
    neural_net_conf = (
        NeuralNetConfiguration.builder()
        .n_in(NUMBER_OF_INPUTS)
        .n_out(NUMBER_OF_OUTPUTS)
        .seed(123)
        .learning_rate(0.01)
        .list(2)
        .hidden_layer_sizes(8)
        .pretrain(True)
        .build()
    )
    return Conf(multi_layer_clazz=DBN, multi_layer_conf=neural_net_conf, run="distributed", epochs=5, jobs_per_round=2)


def a_list_of_data_sets() -> list[DataSet]:
    """Return an epoch as a list, shuffled, as the successor's page makes it."""
    iterator = IrisDataSetIterator(10, seed=12345)
    train_data: list[DataSet] = []
    while iterator.has_next():
        train_data.append(iterator.next())
    random.Random(12345).shuffle(train_data)
    return train_data


def main(role: str, *rest: str) -> None:
    """Play a role to its end."""
    if role == "retriever":
        retriever = ZookeeperConfigurationRetriever(rest[0], 2181, "master")
        found = retriever.retrieve(wait_seconds=60)
        retriever.close()
        address = found.state_tracker_connection_string
        print(json.dumps({"address": address, "clazz": found.multi_layer_clazz, "run": found.run}))
        return
    where: dict[str, Any] = dict(zip(("tracker", "zookeeper", "cluster_name", "bind"), rest, strict=False))
    data = a_list_of_data_sets() if role.startswith("list") else IrisDataSetIterator(10)
    runner = ActorNetworkRunner("master", data, **where)
    c = conf()
    runner.setup(c)
    result = runner.train()
    assert result is not None
    trained = {"params_sha256": params_sha256(runner.network(result).params)}
    runner.shutdown()
    print(json.dumps({**trained, "lost": result.batches_lost, "twice": result.batches_duplicated}))


if __name__ == "__main__":
    main(*sys.argv[1:])
