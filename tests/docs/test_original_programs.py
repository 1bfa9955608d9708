"""The programs of the original's pages about distributed training, line by line: each line of Java above ours.

A line with a context of Spark, an RDD or a jar has no counterpart; all others have. The data are the first images of
MNIST. What runs over real servers is in ``tests/cluster/test_original_programs.py``.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy import (
    DBN,
    ActorNetworkRunner,
    Conf,
    ConvolutionLayer,
    DataSet,
    DataSetIterator,
    DenseLayer,
    Evaluation,
    InputType,
    ListDataSetIterator,
    MnistDataSetIterator,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    ParallelWrapper,
    ScoreIterationListener,
    SubsamplingLayer,
    VoidConfiguration,
)
from dl4jlegacy.datasets import ExportedDataSetIterator

pytestmark = pytest.mark.mnist
log = logging.getLogger(__name__)


@pytest.fixture(scope="module", autouse=True)
def data_dir(mnist_dir: str) -> str:
    return mnist_dir


def images(count: int, *, train: bool = True) -> DataSet:
    """Return the first images of MNIST."""
    return MnistDataSetIterator(count, count, train=train, shuffle=False).batch(0, 0)


@pytest.fixture(scope="module")
def mnist() -> DataSet:
    return images(640)


def small() -> MultiLayerConfiguration:
    """Return the network of a program that does not say which one it trains."""
    return (
        NeuralNetConfiguration.builder()
        .seed(123)
        .learning_rate(0.1)
        .list()
        .layer(0, DenseLayer(n_in=784, n_out=30, activation="relu"))
        .layer(1, OutputLayer(n_out=10))
        .build()
    )


# --- "Distributed training: gradients sharing" ------------------------------------------------------------------------


def test_gradients_sharing(mnist: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf, batch_size_per_worker, num_epochs = small(), 16, 3
    train_data: DataSetIterator = ListDataSetIterator(mnist, batch_size_per_worker, shuffle=False)
    caplog.set_level(logging.INFO, logger=log.name)

    # VoidConfiguration voidConfiguration = VoidConfiguration.builder()
    void_configuration = VoidConfiguration(
        # .unicastPort(40123)
        unicast_port=40123,
        # .build();
    )
    # TrainingMaster tm = new SharedTrainingMaster.Builder(voidConfiguration,batchSizePerWorker)
    tm = Conf(
        void_configuration=void_configuration,
        multi_layer_conf=conf,
        router="gradient-sharing",
        # .updatesThreshold(1e-3)
        router_args={"threshold": "fixed", "tau": 1e-3},
        # .rddTrainingApproach(RDDTrainingApproach.Exported)
        export_directory=str(tmp_path / "exported"),
        # .batchSizePerWorker(batchSizePerWorker)      the iterator's
        # .workersPerNode(4)
        workers=4,
        # .build();
    )
    # SparkDl4jMultiLayer sparkNet = new SparkDl4jMultiLayer(sc, conf, tm);
    net = MultiLayerNetwork(conf)
    net.init()
    before = net.evaluate(train_data).accuracy()
    # for (int i = 0; i < numEpochs; i++) {
    for i in range(num_epochs):
        # sparkNet.fit(trainData);
        with ActorNetworkRunner("master", train_data, first_model=net) as spark_net:
            spark_net.setup(tm)
            net = spark_net.network(spark_net.train())
        train_data = ExportedDataSetIterator.open(tm.export_directory)
        # log.info("Completed Epoch {}", i);
        log.info("Completed Epoch %d", i)
    # }
    assert [record.getMessage() for record in caplog.records] == [f"Completed Epoch {i}" for i in range(3)]
    assert net.evaluate(train_data).accuracy() > max(0.6, before + 0.3)


# --- "Deeplearning4j on Spark: Introduction/Getting Started" ----------------------------------------------------------


def test_gradient_sharing_is_the_preferred_implementation(mnist: DataSet) -> None:
    batch_size_per_worker, num_workers_per_node, num_epochs = 16, 2, 2
    training_data = ListDataSetIterator(mnist, batch_size_per_worker)

    # MultiLayerConfiguration model = ...;
    model = small()
    # VoidConfiguration conf = VoidConfiguration.builder()
    conf = VoidConfiguration(
        # .unicastPort(40123)             //Port that workers will use to communicate. Use any free port
        unicast_port=40123,
        # .networkMask("10.0.0.0/16")     //Network mask for communication. Examples 10.0.0.0/24, or 192.168.0.0/16 etc
        network_mask="10.0.0.0/16",
        # .controllerAddress("10.0.2.4")  //IP of the master/driver: workers find each other in Zookeeper
        # .meshBuildMode(MeshBuildMode.MESH)      // or MeshBuildMode.PLAIN for < 32 nodes; the training master's there
        mesh_build_mode="mesh",
        # .build();
    )
    # TrainingMaster trainingMaster = new SharedTrainingMaster.Builder(conf)
    training_master = Conf(
        void_configuration=conf,
        multi_layer_conf=model,
        router="gradient-sharing",
        # .batchSizePerWorker(batchSizePerWorker) //Batch size for training: the iterator's
        # .updatesThreshold(1e-3)                 //Update threshold for quantization/compression
        router_args={"threshold": "fixed", "tau": 1e-3},
        # .workersPerNode(numWorkersPerNode)      // equal to number of GPUs. For CPUs: use 1; use > 1 for many cores
        workers=num_workers_per_node,
        # .build();
    )
    # SparkDl4jMultiLayer sparkNet = new SparkDl4jMultiLayer(sc, model, trainingMaster);
    net = None
    # for (int i = 0; i < numEpochs; i++) {
    for _ in range(num_epochs):
        # sparkNet.fit(trainingData);
        with ActorNetworkRunner("master", training_data, first_model=net) as spark_net:
            spark_net.setup(training_master)
            net = spark_net.network(spark_net.train())
    # }
    assert net is not None and net.evaluate(training_data).accuracy() > 0.5


def test_parameter_averaging_of_single_examples() -> None:
    num_epochs = 2

    # MultiLayerConfiguration model = ...;
    model = small()
    # int examplesPerDataSetObject = 1;
    examples_per_data_set_object = 1
    training_data = ListDataSetIterator(images(160), examples_per_data_set_object)
    # TrainingMaster trainingMaster = new ParameterAveragingTrainingMaster.Builder(examplesPerDataSetObject)
    #         .(other configuration options)
    #         .build();
    training_master = Conf(multi_layer_conf=model, averaging_frequency=10, workers=2)
    # SparkDl4jMultiLayer sparkNetwork = new SparkDl4jMultiLayer(sc, model, trainingMaster);
    net = None
    # for (int i = 0; i < numEpochs; i++) {
    for _ in range(num_epochs):
        # sparkNet.fit(trainingData);
        with ActorNetworkRunner("master", training_data, first_model=net) as spark_network:
            spark_network.setup(training_master)
            net = spark_network.network(spark_network.train())
    # }
    assert net is not None and net.evaluate(training_data).accuracy() > 0.5


def test_a_single_machine_has_the_parallel_wrapper(mnist: DataSet) -> None:
    """What both pages say to take there; the lines are those of its own example with LeNet."""
    mnist_train, n_epochs = ListDataSetIterator(mnist, 32), 3
    model = MultiLayerNetwork(small())
    # model.init();
    model.init()
    # model.setListeners(new ScoreIterationListener(100));
    model.listeners = [ScoreIterationListener(100)]
    # ParallelWrapper wrapper = new ParallelWrapper.Builder(model)
    wrapper = ParallelWrapper(
        model,
        # .prefetchBuffer(24)
        prefetch_buffer=24,
        # .workers(2)
        workers=2,
        # .averagingFrequency(3)
        averaging_frequency=3,
        # .reportScoreAfterAveraging(true)
        report_score_after_averaging=True,
        # .build();
    )
    # for (int i = 0; i < nEpochs; i++) {
    for _ in range(n_epochs):
        # wrapper.fit(mnistTrain);
        wrapper.fit(mnist_train)
    # }
    # wrapper.shutdown();
    wrapper.shutdown()
    assert model.evaluate(mnist_train).accuracy() > 0.6


# --- "Running Deep Learning on Distributed GPUs With Spark" -----------------------------------------------------------


def test_lenet_on_distributed_workers(capsys: pytest.CaptureFixture[str]) -> None:
    few = {"train": 20, "test": 4}  # batches, of the 1,875 and the 313 that there are

    # int examplesPerDataSetObject = 32;
    examples_per_data_set_object = 32
    # DataSetIterator mnistTrain = new MnistDataSetIterator(32, true, 12345);
    mnist_train: DataSetIterator = MnistDataSetIterator(32, True, 12345)
    # DataSetIterator mnistTest = new MnistDataSetIterator(32, false, 12345);
    mnist_test: DataSetIterator = MnistDataSetIterator(32, False, 12345)
    # List<DataSet> trainData = new ArrayList<>();
    train_data: list[DataSet] = []
    # List<DataSet> testData = new ArrayList<>();
    test_data: list[DataSet] = []
    # while(mnistTrain.hasNext()) trainData.add(mnistTrain.next());
    while mnist_train.has_next() and len(train_data) < few["train"]:
        train_data.append(mnist_train.next())
    # Collections.shuffle(trainData,new Random(12345));
    random.Random(12345).shuffle(train_data)
    # while(mnistTest.hasNext()) testData.add(mnistTest.next());
    while mnist_test.has_next() and len(test_data) < few["test"]:
        test_data.append(mnist_test.next())
    # JavaRDD<DataSet> train = sc.parallelize(trainData);
    train = train_data
    # JavaRDD<DataSet> test = sc.parallelize(testData);
    test = test_data

    net = lenet(learning_rate=0.02)  # a rate of 0.1 leaves most units dead where rounds are so few

    # ParameterAveragingTrainingMaster tm = new ParameterAveragingTrainingMaster.Builder(examplesPerDataSetObject)
    tm = Conf(
        multi_layer_conf=net.conf,
        # .workerPrefetchNumBatches(0)
        prefetch_buffer=0,
        # .saveUpdater(true) //save things like adagrad squared gradient histories
        average_updater_state=True,
        # .averagingFrequency(5) //Do 5 minibatch fit operations per worker, then average and redistribute parameters
        averaging_frequency=5,
        # .batchSizePerWorker(examplesPerDataSetObject) //Number of examples that each worker uses per fit operation
        batch_size=examples_per_data_set_object,
        # .build();
        workers=2,  # sparkConf.setMaster("local[*]");
    )
    # SparkDl4jMultiLayer sparkNetwork = new SparkDl4jMultiLayer(sc, net, tm);
    # int nEpochs = 5;
    n_epochs = 5
    accuracies = []
    # for( int i = 0; i < nEpochs; i++ ){
    for i in range(n_epochs):
        # sparkNetwork.fit(train);
        with ActorNetworkRunner("master", train, first_model=net) as spark_network:
            spark_network.setup(tm)
            net = spark_network.network(spark_network.train())
        # System.out.println("----- Epoch " + i + " complete -----");
        print(f"----- Epoch {i} complete -----")
        # Evaluation evaluation = sparkNetwork.evaluate(test);
        evaluation: Evaluation = net.evaluate(test)
        # System.out.println(evaluation.stats());
        print(evaluation.stats())
        accuracies.append(evaluation.accuracy())
    # }
    said = capsys.readouterr().out
    assert said.count(" complete -----") == said.count("Accuracy:") == n_epochs
    assert accuracies[-1] > 0.6, accuracies


def lenet(learning_rate: float = 0.1) -> MultiLayerNetwork:
    """Return the page's network, which "can also be defined via YAML or JSON"; its rate is 0.1 there."""
    # int nChannels = 1;
    n_channels = 1
    # int outputNum = 10;
    output_num = 10
    # int iterations = 1;
    iterations = 1
    # int seed = 123;
    seed = 123
    # MultiLayerConfiguration.Builder builder = new NeuralNetConfiguration.Builder()
    builder = (
        NeuralNetConfiguration.builder()
        # .seed(seed)
        .seed(seed)
        # .iterations(iterations)
        .iterations(iterations)
        # .regularization(true).l2(0.0005)
        .regularization(True)
        .l2(0.0005)
        # .learningRate(0.1)
        .learning_rate(learning_rate)
        # .optimizationAlgo(OptimizationAlgorithm.STOCHASTIC_GRADIENT_DESCENT)
        .optimization_algo("STOCHASTIC_GRADIENT_DESCENT")
        # .updater(Updater.ADAGRAD)
        .updater("adagrad")
        # .list()
        .list()
        # .layer(0, new ConvolutionLayer.Builder(5, 5)
        .layer(
            0,
            ConvolutionLayer(
                kernel_size=(5, 5),
                # .nIn(nChannels)
                n_in=n_channels,
                # .stride(1, 1)
                stride=(1, 1),
                # .nOut(20)
                n_out=20,
                # .weightInit(WeightInit.XAVIER)
                weight_init="xavier",
                # .activation("relu")
                activation="relu",
                # .build())
            ),
        )
        # .layer(1, new SubsamplingLayer.Builder(SubsamplingLayer.PoolingType.MAX)
        #         .kernelSize(2, 2)
        #         .build())
        .layer(1, SubsamplingLayer(pooling_type="max", kernel_size=(2, 2)))
        # .layer(2, new ConvolutionLayer.Builder(5, 5)
        #         .nIn(20)
        #         .nOut(50)
        #         .stride(2,2)
        #         .weightInit(WeightInit.XAVIER)
        #         .activation("relu")
        #         .build())
        .layer(
            2,
            ConvolutionLayer(
                kernel_size=(5, 5), n_in=20, n_out=50, stride=(2, 2), weight_init="xavier", activation="relu"
            ),
        )
        # .layer(3, new SubsamplingLayer.Builder(SubsamplingLayer.PoolingType.MAX)
        #         .kernelSize(2, 2)
        #         .build())
        .layer(3, SubsamplingLayer(pooling_type="max", kernel_size=(2, 2)))
        # .layer(4, new DenseLayer.Builder().activation("relu")
        #         .weightInit(WeightInit.XAVIER)
        #         .nOut(200).build())
        .layer(4, DenseLayer(activation="relu", weight_init="xavier", n_out=200))
        # .layer(5, new OutputLayer.Builder(LossFunctions.LossFunction.NEGATIVELOGLIKELIHOOD)
        #         .nOut(outputNum)
        #         .weightInit(WeightInit.XAVIER)
        #         .activation("softmax")
        #         .build())
        .layer(
            5,
            OutputLayer(loss="negativeloglikelihood", n_out=output_num, weight_init="xavier", activation="softmax"),
        )
        # .backprop(true).pretrain(false);
        .backprop(True)
        .pretrain(False)
    )
    # new ConvolutionLayerSetup(builder,28,28,1);
    builder.set_input_type(InputType.convolutional_flat(28, 28, 1))
    # MultiLayerConfiguration conf = builder.build();
    conf: MultiLayerConfiguration = builder.build()
    # MultiLayerNetwork net = new MultiLayerNetwork(conf);
    net = MultiLayerNetwork(conf)
    # net.init();
    net.init()
    assert (
        MultiLayerConfiguration.from_yaml(conf.to_yaml()) == conf == MultiLayerConfiguration.from_json(conf.to_json())
    )
    return net


