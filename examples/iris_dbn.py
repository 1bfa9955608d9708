"""A small deep belief network on Fisher's irises, without any cluster: pretrain, finetune, evaluate, save, restore.

python examples/iris_dbn.py [MODEL.zip]
"""

import sys
import tempfile
from pathlib import Path

from dl4jlegacy import (
    DBN,
    RBM,
    AdaGrad,
    IrisDataSetIterator,
    ListDataSetIterator,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    NormalizerMinMaxScaler,
    OutputLayer,
    restore_multi_layer_network,
    write_model,
)


def main(path: Path) -> None:
    data = next(iter(IrisDataSetIterator(150)))
    train, test = data.split_test_and_train(0.8, seed=7)
    scaler = NormalizerMinMaxScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)

    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=42, updater=AdaGrad(learning_rate=0.1)),
        layers=(
            RBM(n_in=4, n_out=12, visible_unit="gaussian", hidden_unit="rectified", activation="relu"),
            RBM(n_out=8),
            OutputLayer(n_out=3, activation="softmax"),
        ),
        pretrain=True,
    )
    network = DBN(conf).init()
    iterator = ListDataSetIterator(train, 10)
    network.pretrain(iterator, epochs=20)
    network.finetune(iterator, epochs=100)
    print(network.evaluate(test, ["setosa", "versicolor", "virginica"]).stats())

    write_model(network, path, normalizer=scaler)
    restored = restore_multi_layer_network(path)
    same = bool((restored.output(test.features) == network.output(test.features)).all())
    print(f"saved to {path}; restored, it answers the same: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "iris.zip")
