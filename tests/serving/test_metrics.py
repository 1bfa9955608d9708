"""What a model server tells Prometheus: what the page says, of what was asked of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dl4jlegacy import MultiLayerNetwork, write_model
from dl4jlegacy.nn.zoo import mlp
from dl4jlegacy.observing.serving import SERVING_METRICS
from tests.serving.test_serving import CSV, post, serving
from tests.support import REPOSITORY
from tests.support.cluster_commands import until

Values = dict[str, dict[tuple[str, ...], float]]


def page() -> list[tuple[str, str, str, str]]:
    """The rows of the page's table: name, kind, labels, and what it is."""
    text = (REPOSITORY / "docs" / "prometheus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(dl4j_serve_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", text, flags=re.MULTILINE)
    return [(name, kind, labels.replace("`", "").replace(" ", ""), what) for name, kind, labels, what in rows]


def values(client: httpx.Client) -> Values:
    response = client.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    found: Values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(MultiLayerNetwork(mlp(4, 3)), tmp_path / "plain.zip")
    return tmp_path / "plain.zip"


def test_the_page_has_what_is_served(model: Path) -> None:
    assert page() == [(one.name, one.kind, one.label, one.text) for one in SERVING_METRICS]
    with serving(model) as client:
        assert post(client).status_code == 200
        families = {f.name: f for f in text_string_to_metric_families(client.get("/metrics").text)}
    own = {n: family for n, family in families.items() if n.startswith("dl4j_") and not n.endswith("_created")}
    names = {one.name.removesuffix("_total"): one for one in SERVING_METRICS}
    assert own.keys() == names.keys() and "process_open_fds" in families
    for name, family in own.items():
        assert family.type == names[name].kind and family.documentation == names[name].text
        labels = set(names[name].label.split(","))
        assert all(set(sample.labels) - {"le"} == labels for sample in family.samples), name


def test_the_figures_are_those_of_what_was_asked(model: Path) -> None:
    with serving(model, every=0.02) as client:
        for _ in range(3):
            assert post(client).status_code == 200
        assert client.post("/predict", content=b"1,2,3,4\n" * 5, headers=CSV).status_code == 200
        assert client.post("/predict", content=b"1,2,x,4", headers=CSV).status_code == 422
        assert client.post("/v1/models/gone/predict", content=b"1", headers=CSV).status_code == 404
        model.write_bytes(b"no model")
        until(lambda: client.get("/v1/models/plain").json()["problem"])
        write_model(MultiLayerNetwork(mlp(4, 3)), model)
        until(lambda: client.get("/v1/models/plain").json()["version"] == 2)
        found = values(client)
    assert found["dl4j_serve_requests_total"] == {("plain", "200"): 4, ("plain", "422"): 1}
    assert found["dl4j_serve_request_seconds_count"] == {("plain",): 5}
    assert found["dl4j_serve_request_seconds_sum"]["plain",] > found["dl4j_serve_compute_seconds_sum"]["plain",] > 0
    assert found["dl4j_serve_batch_rows_sum"] == {("plain",): 8}
    assert found["dl4j_serve_batch_rows_count"] == found["dl4j_serve_batch_requests_total"] == {("plain",): 4}
    assert found["dl4j_serve_pending_requests"] == found["dl4j_serve_queued_requests"] == {("plain",): 0}
    assert found["dl4j_serve_model_version"] == {("plain",): 2}
    assert found["dl4j_serve_reloads_total"]["plain", "done"] == 1
    assert found["dl4j_serve_reloads_total"]["plain", "failed"] >= 1


def test_they_are_for_who_has_the_token(model: Path) -> None:
    with serving(model, token="a" * 20) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"authorization": f"Bearer {'a' * 20}"}).status_code == 200


def test_without_the_library_the_rest_is_served(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with serving(model) as client:
        assert post(client).status_code == 200
        refused: Any = client.get("/metrics")
        assert refused.status_code == 404 and "metrics need prometheus-client" in refused.json()["error"]["message"]
