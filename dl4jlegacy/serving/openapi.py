"""The OpenAPI document of the model server: its requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.serving.answers import JSON, NPY, Limits, accepted
from dl4jlegacy.version import __version__

__all__ = ["document"]

_REFUSED = {
    "400": "the body is malformed",
    "401": "the token is missing or wrong",
    "404": "there is no such model, or no such address",
    "408": "the body came too slowly",
    "413": "the body is too large, or has too many rows",
    "415": "the model takes no bodies of this type",
    "422": "the rows do not fit the model",
    "429": "too many requests wait for the model",
    "503": "the answer took too long, or the server ends",
}


def document(models: Mapping[str, TrainedModel], limits: Limits, *, has_token: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the models by name."""
    paths: dict[str, Any] = {
        "/health": {"get": _get("Whether the server runs.")},
        "/ready": {"get": _get("Whether it answers requests; 503 while it ends.", "503")},
        "/metrics": {"get": _metrics()},
        "/openapi.json": {"get": _get("This document.", "401")},
        "/v1/models": {"get": _get("The models.", "401")},
        "/v1/models/{name}": {
            "get": _get("What a model takes and answers, and whether its newest file is used.", "401", "404"),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"enum": sorted(models)}}],
        },
    }
    if len(models) == 1:
        [model] = models.values()
        paths["/predict"] = {"post": _post("the model", model, limits)}
    for name, model in models.items():
        paths[f"/v1/models/{name}/predict"] = {"post": _post(name, model, limits)}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Models served by dl4jlegacy", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }
    if has_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "status"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "status": {"type": "integer"},
            },
        }
    },
}


def _get(summary: str, *refused: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "As JSON.", "content": {JSON: {"schema": {"type": "object"}}}}}
    return {"summary": summary, "responses": answers | _refusals(*refused)}


def _metrics() -> dict[str, Any]:
    text = {"description": "In Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": "Figures for Prometheus.", "responses": {"200": text, **_refusals("401", "404")}}


def _post(name: str, model: TrainedModel, limits: Limits) -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": {"type": "string"}} for media in accepted(model)}
    if JSON in content:
        content[JSON] = {"schema": _rows(model)}
    most = f"{limits.rows:,} rows and {limits.body_bytes:,} bytes at most"
    return {
        "summary": f"Predict with {name}, as dl4j predict does: {most}.",
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "What dl4j predict --format json prints, with unknown_columns if some were left out; or "
                "the outputs, if .npy is asked for.",
                "content": {JSON: {"schema": {"type": "object"}}, NPY: {"schema": {"type": "string"}}},
            },
            **_refusals(*_REFUSED),
        },
    }


def _rows(model: TrainedModel) -> dict[str, Any]:
    n_in = model.network.n_in
    named = {"type": "object", "properties": {name: {} for name in model.reading.feature_columns}}
    if model.reading.kind.is_of_lines:
        row: dict[str, Any] = {"type": "string"}
    elif model.reading.transform is not None:
        row = named
    else:
        row = {"type": "array", "items": {"type": "number"}, "minItems": n_in, "maxItems": n_in}
        row = {"anyOf": [row, named]} if model.reading.header is not None else row
    rows = {"type": "array", "items": row, "minItems": 1}
    return {"type": "object", "required": ["rows"], "properties": {"rows": rows}, "additionalProperties": False}


def _refusals(*statuses: str) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _REFUSED[status], "content": content} for status in statuses}
