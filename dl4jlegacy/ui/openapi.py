"""The OpenAPI document of the dashboard's interface, generated from its endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dl4jlegacy.ui.endpoints import Endpoint, Panel, Parameter, Values, json_response
from dl4jlegacy.version import __version__

__all__ = ["document", "endpoint_of"]

_ERROR = "Error"
_COMMON = {
    400: "a parameter that does not exist, or has no such value",
    401: "the token of this dashboard is demanded",
    421: "the server is called by a name that is not its own",
}
_DESCRIPTION = (
    "What is known of a run of dl4jlegacy, read from its history and its tracker. Everything is answered from the last "
    "look at the run; `read_at` says when that was, and `away` why there was none since. What changes the run needs "
    "'Authorization: Bearer' with the dashboard's token, and so does everything where the run has a secret."
)


def endpoint_of(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that serves the document of these endpoints and itself."""

    async def answer(panel: Panel, values: Values) -> Any:
        return json_response(document([*endpoints, own]))

    own = Endpoint(
        method="GET",
        path="/api/v1/openapi.json",
        handler=answer,
        summary="This document.",
        shape={"openapi": str, "paths": dict[str, Any]},
    )
    return own


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document, as JSON."""
    shapes = [shape for endpoint in endpoints for shape in _types(endpoint.shape)]
    schemas, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    found = iter(schemas)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        own = [next(found) for _ in _types(endpoint.shape)]
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, _schema(endpoint.shape, own)
        )
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            }
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "dl4j dashboard", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {**components, _ERROR: error},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _types(shape: Any) -> list[Any]:
    if shape is None:
        return []
    return list(shape.values()) if isinstance(shape, Mapping) else [shape]


def _schema(shape: Any, schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if shape is None:
        return {"type": "string"}
    if not isinstance(shape, Mapping):
        return schemas[0]
    properties = dict(zip(shape, schemas, strict=True))
    return {"type": "object", "required": list(properties), "properties": properties}


def _operation(endpoint: Endpoint, schema: dict[str, Any]) -> dict[str, Any]:
    changes = endpoint.method != "GET"
    answers = {**_COMMON, **endpoint.answers}
    responses = {
        str(status): {
            "description": text,
            "content": {
                endpoint.media if status == 200 else "application/json": {
                    "schema": schema if status == 200 else {"$ref": f"#/components/schemas/{_ERROR}"}
                }
            },
        }
        for status, text in sorted(answers.items())
    }
    name = endpoint.path.strip("/").replace("/", "-").replace("{", "").replace("}", "").replace(".", "-")
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}-{name}",
        "summary": endpoint.summary,
        "parameters": [_parameter(each) for each in endpoint.parameters],
        "responses": responses,
    }
    if changes:
        operation["security"] = [{"bearer": []}]
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.kind == "integer":
        schema |= {"minimum": parameter.least, "maximum": parameter.most}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.text,
        "schema": schema,
    }
