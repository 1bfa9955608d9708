"""examples/aws_cluster.py, against moto: from credentials to a model in S3 and an account with nothing of ours left."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dl4jlegacy import MultiLayerConfiguration, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.errors import CloudError, ConfError, NotEnoughWorkersError, TrainingError
from dl4jlegacy.storage.s3 import session
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws, Clock
from dl4jlegacy.storage.s3.uploader import S3Uploader
from tests.aws.test_cluster import registered
from tests.support.aws_failures import left_with_our_tag
from tests.support.aws_fixtures import FakeClock, Fault, FaultProxy, Request

OUT = "s3://models-of-mine/digits.zip"

pytestmark = pytest.mark.long


@pytest.fixture
def example(repository: Path, monkeypatch: pytest.MonkeyPatch, aws: Aws) -> ModuleType:
    """The script as a module; its waits take no time."""
    spec = importlib.util.spec_from_file_location("aws_cluster", repository / "examples" / "aws_cluster.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clock = FakeClock()
    monkeypatch.setattr(session, "Clock", lambda: Clock(now=clock.now, wait=clock.wait))
    return module


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    wheel = tmp_path / "dl4jlegacy-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return [OUT, "--allow", "203.0.113.7", "--wheel", str(wheel), "--yes"]


@pytest.fixture
def master_that_trains(aws: Aws, fault_proxy: FaultProxy, tmp_path: Path) -> Callable[[int], None]:
    """In place of an instance, which moto does not run: puts a model there when it is looked for the ``n``-th time."""
    layers = (OutputLayer(n_in=64, n_out=10, activation="softmax"),)
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers)).init()
    write_model(network, tmp_path / "model.zip")
    content, looks = (tmp_path / "model.zip").read_bytes(), []

    def trains(n: int) -> None:
        def judge(request: Request) -> None:
            if request.action == "HEAD s3" and request.path.endswith("/digits.zip"):
                looks.append(request)
                if len(looks) == n:
                    S3Uploader(aws).put(content, Location.parse(OUT))

        fault_proxy.judge = judge

    return trains


def test_a_model_is_in_s3_and_nothing_is_left(example, arguments, master_that_trains, aws, capsys) -> None:
    S3Uploader(aws).upload(Path(__file__), "digits.zip", "models-of-mine")  # what was there before is no new model
    master_that_trains(5)
    example.main([*arguments, "--spot", "--workers", "3"], list_workers=registered)
    said = capsys.readouterr().out
    assert re.search(r"together 0\.\d\d \$/h.*\nat most  0\.\d\d \$ in 1\.0 h", said)
    assert "3 workers have registered" in said
    assert "ended 10 things; nothing of cluster example is left" in said
    assert re.search(r"\d minutes, about 0\.\d\d \$", said)
    assert f"{OUT}: 650 parameters" in said
    assert "Accuracy:" in said
    assert left_with_our_tag(aws) == []


def test_without_a_yes_nothing_is_made(example, arguments, aws, fault_proxy, monkeypatch, capsys) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    fault_proxy.requests.clear()
    example.main(arguments[:-1], list_workers=registered)
    assert "at most" in capsys.readouterr().out
    assert not [r for r in fault_proxy.requests if not re.match(r"Describe|Get|List|GET|HEAD", r.action)]


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "InsufficientInstanceCapacity"])
def test_what_fails_on_the_way_leaves_nothing(code, example, arguments, aws, fault_proxy, capsys) -> None:
    calls = []

    def judge(request: Request) -> Fault | None:
        calls.extend([request] if request.action == "RunInstances" else [])
        return Fault("error", code) if request.action == "RunInstances" and len(calls) > 1 else None

    fault_proxy.judge = judge
    with pytest.raises(NotEnoughWorkersError):
        example.main(arguments, list_workers=registered)
    assert "nothing of cluster example is left" in capsys.readouterr().out
    assert left_with_our_tag(aws) == []


def test_a_master_that_ends_without_a_model_is_an_error_and_leaves_nothing(example, arguments, aws) -> None:
    def ready(setup, master) -> list[str]:
        ids = registered(setup, master)
        aws.client("ec2").terminate_instances(InstanceIds=[i.id for i in list_instances(aws) if i.role == "master"])
        return ids

    with pytest.raises(TrainingError, match="ended without a model; it said: its instance is gone"):
        example.main(arguments, list_workers=ready)
    assert left_with_our_tag(aws) == []


def test_a_training_that_takes_too_long_is_an_error_and_leaves_nothing(example, arguments, aws) -> None:
    with pytest.raises(
        CloudError, match=r"no model at s3://models-of-mine/digits\.zip after 0\.1 h; try a longer --ttl"
    ):
        example.main([*arguments, "--ttl", "5m"], list_workers=registered)
    assert left_with_our_tag(aws) == []


def test_a_cluster_of_that_name_is_left_alone(example, arguments, aws, image) -> None:
    tags = [{"Key": "dl4jlegacy:cluster", "Value": "example"}]
    kinds = [{"ResourceType": "instance", "Tags": tags}]
    aws.client("ec2").run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=kinds)
    with pytest.raises(ConfError, match="already, which this would end; give another --name"):
        example.main(arguments, list_workers=registered)
    assert [instance.alive for instance in list_instances(aws, "example")] == [True]
