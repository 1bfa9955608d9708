"""The programs of the original's pages that have a cluster, line by line, over real servers and real workers.

Those that need none, and the networks, are in ``tests/docs/test_original_programs.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dl4jlegacy import (
    DBN,
    ActorNetworkRunner,
    Conf,
    HazelcastStateTracker,
    ListDataSetIterator,
    MnistDataSetIterator,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    VoidConfiguration,
    ZookeeperConfigurationRetriever,
)
from dl4jlegacy.services.ports import free_ports
from dl4jlegacy.training.prepare import params_sha256
from tests.support.cluster_commands import SECRET, Cluster

pytestmark = [pytest.mark.long, pytest.mark.mnist]


@pytest.fixture
def iter(mnist_dir: str, monkeypatch: pytest.MonkeyPatch) -> ListDataSetIterator:  # the page's name
    """Return batches of the first images of MNIST, and let this process have the secret of the cluster's runs."""
    monkeypatch.setenv("DL4J_SECRET", SECRET)
    images = MnistDataSetIterator(640, 640, shuffle=False).batch(0, 0)
    return ListDataSetIterator(images, 16, shuffle=False)


def deep_belief() -> NeuralNetConfiguration | Any:
    number_of_inputs, number_of_outputs = 784, 10
    # 3  NeuralNetConfiguration neuralNetConf = new NeuralNetConfiguration.Builder()
    # 4      .nIn(NUMBER_OF_INPUTS).nOut(NUMBER_OF_OUTPUTS).build();
    return (
        NeuralNetConfiguration.builder()
        .n_in(number_of_inputs)
        .n_out(number_of_outputs)
        .use_ada_grad(True)
        .list(2)
        .hidden_layer_sizes(30)
        .pretrain(True)
        .build()
    )


def test_distributed_dl4j(cluster: Cluster, iter: ListDataSetIterator) -> None:
    """The master's ten lines, the worker's arguments, the retriever's lines, and the tracker's."""
    host, port = cluster.zookeeper.split(":")
    where = {"tracker": f"hazelcast://{cluster.hazelcast}", "zookeeper": cluster.zookeeper}
    cluster._runs.add("original")

    # Program Arguments: -ad 127.0.0.1 -t worker -a dbn
    worker = cluster.start(
        *("-ad", "127.0.0.1", "-t", "worker", "-a", "dbn"),
        env={"DL4J_ZOOKEEPER": cluster.zookeeper},
        program=[sys.executable, "-c", "from dl4jlegacy.cli.commands.legacy import main; main()"],
    )
    # VM Options: -Dhazelcast.interface=127.0.0.1
    interface = {"bind": "127.0.0.1", "cluster_name": cluster.cluster_name}
    # 1  ActorNetworkRunner runner = new ActorNetworkRunner("master",iter);
    runner = ActorNetworkRunner("master", iter, **where, **interface)
    # 2  Conf c = new Conf();
    # 6  c.setMultiLayerClazz(DBN.class);
    c = Conf(multi_layer_clazz=DBN, multi_layer_conf=deep_belief(), run="original", jobs_per_round=2, epochs=2)
    # 8  runner.setup(c);
    runner.setup(c)

    # 1  ZookeeperConfigurationRetriever retriever = new;
    # 2      ZookeeperConfigurationRetriever(host, 2181, "master");
    retriever = ZookeeperConfigurationRetriever(host, int(port), "master")
    # 3  Conf conf = retriever.retrieve();
    conf = retriever.retrieve()
    retriever.close()
    # 4  String address = conf.getMasterUrl();
    address = conf.state_tracker_connection_string
    assert (address, conf.multi_layer_clazz) == (cluster.hazelcast, "DBN")

    # h = Hazelcast.newHazelcastInstance(config);
    tracker = HazelcastStateTracker(
        address,
        cluster_name=cluster.cluster_name,
        run=conf.run,
        incarnation=conf.incarnation,
        secret=SECRET.encode(),
    )
    # workerEnabled = h.getMap(WORKER_ENABLED);
    seen = set[str]()

    # 9  runner.train();
    result = runner.train(lambda status: seen.update(each.state for each in tracker.workers()), deadline=120)
    assert result is not None
    assert (result.batches_lost, result.batches_duplicated, bool(seen)) == (0, 0, True)
    trained = params_sha256(runner.network(result).params)
    # 10 runner.shutdown();
    runner.shutdown()
    tracker.shutdown()
    assert worker.wait() == 0, worker.err()

    with ActorNetworkRunner("master", iter) as alone:
        alone.setup(c.replace(run="", workers=1))
        assert params_sha256(alone.network(alone.train(deadline=120)).params) == trained


def test_gradients_sharing_with_a_mesh(cluster: Cluster, iter: ListDataSetIterator) -> None:
    """The epochs of the page, each a run; two processes of workers stay for all of them."""
    num_epochs, model = 2, deep_belief().replace(pretrain=False)
    workers = [cluster.worker("--stay", "--workers", "2") for _ in range(2)]  # .workersPerNode(2), on two nodes
    # VoidConfiguration conf = VoidConfiguration.builder()
    #         .unicastPort(40123)
    #         .networkMask("10.0.0.0/16")
    #         .meshBuildMode(MeshBuildMode.MESH)
    #         .build();
    conf = VoidConfiguration(unicast_port=free_ports(1)[0], network_mask="127.0.0.0/16", mesh_build_mode="mesh")
    # TrainingMaster trainingMaster = new SharedTrainingMaster.Builder(conf)
    #         .updatesThreshold(1e-3)
    #         .build();
    training_master = Conf(
        void_configuration=conf,
        multi_layer_conf=model,
        router="gradient-sharing",
        router_args={"threshold": "fixed", "tau": 1e-3},
        jobs_per_round=4,
    )

    def train(where: dict[str, Any]) -> MultiLayerNetwork:
        spark_net = MultiLayerNetwork(model)
        spark_net.init()
        # for (int i = 0; i < numEpochs; i++) {
        for _ in range(num_epochs):
            # sparkNet.fit(trainingData);
            with ActorNetworkRunner("master", iter, first_model=spark_net, **where) as runner:
                runner.setup(training_master)
                spark_net = runner.network(runner.train(deadline=120))
        # }
        return spark_net

    spread = train(
        {
            "tracker": f"hazelcast://{cluster.hazelcast}",
            "zookeeper": cluster.zookeeper,
            "cluster_name": cluster.cluster_name,
        }
    )
    for worker in workers:
        worker.process.terminate()
        assert worker.wait() == 143, worker.err()
    assert params_sha256(spread.params) == params_sha256(train({"workers": 2}).params)
