"""Which slots a worker takes: in every round those of the round before, whose part of the data it reads."""

from dl4jlegacy.datasets import ListDataSetIterator
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.state.job import DataSetJobIterator
from dl4jlegacy.scaleout.state.records import HEAD, Head, decode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import drive

from .test_protocol import SetClock, examples, work_of


def test_workers_that_are_all_there_keep_their_slots_from_round_to_round():
    jobs = DataSetJobIterator(ListDataSetIterator(examples(24, 3), 2), jobs_per_round=4, phases=(Phase(epochs=2),))
    work, store, clock, router = work_of(jobs), MemoryStore(), SetClock(), create_router("iterative-reduce")
    start, taken = protocol.RunStart("run", work.first_model, lambda: None), {}
    aggregator, ahead = work.aggregator("iterative-reduce"), {}
    master = protocol.master_steps(
        protocol.Master("m", store, clock, work.plan, router, aggregator=aggregator, start=start)
    )
    names = [f"w{number}" for number in range(work.plan.jobs_per_round)]
    workers = {
        name: protocol.worker_steps(protocol.Worker(name, store, clock, work.plan, router, aggregator=aggregator))
        for name in names
    }
    answers = dict.fromkeys(names)

    def lead():
        while not isinstance(event := next(master), protocol.Wait):
            if isinstance(event, protocol.MoreWork):
                drive(protocol.issue_jobs(store, work.plan, event, binds_model=True, load=work.load, put_ahead=ahead))

    for round_ in range(4):
        for _ in range(10):
            clock.seconds += 10.0
            lead()
        assert decode_record(store.get(HEAD), Head).round == round_
        for name in names if round_ % 2 else reversed(names):  # who comes first does not matter
            while not isinstance(event := workers[name].send(answers[name]), protocol.Perform):
                answers[name] = None
            taken.setdefault(name, []).append(event.plan[:2])
            answers[name] = work.perform(event.plan, event.version, event.model, event.data, router)
        for name in names:
            while not isinstance(workers[name].send(answers[name]), protocol.Wait):
                answers[name] = None
    assert {name: {slot for _, slot in places} for name, places in taken.items()} == {
        name: {places[0][1]} for name, places in taken.items()
    }
    assert [places[-1][0] for places in taken.values()] == [3] * len(names)
