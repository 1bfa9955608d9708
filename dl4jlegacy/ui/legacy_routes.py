"""``/statetracker``: the eleven routes of the original's REST resource, answered for a present-day run.

Legacy: ``StateTrackerDropWizardResource`` on port 8080 of the master, without any authentication. ``model.ser`` was
Java's serialization, which executes code of the file's author, and ``PUT /save`` answered 200 with an exception's
message.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.ui.api import save_model
from dl4jlegacy.ui.endpoints import Endpoint, Panel, Parameter, Refused, Values, json_response
from dl4jlegacy.ui.run_models import network_of
from dl4jlegacy.ui.view import Reading, RunView, View

__all__ = ["ENDPOINTS"]


def _known(panel: Panel) -> tuple[View, RunView]:
    view = panel.watcher.view
    if view.run is None:
        raise Refused(409, "nothing is known of the run yet; /api/v1/run says why")
    return view, view.run


async def _minibatch(panel: Panel, values: Values) -> Response:
    return json_response({"minibatch": _known(panel)[1].conf.get("batch_size")})


async def _set_minibatch(panel: Panel, values: Values) -> Response:
    raise Refused(
        409,
        f"the mini batch stays: a run is planned once, from its Conf, and every batch of it counts exactly once, in "
        f"an order that follows from the plan, whoever computes it; {values['num']} examples in a batch would make "
        f"another plan: begin another run with --batch-size {values['num']}",
    )


async def _batches(panel: Panel, values: Values) -> Response:
    return json_response({"numbatches": _known(panel)[1].batches})


async def _jobs(panel: Panel, values: Values) -> Response:
    view, _ = _known(panel)
    return json_response(sorted({job.worker for job in view.jobs if job.state == "leased" and job.worker}))


async def _phase(panel: Panel, values: Values) -> Response:
    return json_response({"phase": _known(panel)[1].phase or "finetune"})


async def _workers(panel: Panel, values: Values) -> Response:
    return json_response([worker.id for worker in _known(panel)[0].workers if not worker.gone])


async def _count_workers(panel: Panel, values: Values) -> Response:
    return json_response(sum(not worker.gone for worker in _known(panel)[0].workers))


async def _count_updates(panel: Panel, values: Values) -> Response:
    return json_response(sum(job.state == "done" for job in _known(panel)[0].jobs))


async def _print_model(panel: Panel, values: Values) -> Response:
    reading = panel.watcher.reading
    text = None if reading is None else await run_in_threadpool(lambda: _model_text(reading))
    if text is None:
        raise Refused(409, "this run's jobs train no network, or nothing is known of it yet")
    return json_response({"model": text})


def _model_text(reading: Reading) -> str | None:
    try:
        network = network_of(reading.conf)
        return None if network is None else summarize(network).text(reading.run.conf.get("batch_size") or 1)
    except ConfError as exc:
        raise Refused(409, f"the network's configuration cannot be read: {exc}", exc.code) from exc


async def _model_ser(panel: Panel, values: Values) -> Response:
    folder = _known(panel)[1].conf.get("checkpoint_dir") or "DIR"
    raise Refused(
        410,
        "there is no Java serialization any more: reading it runs code of whoever wrote it. The model is a file of "
        f"arrays and JSON: `dl4j export {folder} --out model.zip`, or PUT /statetracker/save, writes it, and "
        "Deeplearning4j reads it with ModelSerializer.restoreMultiLayerNetwork",
    )


async def _save(panel: Panel, values: Values) -> Response:
    _known(panel)
    said = await save_model(panel)
    return json_response({"status": "saved", "message": said})


_EARLY = {200: "as it is", 409: "nothing is known of the run yet"}
_NUMBER = Parameter(name="num", text="Examples of a batch.", kind="integer", place="path", least=1, most=2**31 - 1)

_ROUTES: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/minibatch", handler=_minibatch, summary="Examples of a batch.", shape={"minibatch": int}
    ),
    Endpoint(
        method="POST",
        path="/minibatch/{num}",
        handler=_set_minibatch,
        summary="Why a plan is fixed.",
        parameters=(_NUMBER,),
        answers={409: "always: why"},
    ),
    Endpoint(
        method="GET",
        path="/numbatchessofar",
        handler=_batches,
        summary="Batches in the model.",
        shape={"numbatches": int},
    ),
    Endpoint(method="GET", path="/jobs", handler=_jobs, summary="The workers that have a job.", shape=list[str]),
    Endpoint(
        method="GET", path="/phase", handler=_phase, summary="pretrain, finetune or validate.", shape={"phase": str}
    ),
    Endpoint(method="GET", path="/workers", handler=_workers, summary="The workers that live.", shape=list[str]),
    Endpoint(method="GET", path="/workers/num", handler=_count_workers, summary="How many live.", shape=int),
    Endpoint(
        method="GET",
        path="/updates/num",
        handler=_count_updates,
        summary="Updates of this round that are there.",
        shape=int,
    ),
    Endpoint(
        method="GET",
        path="/printmodel",
        handler=_print_model,
        summary="The network as a table.",
        shape={"model": str},
    ),
    Endpoint(
        method="GET",
        path="/model.ser",
        handler=_model_ser,
        summary="What a model is now.",
        answers={410: "always: what takes its place"},
    ),
    Endpoint(
        method="PUT",
        path="/save",
        handler=_save,
        summary="Save the newest model that the run keeps, as POST /api/v1/save.",
        answers={200: "saved", 409: "not possible: why"},
        shape={"status": str, "message": str},
    ),
)

ENDPOINTS = tuple(
    replace(
        each,
        path=f"/statetracker{each.path}",
        answers=_EARLY if set(each.answers) == {200} else {409: "nothing is known of the run yet", **each.answers},
    )
    for each in _ROUTES
)
"""The routes, in the order of the original's documentation."""
