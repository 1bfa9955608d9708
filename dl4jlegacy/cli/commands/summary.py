"""``dl4j summary``: the layers and sizes of a network, as numbers and as a drawing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import MODELS, number_option, option
from dl4jlegacy.cli.options.values import text_or_json
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import ConfError, ModelError, OutputError, nearest
from dl4jlegacy.system import files

if TYPE_CHECKING:
    from dl4jlegacy.nn.networks import NetworkConfiguration

__all__ = ["add_commands", "configuration_of"]

_TEXTS = (".json", ".yaml", ".yml")
_OF_TEXTS = ("char-lstm", "word-lstm")
_MNIST = (784, 10)  # features and classes, known without reading the data


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(summary)


def summary(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"A saved model, a configuration file, or a model of the zoo: {MODELS}."),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help="The data set that gives a model of the zoo its sizes (mnist; of texts sonnets).",
        ),
    ] = "",
    batch_size: Annotated[
        int, number_option("--batch-size", help="Examples in the batch whose memory is counted (128).", least=1)
    ] = 128,
    svg: Annotated[str | None, typer.Option("--svg", metavar="FILE", help="Also draw the network to FILE.")] = None,
    format: Annotated[
        str, option("--format", metavar="text|json", help="As text, or as JSON.", read=text_or_json)
    ] = "text",
) -> Answer:
    """Print a network's layers, shapes, parameters, memory and multiply-adds."""
    from dl4jlegacy.nn.summary import summarize
    from dl4jlegacy.ui.network_svg import network_svg

    found = summarize(configuration_of(model, dataset))
    if svg is not None:
        _write(svg, network_svg(found, Path(model).name))
    return Answer({"model": model, **found.to_dict(batch_size), "svg": svg}, found.text(batch_size))


def configuration_of(model: str, dataset: str = "") -> NetworkConfiguration:
    """Return the configuration of a saved model, of a JSON or YAML file, or of a zoo model.

    Raises:
        ModelError: there is no such file and no such model; or the file cannot be read.
        ConfError: the configuration is invalid.
    """
    from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model
    from dl4jlegacy.nn.zoo import ZOO

    with files.errors_as(ModelError, f"{model} cannot be read"):
        path = files.expand(model)
        kind = files.kind_of(path)
    if kind == "file":
        return _read(path) if path.suffix in _TEXTS else restore_model(path, load_updater=False).conf
    if kind == "folder":
        raise ModelError(f"{model} is a folder; give a saved model, a configuration file, or a model of the zoo")
    if model not in ZOO:
        raise ModelError(f"{model} is neither a file nor a model of the zoo{nearest(model, list(ZOO))}")
    n_in, n_out = _sizes(model, dataset or ("sonnets" if model in _OF_TEXTS else "mnist"))
    return ZOO[model].build(n_in, n_out)


def _sizes(model: str, dataset: str) -> tuple[int, int]:
    from dl4jlegacy.datasets import load
    from dl4jlegacy.datasets.reading import Reading
    from dl4jlegacy.datasets.text.texts import TextReader
    from dl4jlegacy.models.model import source_for_model
    from dl4jlegacy.nn.zoo import ZOO

    if dataset == "mnist":
        return (_MNIST[0], _MNIST[0]) if ZOO[model].reconstructs else _MNIST
    reading = Reading(text=TextReader(tokens="words") if model == "word-lstm" else None)
    train = source_for_model(load(dataset, reading=reading), model).train
    return train.n_in, train.n_out


def _read(path: Path) -> NetworkConfiguration:
    """Return the network in a file that holds a ``Conf``, or the network's configuration itself."""
    from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
    from dl4jlegacy.scaleout.conf import Conf

    try:
        text = files.read(path).decode()
        kinds: tuple[Any, Any] = (ComputationGraphConfiguration, MultiLayerConfiguration)
        for kind, key in zip(kinds, ("network_inputs", "layers"), strict=True):
            if _has(text, key):
                found: NetworkConfiguration = kind.from_json(text) if path.suffix == ".json" else kind.from_yaml(text)
                return found
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfError(f"{path} cannot be read: {exc}") from exc
    except ConfError as exc:
        raise ConfError(f"{path}: {exc}") from exc
    conf = Conf.read(path)
    if conf.network_conf is None:
        raise ConfError(f"{path} holds no network: neither multi_layer_conf nor computation_graph_conf nor layers")
    return conf.network_conf


def _has(text: str, key: str) -> bool:
    """Return whether a JSON or YAML text has ``key`` at its top level; other texts have no keys."""
    from dl4jlegacy.nn.conf.text import top_level_keys

    return key in top_level_keys(text)


def _write(path: str, text: str) -> None:
    with files.errors_as(OutputError, f"the drawing cannot be written to {path}", "choose another --svg"):
        files.write(files.expand(path), text.encode())
