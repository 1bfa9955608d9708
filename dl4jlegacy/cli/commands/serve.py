"""``dl4j serve``: serves trained models over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dl4jlegacy.cli.options.read import Format, number_option, option
from dl4jlegacy.cli.options.values import not_empty, one_of, rate, seconds
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import ConfError, how_to_install

__all__ = ["add_commands", "serve"]


def _mode(label: str, text: str) -> str:
    return one_of(label, text, ("batched", "sequential"))


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(serve)


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Saved models, or folders of checkpoints; NAME=MODEL gives it a name."),
    ],
    host: Annotated[
        str,
        option("--host", metavar="HOST", help="Where to listen; beyond loopback a token is needed.", read=not_empty),
    ] = "127.0.0.1",
    port: Annotated[int, number_option("--port", metavar="PORT", help="0: any that is free (8000).", least=0)] = 8000,
    token_file: Annotated[
        str | None,
        option("--token-file", metavar="FILE", help="The token that requests must bring.", read=not_empty),
    ] = None,
    max_body: Annotated[int, number_option("--max-body", help="Bytes of a body (16777216).", least=1)] = 16 << 20,
    max_rows: Annotated[int, number_option("--max-rows", help="Rows of a request (10000).", least=1)] = 10_000,
    max_queue: Annotated[int, number_option("--max-queue", help="Requests to a model at a time (64).", least=1)] = 64,
    max_connections: Annotated[
        int, number_option("--max-connections", help="Open at a time (10000).", least=1)
    ] = 10_000,
    workers: Annotated[int, number_option("--workers", help="Threads of a model, each with a copy (1).", least=1)] = 1,
    inference_mode: Annotated[
        str,
        option(
            "--inference-mode",
            metavar="MODE",
            help="batched: requests that wait are computed together; or sequential (batched).",
            read=_mode,
        ),
    ] = "batched",
    batch_limit: Annotated[int, number_option("--batch-limit", help="Rows computed together (32).", least=1)] = 32,
    batch_delay: Annotated[
        float,
        option("--batch-delay", metavar="SECONDS", help="How long a request waits for others (0).", read=rate),
    ] = 0.0,
    timeout: Annotated[
        float, option("--timeout", metavar="SECONDS", help="Until the answer to a request (30).", read=seconds)
    ] = 30.0,
    body_timeout: Annotated[
        float, option("--body-timeout", metavar="SECONDS", help="For a client to send its body (10).", read=seconds)
    ] = 10.0,
    reload_every: Annotated[
        float, option("--reload-every", metavar="SECONDS", help="How often a change is looked for (1).", read=seconds)
    ] = 1.0,
    format: Format = "text",
) -> None:
    """Answer requests with trained models, as dl4j predict does, until Ctrl-C, which lets those under way end.

    A model whose file changes is replaced without a request lost.
    """
    _check_installed()
    from dl4jlegacy.models.queue import Batching
    from dl4jlegacy.serving.answers import Limits
    from dl4jlegacy.serving.models import ServedModel, named_paths
    from dl4jlegacy.serving.server import ModelServer, token_for
    from dl4jlegacy.serving.service import Service
    from dl4jlegacy.system.listening import bind

    token = token_for(host, os.environ, None if token_file is None else Path(token_file))
    limits = Limits(body_bytes=max_body, rows=max_rows, seconds=timeout, body_seconds=body_timeout, queue=max_queue)
    batching = Batching(
        mode="sequential" if inference_mode == "sequential" else "batched",
        batch_limit=batch_limit,
        batch_delay=batch_delay,
        queue_limit=max_queue,
        workers=workers,
    )
    paths = named_paths(models)
    with bind(host, port, "the models") as listening:
        service = Service({name: ServedModel(name, path, batching) for name, path in paths.items()}, limits, token)
        server = ModelServer(
            service, listening, reload_seconds=reload_every, drain_seconds=timeout, connections=max_connections
        )
        with server:
            where = f"{server.url}/predict" if len(paths) == 1 else f"{server.url}/v1/models/NAME/predict"
            text = f"{', '.join(paths)}: POST {where} (Ctrl-C ends this)"
            Answer({"url": server.url, "models": list(paths)}, text).print(as_json=format == "json")
            server.wait()


def _check_installed() -> None:
    """Raise ``ConfError`` if the server's libraries are not installed."""
    try:
        import dl4jlegacy.serving.server  # noqa: F401  # to see whether it can be
    except ModuleNotFoundError as exc:
        raise ConfError(f"dl4j serve needs {exc.name}: {how_to_install('serve')}") from exc
