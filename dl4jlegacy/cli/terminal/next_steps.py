"""Suggested next steps: lines with ready-to-paste commands that a command prints on stderr after its result.

Pure functions; the lines are shown with ``--format text`` only.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dl4jlegacy.errors import counted

if TYPE_CHECKING:
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.services.servers import ServicesState
    from dl4jlegacy.training.prepare import Report

__all__ = ["RunLocation", "after_services_up", "after_training", "command", "worker_command"]

_MODEL_FILE = "model.zip"
_FIFTH = 0.01  # largest distance from a fifth at which a part of the examples is called a fifth


def command(*words: str) -> str:
    """Return a command line of ``dl4j`` for a shell, with the path of this process if it is not on PATH."""
    called = sys.argv[0]
    by_path = Path(called).name == "dl4j" and shutil.which("dl4j") is None
    return " ".join((shlex.quote(str(Path(called).resolve())) if by_path else "dl4j", *words))


def worker_command(address: ClusterAddress) -> str:
    """Return the command that starts a worker for the run at ``address``."""
    return command("worker", address.flags())


@dataclass(frozen=True, slots=True)
class RunLocation:
    """Where other commands find a run.

    Attributes:
        checkpoints: the run's checkpoint folder, here or in S3; "": it has none.
        name: the name or id by which the run can be resumed on its cluster.
        address: where the run is registered; None: it is not on a cluster.
        data_dir: the folder of the MNIST files; "": the usual one.
    """

    checkpoints: str = ""
    name: str = ""
    address: ClusterAddress | None = None
    data_dir: str = ""

    def resume_command(self) -> str:
        """Return the command that continues the run; "" if nothing of the run was saved."""
        if self.address is not None:
            return command("resume", self.name, self.address.flags())
        return command("resume", shlex.quote(self.checkpoints)) if self.checkpoints else ""

    def worker_command(self) -> str:
        """Return the command that starts a worker for the run; "" if it is not on a cluster."""
        return "" if self.address is None else worker_command(self.address)


def after_training(report: Report, location: RunLocation) -> Iterator[str]:
    """Yield notes after a finished training: what was evaluated, where the model is, where the journal is."""
    total = report.trained_on + report.held_out
    part = "fifth" if abs(report.held_out / max(1, total) - 0.2) < _FIFTH else "part"
    examples = counted(report.held_out, "example")
    yield f"The evaluation is of the held-out {part} of the data: {examples}, which training never saw"
    yield from _where_the_model_is(report.fields, location)
    if location.address is not None and location.checkpoints and "://" not in location.checkpoints:
        yield f"What happened during the run: {command('logs', shlex.quote(location.checkpoints))}"


def _where_the_model_is(fields: Mapping[str, object], location: RunLocation) -> Iterator[str]:
    saved, folder = str(fields["model_path"] or ""), location.checkpoints
    if saved:
        model, dataset = shlex.quote(saved), shlex.quote(str(fields["dataset"]))
        there = ("--data-dir", shlex.quote(location.data_dir)) if location.data_dir and dataset == "mnist" else ()
        yield f"Evaluate the saved model again: {command('evaluate', model, '--dataset', dataset, *there)}"
        if "sequences" in fields:
            what = "the classes" if fields["accuracy"] is not None else "the numbers"
            yield f"Predict {what} of other sequences: {command('predict', model, 'FILE_OR_FOLDER')}"
        elif "images" in fields:
            label = fields.get("label", "the classes")
            what = ", ".join(label) if isinstance(label, list) else str(label)
            yield f"Predict {what} of other images: {command('predict', model, 'IMAGE_OR_FOLDER')}"
        elif fields["accuracy"] is not None:
            is_text = str(fields["dataset"]).endswith((".txt", "sonnets"))
            what, file = (
                ("what follows each line of a text", "FILE.txt")
                if is_text
                else ("the classes of rows without labels", "FILE.csv")
            )
            yield f"Predict {what}: {command('predict', model, file)}"
        elif "r2" in fields:
            yield f"Predict {fields['label']} for rows without it: {command('predict', model, 'FILE.csv')}"
    elif folder:
        resume = command("resume", shlex.quote(folder), "--out", _MODEL_FILE)
        yield f"The model was not saved to a file; without training again: {resume}"
    else:
        yield f"The model was not saved; --out FILE keeps it: add --out {_MODEL_FILE} to the command"


def _on_other_hosts(state: ServicesState) -> Iterator[str]:
    """Yield the commands that start the other hosts' servers of a set of several hosts."""
    assert state.ensemble is not None
    own = state.servers[0].host
    yield "These are one host's part of a set; type on each of the others, unless you have:"
    for host in state.ensemble.hosts:
        if host != own:
            yield f"  {command('services up', state.ensemble.flags(host), '--cluster-name', state.cluster_name)}"


def after_services_up(state: ServicesState, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the commands of a first run on these servers, and for a secret; nothing without Zookeeper and Hazelcast."""
    from dl4jlegacy.system.secret import GET_SECRET, MAKE_SECRET, SECRET, SECRET_FILE, beyond_loopback

    if not state.zookeeper or not state.hazelcast:
        return
    if state.ensemble is not None:
        yield from _on_other_hosts(state)
        if not state.members:
            return  # a witness: masters run beside a Hazelcast member
    where = ("--zookeeper", state.zookeeper)
    tracker = ("--tracker", f"hazelcast://{state.hazelcast}", "--cluster-name", state.cluster_name)
    host, first = state.members[0].host, "the first trains a small network on digits"
    others = beyond_loopback(f"{state.zookeeper},{state.hazelcast}")
    bind = ("--bind", host) if others else ()
    yield f"Next, {'on this host' if others else 'each in a terminal of its own'}, from any folder ({first}):"
    yield f"  {command('master --model dbn --dataset digits', *tracker, *where, *bind, '--out', _MODEL_FILE)}"
    if others:
        yield f"and on every other host that reaches {host}, with this version of dl4jlegacy and this CPU's kind:"
    yield f"  {command('worker', *where)}"
    yield f"  {command('master --standby', *where, '--out', _MODEL_FILE)}"
    yield "Start as many workers as you like; a standby is optional."
    if environ.get(SECRET_FILE):
        yield f"These need the run's secret everywhere: export {SECRET_FILE}={shlex.quote(environ[SECRET_FILE])}"
    elif SECRET in environ:
        yield f"These need the run's secret everywhere: export the same {SECRET} in every terminal"
    elif others:
        how = MAKE_SECRET if state.ensemble is None else GET_SECRET  # the other hosts may already have a secret
        yield f"These need a secret, since others may reach these servers: {how}."
    else:
        yield f"For a run with a secret, first export the same {SECRET} (or {SECRET_FILE}) in every terminal."
