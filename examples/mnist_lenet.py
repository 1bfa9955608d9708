"""LeNet on MNIST by parameter averaging: DL4J's example of distributed training, after its configuration there.

    python examples/mnist_lenet.py [--examples N] [--workers N] [--epochs N]

Four workers average their parameters and AdaGrad's state every five batches of 32. MNIST is looked for in
$DL4J_DATA_DIR and ~/.deeplearning4j, else downloaded; five epochs of all of it reach 0.99 on the test images.
"""

import argparse

from dl4jlegacy import (
    ActorNetworkRunner,
    Conf,
    ConvolutionLayer,
    DenseLayer,
    InputType,
    MnistDataSetIterator,
    NeuralNetConfiguration,
    OutputLayer,
    SubsamplingLayer,
)
from dl4jlegacy.nn import AdaGrad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("--examples", 60000), ("--workers", 4), ("--epochs", 5)):
        parser.add_argument(flag, type=int, default=default)
    args = parser.parse_args()
    network = (
        NeuralNetConfiguration.builder()
        .seed(123)
        .updater(AdaGrad(learning_rate=0.1, epsilon=0.1))
        .regularization(True)
        .l2(5e-4)
        .list()
        .layer(0, ConvolutionLayer(kernel_size=(5, 5), stride=(1, 1), n_out=20, activation="relu"))
        .layer(1, SubsamplingLayer(pooling_type="max", kernel_size=(2, 2)))
        .layer(2, ConvolutionLayer(kernel_size=(5, 5), stride=(2, 2), n_out=50, activation="relu"))
        .layer(3, SubsamplingLayer(pooling_type="max", kernel_size=(2, 2)))
        .layer(4, DenseLayer(n_out=200, activation="relu"))
        .layer(5, OutputLayer(n_out=10, activation="softmax", loss="negativeloglikelihood"))
        .set_input_type(InputType.convolutional_flat(28, 28, 1))
        .build()
    )
    size = {"batch_size": 32, "averaging_frequency": 5}
    conf = Conf(multi_layer_conf=network, workers=args.workers, epochs=args.epochs, **size)

    with ActorNetworkRunner("master", MnistDataSetIterator(32, args.examples)) as runner:
        runner.setup(conf)
        result = runner.train()
        print(runner.network(result).evaluate(MnistDataSetIterator(500, train=False)).stats())
    print(f"{result.head.examples} examples in {result.seconds:.1f} s, {result.batches_lost} batches lost")


if __name__ == "__main__":
    main()