# --- "An Introduction to Distributed Training of Neural Networks" -----------------------------------------------------


def test_averaging_after_each_batch_is_training_on_a_single_machine(mnist: DataSet) -> None:
    """The page's proof: no updater, n workers of m examples each, averaged after each batch: n * m on one machine."""
    n, m, alpha = 4, 16, 0.1
    conf = small()

    # 1. Initialize the network parameters randomly based on the model configuration
    w = MultiLayerNetwork(conf)
    w.init()
    for batch in range(3):
        # 2. Distribute a copy of the current parameters to each worker
        workers = [w.clone() for _ in range(n)]
        # 3. Train each worker on a subset of the data
        for number, worker in enumerate(workers):
            worker.fit(mnist.rows((batch * n + number) * m, (batch * n + number + 1) * m))
        # 4. Set the global parameters to the average the parameters from each worker
        w.set_params(np.mean([worker.params for worker in workers], axis=0))
        # 5. While there is more data to process, go to step 2
    alone = MultiLayerNetwork(conf)
    alone.init()
    for batch in range(3):
        alone.fit(mnist.rows(batch * n * m, (batch + 1) * n * m))
    np.testing.assert_allclose(w.params, alone.params, atol=alpha * 1e-5)

    data = ListDataSetIterator(mnist.rows(0, 3 * n * m), m, shuffle=False)
    with ActorNetworkRunner("master", data) as runner:  # the five steps, as a run does them
        runner.setup(Conf(multi_layer_conf=conf, workers=2, jobs_per_round=n))
        np.testing.assert_allclose(runner.network(runner.train()).params, w.params, atol=alpha * 1e-5)


# --- "Distributed DL4J" -----------------------------------------------------------------------------------------------


def test_a_master_of_ones_own(mnist: DataSet) -> None:
    """With all settings that the page leaves out: ``...``."""
    number_of_inputs, number_of_outputs = 784, 10
    iter = ListDataSetIterator(mnist, 16)  # the page's name

    # 1  ActorNetworkRunner runner = new ActorNetworkRunner("master",iter);
    runner = ActorNetworkRunner("master", iter)
    # 2  Conf c = new Conf();   frozen here: what is set below is given where it is made
    # 3  NeuralNetConfiguration neuralNetConf = new NeuralNetConfiguration.Builder()
    neural_net_conf = (
        NeuralNetConfiguration.builder()
        # 4      .nIn(NUMBER_OF_INPUTS).nOut(NUMBER_OF_OUTPUTS).build();
        .n_in(number_of_inputs)
        .n_out(number_of_outputs)
        # 5  ...
        .learning_rate(0.1)
        .use_ada_grad(True)
        .list(2)
        .hidden_layer_sizes(50)
        .pretrain(True)
        .build()
    )
    # 6  c.setMultiLayerClazz(DBN.class);
    c = Conf(multi_layer_clazz=DBN, multi_layer_conf=neural_net_conf, epochs=2)
    # 7  ...
    # 8  runner.setup(c);
    runner.setup(c)
    # 9  runner.train();
    result = runner.train()
    accuracy = runner.network(result).evaluate(iter).accuracy()
    # 10 runner.shutdown();
    runner.shutdown()
    assert accuracy > 0.6
