"""What this project promises, the tests that hold it to that, and one way to break each promise.

``tools/break_promises.py`` uses this list; ``docs/promises.md`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PROMISES", "Promise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise, and how to break it: in ``file``, ``before`` is replaced by ``after``.

    Attributes:
        name: the promise's name on the command line.
        text: the promise.
        tests: the tests that then fail, by path and name.
        how: how it is broken, in a phrase.
        file: relative to the checkout.
        before: text that is in the file exactly once.
        seconds: how long each test may take.
        may_hang: whether a test that takes longer has noticed, because it waits for what never comes.
    """

    name: str
    text: str
    tests: tuple[str, ...]
    how: str
    file: str
    before: str
    after: str
    seconds: float = 300.0
    may_hang: bool = False


NOTHING_IS_LOST = (
    Promise(
        name="plan",
        text="Every batch of every epoch is in exactly one slot of the plan.",
        tests=("tests/scaleout/test_plan.py::test_every_batch_of_every_epoch_is_in_exactly_one_slot",),
        how="the last slot of a short round is left out",
        file="dl4jlegacy/scaleout/plan.py",
        before="for i in range(slots + 1)]",
        after="for i in range(slots)]",
    ),
    Promise(
        name="simulator",
        text="Whatever is killed, frozen, restarted or lost: every batch counts once, and the parameters are those of "
        "a serial run.",
        tests=(
            "tests/scaleout/protocol/test_protocol.py::test_a_few_schedules_end_in_the_serial_runs_parameters",
            "tests/scaleout/protocol/test_protocol.py::"
            "test_every_schedule_ends_in_the_serial_runs_parameters_with_every_batch_counted_once",
        ),
        how="a run whose head is lost goes on with the first model",
        file="dl4jlegacy/scaleout/protocol/master.py",
        before="        head, frame = restored",
        after="        head, frame = restored[0], me.start.first_model()",
        seconds=900.0,
    ),
    Promise(
        name="first-commit-wins",
        text="An update counts once: the first commit of a slot wins, the others are dropped and counted.",
        tests=(
            "tests/scaleout/test_tracker.py::"
            "test_of_many_who_commit_a_job_exactly_one_is_accepted_and_the_rest_are_counted",
        ),
        how="a slot that is done takes a second update",
        file="dl4jlegacy/scaleout/protocol/worker.py",
        before='record.state != "done" and record.model == lease.model:',
        after="record.model == lease.model:",
    ),
    Promise(
        name="one-lease",
        text="A job that is ready goes to exactly one of those who want it.",
        tests=("tests/scaleout/test_tracker.py::test_of_many_who_claim_a_job_exactly_one_wins",),
        how="the lease is written without comparing",
        file="dl4jlegacy/scaleout/protocol/worker.py",
        before="if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, new):",
        after="if me.store.put(Keys.job(*me.plan.at(number)), new):",
    ),
    Promise(
        name="head",
        text="A round counts at one moment, the compare-and-set of the head; of two masters one loses it.",
        tests=("tests/scaleout/protocol/test_protocol.py::test_a_few_schedules_end_in_the_serial_runs_parameters",),
        how="the new head is compared with whatever is there",
        file="dl4jlegacy/scaleout/protocol/master.py",
        before="    if me.store.replace_if_same(HEAD, slots.raw, encode_record(new)):",
        after="    if me.store.replace_if_same(HEAD, me.store.get(HEAD) or b'', encode_record(new)):",
    ),
    Promise(
        name="lease-ends",
        text="A lease that is not extended ends, and its job is done by another worker.",
        tests=("tests/test_runner.py::test_a_worker_that_hangs_loses_its_lease_and_changes_nothing",),
        how="a lease lasts for 30 years",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="if now - lease.changed > me.limits.lease:",
        after="if now - lease.changed > 1e9:",
        may_hang=True,
    ),
    Promise(
        name="killed-worker",
        text="A killed or frozen worker is noticed within seconds, and its job is given to another at once.",
        tests=(
            "tests/cluster/test_steering.py::test_the_job_of_a_worker_that_dies_or_freezes_is_given_out_again_soon",
        ),
        how="the master waits for the end of the lease",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="    if me.is_gone(record.worker):\n",
        after="    if me.is_gone(record.worker) and now - lease.changed > me.limits.lease:\n",
    ),
    Promise(
        name="slow-worker",
        text="An idle worker does the job of one that takes much longer than others do.",
        tests=(
            "tests/scaleout/protocol/test_protocol.py::test_a_job_that_takes_too_long_is_given_to_an_idle_worker_too",
        ),
        how="nobody ever takes too long",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before='return "slow" if now - lease.since > _straggler_seconds(me) else None',
        after="return None",
    ),
    Promise(
        name="failed-job",
        text="A job that fails is tried again, on any worker; the result is as if it had not failed.",
        tests=("tests/test_runner.py::test_a_worker_that_fails_in_the_middle_changes_nothing",),
        how="one attempt is enough to fail",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="record.attempts < me.limits.attempts else None",
        after="record.attempts < 1 else None",
    ),
    Promise(
        name="lost-model",
        text="A model that is lost from the store is written again.",
        tests=(
            "tests/scaleout/protocol/test_protocol.py::"
            "test_a_model_that_is_lost_while_its_round_is_worked_on_is_written_again",
        ),
        how="the master does not look when a worker misses it",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="        me.must_reread_model = True",
        after="        me.must_reread_model = False",
    ),
    Promise(
        name="lost-update",
        text="A slot whose update is lost from the store is done again.",
        tests=(
            "tests/scaleout/protocol/test_protocol.py::"
            "test_a_slot_whose_update_was_lost_is_taken_again_by_the_only_worker_although_it_saw_it_done",
        ),
        how="a worker never looks again at what it saw done",
        file="dl4jlegacy/scaleout/protocol/worker.py",
        before="me.closed.clear()  # the master reopens a slot if its update is lost",
        after="pass",
    ),
    Promise(
        name="account",
        text="What was lost or counted twice is computed from the head and the plan, and fails the run.",
        tests=("tests/test_runner.py::test_a_run_that_lost_or_duplicated_batches_fails_and_says_how_many",),
        how="the account always says 0",
        file="dl4jlegacy/scaleout/records.py",
        before="return plan.total_batches - distinct, head.batches - distinct",
        after="return 0, 0",
    ),
    Promise(
        name="hogwild",
        text="Asynchronous training counts every batch once, too.",
        tests=(
            "tests/test_runner.py::test_hogwild_counts_every_batch_once_and_learns",
            "tests/scaleout/protocol/test_protocol.py::test_asynchronous_schedules_count_every_batch_once",
        ),
        how="slots that are folded already stay open",
        file="dl4jlegacy/scaleout/router.py",
        before="return [n for n in inside if not covered(head.folded, n)][:window]",
        after="return list(inside)[:window]",
    ),
    Promise(
        name="checkpoint-whole",
        text="A checkpoint, or any file of a run, is there whole or not at all.",
        tests=(
            "tests/scaleout/test_checkpoint.py::"
            "test_an_atomic_write_that_fails_leaves_the_old_file_and_nothing_beside_it",
        ),
        how="files are written in place",
        file="dl4jlegacy/scaleout/checkpoint.py",
        before='aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")',
        after="aside = path",
    ),
    Promise(
        name="checkpoint-damaged",
        text="A damaged checkpoint is passed over for the newest good one.",
        tests=(
            "tests/scaleout/test_checkpoint.py::test_a_checkpoint_with_any_byte_changed_falls_back_or_reads_the_same",
        ),
        how="the SHA-256 of the model is not compared",
        file="dl4jlegacy/scaleout/checkpoint.py",
        before='if hashlib.sha256(tensors).hexdigest() != body["model"]["sha256"]:',
        after='if len(tensors) != body["model"]["nbytes"]:',
    ),
    Promise(
        name="resume",
        text="`dl4j resume` goes on from the newest checkpoint, to the same parameters.",
        tests=(
            "tests/test_runner.py::test_an_interrupted_run_resumes_to_the_same_parameters",
            "tests/test_end_to_end.py::test_a_run_killed_in_the_middle_resumes_to_the_same_answer",
        ),
        how="the updater's state is not restored",
        file="dl4jlegacy/scaleout/checkpoint.py",
        before='frame = Result(body["values"], {name: arrays[name] for name in body["arrays"]}).encode()',
        after='frame = Result(body["values"], {n: arrays[n] * (n == "params") for n in body["arrays"]}).encode()',
    ),
    Promise(
        name="same-data",
        text="A run goes on only with the data that it began with.",
        tests=("tests/scaleout/test_checkpoint_data.py::test_a_run_refuses_other_data_of_the_same_size",),
        how="fingerprints are not compared",
        file="dl4jlegacy/scaleout/checkpoint.py",
        before="if began and began != found:",
        after="if began and len(began) != len(found):",
    ),
    Promise(
        name="fingerprint",
        text="Every value of the data is in their fingerprint (of arrays over 256 MiB, blocks).",
        tests=("tests/datasets/test_fingerprint.py::test_every_value_counts",),
        how="only the first row counts",
        file="dl4jlegacy/datasets/fingerprint.py",
        before="whole.update(np.ascontiguousarray(array[rows])",
        after="whole.update(np.ascontiguousarray(array[rows][:1])",
    ),
    Promise(
        name="full-disk",
        text="A checkpoint that cannot be written is a warning; the older ones stay, the run goes on.",
        tests=("tests/test_runner.py::test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_run_goes_on",),
        how="nobody is warned",
        file="dl4jlegacy/scaleout/actors.py",
        before="                self._outcome.warn(str(exc))\n",
        after="",
    ),
    Promise(
        name="killed-master",
        text="The master is killed: a standby takes over in the same round.",
        tests=("tests/cluster/test_cluster.py::test_a_killed_master_is_replaced_by_its_standby",),
        how="the standby knows neither the head nor a checkpoint, and begins anew",
        file="dl4jlegacy/scaleout/zookeeper/election.py",
        before="elected, self._leads = not self._leads, True",
        after="elected, self._leads = not self._leads, self._leads",
        seconds=240.0,
    ),
    Promise(
        name="stopped-member",
        text="One Hazelcast member of several dies: its backup serves, requests are repeated.",
        tests=(
            "tests/scaleout/hazelcast/test_store.py::test_operations_have_one_outcome_whichever_replies_are_lost",
            "tests/cluster/test_faults.py::test_one_of_two_members_is_killed_comes_back_and_the_other_one_is_killed",
        ),
        how="a change whose reply is lost counts as not made",
        file="dl4jlegacy/scaleout/hazelcast/store.py",
        before="            if found is not None and found == value:\n                return True",
        after="            if found is not None and found == value:\n                return False",
        seconds=240.0,
    ),
    Promise(
        name="backups",
        text="What is in the grid has a backup on a second member.",
        tests=(
            "tests/services/test_services.py::test_the_settings_keep_everything_on_this_machine",
            "tests/services/test_services.py::test_with_two_members_data_outlives_either_and_both_come_back",
        ),
        how="no backups",
        file="dl4jlegacy/services/settings.py",
        before='"backup-count": 1,',
        after='"backup-count": 0,',
    ),
    Promise(
        name="frozen-master",
        text="A master that was frozen sees, when it wakes up, that another took over, and leaves.",
        tests=("tests/scaleout/test_monitor.py::test_another_master_ends_this_one",),
        how="it is not told",
        file="dl4jlegacy/scaleout/monitor.py",
        before="            self._fail(exc)\n            return False",
        after="            return False",
    ),
    Promise(
        name="restored-globals",
        text="What a run needs in the tracker is written again if a member took it along.",
        tests=("tests/scaleout/test_monitor.py::test_globals_that_a_member_took_along_are_put_back",),
        how="it is not written again",
        file="dl4jlegacy/scaleout/monitor.py",
        before="            if self._tracker.get(key) is None:\n",
        after="            if self._tracker.get(key) == value:\n",
    ),
)

SAME_ANSWER = (
    Promise(
        name="slot-order",
        text="The parameters are the same bits for any number of workers: updates are folded in slot order.",
        tests=(
            "tests/scaleout/protocol/test_protocol.py::test_a_few_schedules_end_in_the_serial_runs_parameters",
            "tests/test_end_to_end.py::test_the_answer_is_the_same_for_one_to_four_workers",
        ),
        how="updates are folded in the order of their arrival",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="for group in _groups(slots, ready[len(slots.folded) :]):",
        after="ready = sorted(ready, key=lambda n: slots.records[n].deadline)\n"
        "    for group in _groups(slots, ready[len(slots.folded) :]):",
    ),
    Promise(
        name="seeded-by-position",
        text="Drop-out and sampling are seeded by the place in the plan, never by the worker.",
        tests=("tests/test_runner.py::test_parameters_are_bit_identical_for_any_number_of_workers",),
        how="the seed depends on how much the worker has done",
        file="dl4jlegacy/scaleout/perform.py",
        before='self._stream.at(slot.epoch, slot.round, slot.slot, index, purpose="train")',
        after='self._stream.at(slot.epoch, slot.round, slot.slot, index, self.progress, purpose="train")',
    ),
    Promise(
        name="right-model",
        text="A job starts from the model version of its round.",
        tests=("tests/test_runner.py::test_parameters_are_bit_identical_for_any_number_of_workers",),
        how="a worker keeps the model that it has",
        file="dl4jlegacy/scaleout/protocol/worker.py",
        before="wanted = [] if head.model.key == model_key else [head.model]",
        after="wanted = [] if model is not None else [head.model]",
    ),
    Promise(
        name="batch-by-position",
        text="A batch is a function of its place: who asks, and how often, does not matter.",
        tests=("tests/datasets/test_datasets.py::test_a_batch_is_a_function_of_its_position",),
        how="every new iterator shuffles by chance",
        file="dl4jlegacy/datasets/iterator.py",
        before="self._stream = Stream.of(seed)",
        after="self._stream = Stream.of(seed + id(self) % 1000)",
    ),
    Promise(
        name="streams",
        text="Random numbers are counted, not drawn in turn: an element does not depend on what else is drawn.",
        tests=("tests/kernels/test_kernels.py::test_philox_gives_the_published_known_answers",),
        how="the generator does nine rounds instead of ten",
        file="dl4jlegacy/kernels/philox.py",
        before="ROUNDS = 10",
        after="ROUNDS = 9",
    ),
    Promise(
        name="sums",
        text="Averages are the same bits in NumPy and in compiled code, with any number of threads.",
        tests=("tests/kernels/test_kernels.py::test_weighted_sums_are_the_same_bits_for_any_pool_and_implementation",),
        how="NumPy's kernel sums from the last vector to the first",
        file="dl4jlegacy/kernels/numpy/kernels.py",
        before="            _sum_span(vectors, weights, out, start)\n        return",
        after="            _sum_span(vectors[::-1], weights[::-1], out, start)\n        return",
    ),
    Promise(
        name="averaging",
        text="One step of k workers on equal shards is one step on the joined batch: the mean is weighted by examples.",
        tests=("tests/test_runner.py::test_the_average_of_one_sgd_step_each_is_one_step_on_the_joined_batch",),
        how="every update has the same weight",
        file="dl4jlegacy/scaleout/aggregate.py",
        before="weights = [float(count if self._weighted else 1) / total for count in examples]",
        after="weights = [1.0 / len(examples) for count in examples]",
    ),
    Promise(
        name="cluster-answer",
        text="On a cluster, with workers killed, the answer is that of the embedded tracker.",
        tests=(
            "tests/cluster/test_cluster.py::"
            "test_a_master_and_two_workers_in_processes_of_their_own_give_the_embedded_trackers_answer",
            "tests/cluster/test_cluster.py::test_killed_workers_change_nothing",
        ),
        how="a cluster's workers sample with another seed",
        file="dl4jlegacy/cluster/worker.py",
        before="performer=network_performer,",
        after="performer=lambda conf, kernels: network_performer(conf.replace(seed=conf.seed + 1), kernels),",
        seconds=240.0,
    ),
    Promise(
        name="versions",
        text="A worker of another version, which might compute something else, is refused.",
        tests=("tests/cluster/test_bad_input.py::test_a_worker_of_another_version_is_refused",),
        how="versions are not compared",
        file="dl4jlegacy/cluster/address.py",
        before="for name, own in ours.items() if theirs.get(name) != own",
        after="for name, own in ours.items() if name not in theirs",
    ),
    Promise(
        name="same-kind-of-device",
        text="A worker of the other kind of device, or of another GPU, is refused, unless the run is mixed.",
        tests=("tests/test_devices.py::test_a_worker_of_the_other_kind_joins_a_mixed_run_only",),
        how="every run is mixed",
        file="dl4jlegacy/scaleout/compute.py",
        before="if devices[0].is_gpu != gpu_run and not conf.mixed_devices:",
        after="if devices[0].is_gpu != gpu_run and conf.mixed_devices:",
    ),
    Promise(
        name="gpu-order",
        text="On a GPU no result depends on the order in which threads run.",
        tests=("tests/kernels/cuda/test_calls.py::test_no_result_depends_on_the_order_in_which_threads_run",),
        how="a barrier between threads is left out",
        file="dl4jlegacy/kernels/cuda/prelude.cuh",
        before="    for (int half = width / 2; half > 0; half /= 2) {\n        __syncthreads();\n",
        after="    for (int half = width / 2; half > 0; half /= 2) {\n",
    ),
    Promise(
        name="by-value-by-reference",
        text="Data that travel with the jobs and data that are read where the worker is give the same parameters.",
        tests=("tests/test_runner.py::test_data_by_value_and_by_reference_give_the_same_parameters",),
        how="by value, the next round's data are put under this one's keys",
        file="dl4jlegacy/scaleout/protocol/batch.py",
        before="yield Keys.data(slot.round, slot.slot), load(slot)",
        after="yield Keys.data(slot.round, slot.slot), load(plan.slot(*plan.at(numbers[0])))",
    ),
)

NOTHING_WAITS = (
    Promise(
        name="tracker-deadline",
        text="Every request to the tracker ends at its deadline, with an error that names it.",
        tests=("tests/scaleout/hazelcast/test_store.py::test_an_operation_that_never_succeeds_ends_at_its_deadline",),
        how="the deadline is in 30 years",
        file="dl4jlegacy/scaleout/hazelcast/store.py",
        before="return time.monotonic() + self._deadline",
        after="return time.monotonic() + 1e9",
        seconds=60.0,
        may_hang=True,
    ),
    Promise(
        name="zookeeper-deadline",
        text="A Zookeeper that does not answer is an error within the deadline.",
        tests=(
            "tests/scaleout/zookeeper/test_zookeeper.py::"
            "test_a_server_that_is_not_there_is_an_error_within_the_deadline",
        ),
        how="connecting has no deadline",
        file="dl4jlegacy/scaleout/zookeeper/session.py",
        before="if not self._connected.wait(self.deadline_seconds):",
        after="if not self._connected.wait(1e6):",
        seconds=60.0,
        may_hang=True,
    ),
    Promise(
        name="run-deadline",
        text="A run that takes longer than its deadline ends and says where it is.",
        tests=("tests/test_runner.py::test_a_run_that_takes_too_long_says_where_it_is",),
        how="the deadline is not looked at",
        file="dl4jlegacy/runner.py",
        before="if deadline is not None and elapsed > deadline:",
        after="if deadline is not None and elapsed > 1e9:",
        seconds=90.0,
        may_hang=True,
    ),
    Promise(
        name="standstill",
        text="A run that stands still does not wait for ever.",
        tests=("tests/test_runner.py::test_a_run_that_stands_still_ends_and_says_where_it_is",),
        how="it may stand still for 30 years",
        file="dl4jlegacy/runner.py",
        before="if parts.outcome.idle_seconds > stall:",
        after="if parts.outcome.idle_seconds > 1e9:",
        seconds=90.0,
        may_hang=True,
    ),
    Promise(
        name="stuck-worker",
        text="A computation without progress is reported, and its lease runs out.",
        tests=("tests/test_runner.py::test_a_worker_that_hangs_loses_its_lease_and_changes_nothing",),
        how="the heartbeat extends the lease for ever",
        file="dl4jlegacy/scaleout/actors.py",
        before="now - since > self._stuck_seconds",
        after="now - since > 1e9",
        may_hang=True,
    ),
    Promise(
        name="too-few-workers",
        text="A run with too few workers counts down, and ends with the numbers and the remedy.",
        tests=("tests/scaleout/liveness/test_quorum.py::test_at_its_end_the_numbers_and_the_remedy_are_named",),
        how="the countdown never ends",
        file="dl4jlegacy/scaleout/liveness/quorum.py",
        before="        if now >= self._until:\n",
        after="        if now >= self._until + 1e9:\n",
    ),
    Promise(
        name="no-master",
        text="Workers wait for a master that is gone for a while, and then leave.",
        tests=("tests/cluster/test_steering.py::test_a_worker_whose_master_is_gone_for_long_leaves",),
        how="they wait for 30 years",
        file="dl4jlegacy/cluster/worker.py",
        before="if now - self._master_seen > conf.worker_wait_seconds:",
        after="if now - self._master_seen > 1e9:",
        seconds=180.0,
        may_hang=True,
    ),
    Promise(
        name="traceback",
        text="A job that fails on every attempt ends the run with the worker's traceback.",
        tests=(
            "tests/test_runner.py::test_a_job_that_always_fails_ends_the_run_with_the_workers_traceback",
            "tests/cluster/test_steering.py::"
            "test_a_failed_job_reaches_the_masters_terminal_and_status_with_its_traceback_within_two_seconds",
        ),
        how="the traceback stays with the worker",
        file="dl4jlegacy/scaleout/actors.py",
        before='trace = "".join(traceback.format_exception(exc))',
        after='trace = ""',
    ),
    Promise(
        name="always-failing-job",
        text="A job is tried three times, not for ever.",
        tests=("tests/test_runner.py::test_a_job_that_always_fails_ends_the_run_with_the_workers_traceback",),
        how="it is tried for ever",
        file="dl4jlegacy/scaleout/protocol/watch.py",
        before="record.attempts < me.limits.attempts else None",
        after="record.attempts >= 0 else None",
        seconds=150.0,
        may_hang=True,
    ),
    Promise(
        name="not-finite",
        text="A loss that becomes NaN ends the run and names round, slot, batch and layer.",
        tests=(
            "tests/test_runner.py::"
            "test_a_score_that_is_not_finite_names_round_slot_and_layer_and_keeps_the_last_checkpoint",
        ),
        how="the place is not named",
        file="dl4jlegacy/scaleout/perform.py",
        before='raise NotFiniteError(f"{where} ({job.phase.kind}): {exc}") from exc',
        after="raise NotFiniteError(str(exc)) from exc",
    ),
    Promise(
        name="journal",
        text="What happened in a run is in its journal, also when many write at once.",
        tests=("tests/scaleout/test_journal.py::test_many_writers_lose_nothing",),
        how="an entry may take the place of another",
        file="dl4jlegacy/scaleout/journal.py",
        before='return f"{_PREFIX}{self._last:020}/{self._source}"',
        after='return f"{_PREFIX}{self._last // 1_000_000:020}"',
    ),
    Promise(
        name="exit-status",
        text="Exit codes tell scripts what went wrong, and one message tells people.",
        tests=("tests/cli/test_bad_input.py::test_a_bad_field_of_a_conf_file_is_named_with_file_and_field",),
        how="a bad configuration ends with status 1",
        file="dl4jlegacy/errors.py",
        before='    code = "DL4J-CONF"\n    exit_status = 3',
        after='    code = "DL4J-CONF"\n    exit_status = 1',
    ),
    Promise(
        name="nearest-name",
        text="A wrong name is answered with the nearest known one.",
        tests=("tests/cli/test_bad_input.py::test_an_unknown_name_is_answered_with_the_nearest_one",),
        how="only what is known is listed",
        file="dl4jlegacy/errors.py",
        before="    if close:\n",
        after="    if not known:\n",
    ),
    Promise(
        name="one-json-object",
        text="`--format json` prints exactly one JSON object on stdout, errors too; all else goes to stderr.",
        tests=("tests/cli/test_bad_input.py::test_an_unknown_name_is_answered_with_the_nearest_one",),
        how="messages go to stdout",
        file="dl4jlegacy/console.py",
        before='        sys.stderr.write(text + "\\n")\n        sys.stderr.flush()',
        after='        sys.stdout.write(text + "\\n")\n        sys.stdout.flush()',
    ),
    Promise(
        name="signal",
        text="Ctrl-C and SIGTERM end a run in order and say how to go on; a second one leaves at once.",
        tests=("tests/cli/test_stopping.py::test_a_signal_saves_a_checkpoint_says_how_to_go_on_and_resume_does",),
        how="nothing says how to go on",
        file="dl4jlegacy/console.py",
        before='message = f"stopped by {stop.name}{stop.hint}"',
        after='message = f"stopped by {stop.name}"',
    ),
)

NUMBERS = (
    Promise(
        name="gradients",
        text="The gradient of every layer, loss and activation is the derivative of its score.",
        tests=("tests/nn/training/test_gradient_check.py::test_drop_out_and_regularization_are_part_of_the_gradient",),
        how="a dense layer passes its gradient on as if W were twice as large",
        file="dl4jlegacy/nn/layers/feedforward.py",
        before='        step.kernels.matmul(dz, params["W"].T, dx)\n',
        after='        step.kernels.matmul(dz, 2 * params["W"].T, dx)\n',
    ),
    Promise(
        name="gradients-recurrent",
        text="So it is for recurrent layers, through time.",
        tests=("tests/nn/layers/test_recurrent.py::test_gradient_is_the_derivative_of_the_score",),
        how="the gradient leaves out the peephole of the output gate",
        file="dl4jlegacy/kernels/numpy/recurrent.py",
        before="dc += dh * o * (1 - a * a) + do * to_o",
        after="dc += dh * o * (1 - a * a)",
    ),
    Promise(
        name="gradients-images",
        text="So it is for the layers of images.",
        tests=("tests/nn/layers/test_convolution.py::test_gradients_of_image_layers_are_those_of_the_score",),
        how="the gradient of a convolution's bias is left out of its activation",
        file="dl4jlegacy/nn/layers/convolution.py",
        before='step.kernels.conv_backward_weights(padded, dy, grads["W"], self.stride, self.dilation)',
        after='step.kernels.conv_backward_weights(padded * 2, dy, grads["W"], self.stride, self.dilation)',
    ),
    Promise(
        name="updaters",
        text="Updaters follow DL4J's formulas and keep their state in its order.",
        tests=("tests/nn/test_updaters.py::test_ten_steps_follow_the_formula_and_keep_the_state_in_its_order",),
        how="AdaDelta takes the rate of the other average",
        file="dl4jlegacy/kernels/numpy/kernels.py",
        before="up = gradient * np.sqrt(msdx + eps) / np.sqrt(msg + eps)",
        after="up = gradient * np.sqrt(msdx + eps) / np.sqrt(msg)",
    ),
    Promise(
        name="evaluation",
        text="An evaluation prints what Deeplearning4j's prints, character for character.",
        tests=("tests/nn/evaluation/test_classification.py::test_stats_text_is_dl4js_character_for_character",),
        how="the confusion matrix is turned round",
        file="dl4jlegacy/nn/evaluation/classification.py",
        before="Actual (rowClass) predicted as (columnClass) N times",
        after="Predicted (rowClass) as actual (columnClass) N times",
    ),
    Promise(
        name="learns",
        text="The README's first command learns the digits.",
        tests=("tests/test_end_to_end.py::test_digits_are_learned_by_four_workers",),
        how="workers begin from the model's negative",
        file="dl4jlegacy/scaleout/perform.py",
        before="self._network.set_params(params)",
        after="self._network.set_params(-params)",
    ),
)

FILES = (
    Promise(
        name="models-from-dl4j",
        text="Model files of Deeplearning4j 0.9.1 and 1.0.0 are read, and answer as they did there.",
        tests=("tests/nn/dl4j/test_serializer.py::test_a_file_of_the_real_dl4j_answers_as_it_did_there",),
        how="matrices lie row by row",
        file="dl4jlegacy/nn/parameters.py",
        before="is_c_ordered=len(shape) != 2 or name in layer.c_ordered,",
        after="is_c_ordered=True,",
    ),
    Promise(
        name="models-to-dl4j",
        text="What is written is what Deeplearning4j writes, byte for byte.",
        tests=("tests/nn/dl4j/test_nd4j.py::test_what_0_9_1_writes_is_read_and_written_byte_for_byte",),
        how="floats are written in the other byte order",
        file="dl4jlegacy/nn/dl4j/nd4j.py",
        before="data: bytes = x.astype(_DTYPES[name], copy=False).tobytes(",
        after='data: bytes = x.astype(_DTYPES[name].newbyteorder("<"), copy=False).tobytes(',
    ),
    Promise(
        name="model-file-round-trip",
        text="A saved network comes back exactly, updater and normalizer included, and trains on as if never saved.",
        tests=("tests/nn/dl4j/test_serializer.py::test_training_goes_on_as_if_it_had_not_been_interrupted",),
        how="the updater's state is left in the file",
        file="dl4jlegacy/nn/dl4j/serializer.py",
        before="    if save_updater and network.updater_state.size:",
        after="    if save_updater and not network.updater_state.size:",
    ),
    Promise(
        name="wire",
        text="A frame that is cut short, altered or forged is an error, never a wrong array.",
        tests=("tests/test_wire.py::test_every_flipped_bit_of_prefix_and_header_is_noticed",),
        how="the checksum is not compared",
        file="dl4jlegacy/wire.py",
        before="    if found != crc:\n",
        after="    if found == -1:\n",
    ),
)

SAFETY = (
    Promise(
        name="no-pickle",
        text="Nothing that is read is ever unpickled or otherwise executed.",
        tests=("tests/test_layering.py::test_nothing_that_runs_foreign_code_is_in_it",),
        how="a module imports pickle",
        file="dl4jlegacy/wire.py",
        before="import math\n",
        after="import math\nimport pickle\n",
    ),
    Promise(
        name="pickle-refused",
        text="Should the Hazelcast client ever be led to its pickle, that refuses, in both directions.",
        tests=("tests/scaleout/hazelcast/test_store.py::test_the_clients_own_pickle_refuses_in_both_directions",),
        how="it is left as it is",
        file="dl4jlegacy/scaleout/hazelcast/connection.py",
        before="        _refuse_pickle(self._serialization_service._python_serializer)\n",
        after="",
    ),
    Promise(
        name="signatures",
        text="With a secret, a value of the grid that others wrote, altered or moved is refused.",
        tests=("tests/scaleout/hazelcast/test_store.py::test_a_value_of_another_key_run_or_secret_is_refused",),
        how="the HMAC is not compared",
        file="dl4jlegacy/scaleout/envelope.py",
        before="if magic == expected and hmac.compare_digest(bytes(raw[: self.nbytes]), self.head(key, value)):",
        after="if magic == expected:",
    ),
    Promise(
        name="proofs",
        text="With a secret, both ends of a connection to the master prove that they know it.",
        tests=("tests/scaleout/liveness/test_handshake.py::test_ends_that_do_not_fit_are_refused_and_told_why",),
        how="the server does not check the client's proof",
        file="dl4jlegacy/scaleout/liveness/handshake.py",
        before="        if not hmac.compare_digest(proof, expected):\n            raise _refused(",
        after="        if len(proof) != len(expected):\n            raise _refused(",
    ),
    Promise(
        name="secret-stays",
        text="The secret reaches no server, no command line and no message.",
        tests=("tests/services/test_services.py::test_servers_see_no_secret_and_nothing_that_changes_their_settings",),
        how="servers get the whole environment",
        file="dl4jlegacy/services/processes.py",
        before="for name in _INHERITED if name in os.environ}",
        after="for name in os.environ}",
    ),
    Promise(
        name="another-secret",
        text="Whoever has another secret, or none, is refused with exit code 6.",
        tests=("tests/cluster/test_bad_input.py::test_another_secret_is_refused_wherever_it_is_used",),
        how="an unauthorised process leaves with the status of one that cannot connect",
        file="dl4jlegacy/errors.py",
        before='    code = "DL4J-AUTH"\n    exit_status = 6',
        after='    code = "DL4J-AUTH"\n    exit_status = 4',
        seconds=180.0,
    ),
    Promise(
        name="loopback",
        text="Servers that dl4j starts bind to loopback unless told otherwise.",
        tests=("tests/services/test_services.py::test_the_settings_keep_everything_on_this_machine",),
        how="they bind every address",
        file="dl4jlegacy/services/settings.py",
        before='HOST = "127.0.0.1"',
        after='HOST = "0.0.0.0"',
    ),
    Promise(
        name="jars",
        text="Jars from Maven are used only if their SHA-256 is the pinned one.",
        tests=("tests/services/test_services.py::test_a_jar_with_another_digest_is_refused",),
        how="the digest is not compared",
        file="dl4jlegacy/services/jars.py",
        before='hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256',
        after='len(hashlib.file_digest(file, "sha256").hexdigest()) == len(jar.sha256)',
    ),
)

DEPLOY = (
    Promise(
        name="aws-up-undone",
        text="`dl4j aws up` that fails undoes what it began.",
        tests=("tests/aws/test_command.py::test_an_up_that_fails_undoes_what_it_began",),
        how="it leaves everything as it is",
        file="dl4jlegacy/cli/aws.py",
        before="    try:\n        setup.down()\n    except Dl4jError as exc:",
        after="    try:\n        pass\n    except Dl4jError as exc:",
    ),
    Promise(
        name="aws-end",
        text="Every instance winds up its own end before it does anything else.",
        tests=("tests/aws/test_user_data.py::test_the_end_is_wound_up_before_anything_else",),
        how="it is wound up after the installation",
        file="dl4jlegacy/aws/user_data.py",
        before='"bootcmd": [["sh", "-c", _end(instance.expires)]],',
        after='"power_state": [["sh", "-c", _end(instance.expires)]],',
    ),
    Promise(
        name="aws-reap",
        text="`dl4j aws reap` ends what has expired, and nothing that it did not make.",
        tests=("tests/aws/test_command.py::test_reap_ends_what_has_expired_and_nothing_else",),
        how="clusters never expire",
        file="dl4jlegacy/aws/reaper.py",
        before="if self.expires and self.expires <= now:",
        after="if self.expires and self.expires <= 0:",
    ),
    Promise(
        name="aws-down",
        text="`dl4j aws down` returns only when nothing is left, whatever AWS refuses on the way.",
        tests=(
            "tests/aws/test_cluster.py::test_down_that_waits_in_vain_says_what_is_left_and_can_be_repeated",
            "tests/aws/test_faults.py::test_nothing_is_left_after_failures_in_up_and_down",
        ),
        how="it does not look at what is left",
        file="dl4jlegacy/aws/setup.py",
        before="        left = self._left()\n        if left:\n",
        after="        left: list[str] = []\n        if left:\n",
        seconds=600.0,
    ),
    Promise(
        name="aws-policy",
        text="The IAM policy allows all that is done, and nothing that is not needed.",
        tests=("tests/aws/test_policy.py::test_the_policy_allows_all_that_is_done_and_every_action_in_it_is_needed",),
        how="an action more",
        file="docs/aws-iam-policy.json",
        before='"ec2:DescribeImages",',
        after='"ec2:DescribeImages",\n        "ec2:DescribeVpcs",',
    ),
    Promise(
        name="aws-host-keys",
        text="An unknown or changed SSH host key is refused.",
        tests=("tests/aws/test_provision.py::test_an_unknown_host_key_is_refused",),
        how="it is accepted at first sight",
        file="dl4jlegacy/aws/provision.py",
        before="paramiko.RejectPolicy()",
        after="paramiko.AutoAddPolicy()",
    ),
    Promise(
        name="containers",
        text="The compose file opens no port to other machines, gives no rights away and holds no secret.",
        tests=("tests/docker/test_compose_static.py::test_nothing_is_wrong_with_the_compose_file",),
        how="processes keep all rights of root",
        file="docker/docker-compose.yml",
        before="  cap_drop: [ALL]\n",
        after="",
    ),
)

PACKAGE = (
    Promise(
        name="import",
        text="`import dl4jlegacy` takes at most 0.1 s and loads no compiler, no server library and no GPU.",
        tests=("tests/test_public_api.py::test_import_loads_nothing_heavy",),
        how="the package imports Numba",
        file="dl4jlegacy/__init__.py",
        before="import lazy_loader\n",
        after="import lazy_loader\nimport numba\n",
    ),
    Promise(
        name="hazelcast-untouched",
        text="Importing the package, or opening a client, changes nothing of the Hazelcast client for others.",
        tests=(
            "tests/scaleout/hazelcast/test_connection.py::"
            "test_importing_the_package_and_opening_a_client_leave_hazelcast_and_its_reactor_untouched",
        ),
        how="pickle is replaced for all clients of the process",
        file="dl4jlegacy/scaleout/hazelcast/connection.py",
        before="    serializer.read, serializer.write = read, write",
        after="    type(serializer).read, type(serializer).write = read, write",
    ),
    Promise(
        name="hazelcast-release",
        text="A release of the Hazelcast client that was not tested is refused by name.",
        tests=(
            "tests/scaleout/hazelcast/test_connection.py::"
            "test_a_release_that_was_not_tested_is_refused_by_name_when_a_connection_is_opened",
        ),
        how="any release will do",
        file="dl4jlegacy/scaleout/hazelcast/connection.py",
        before="    if found not in TESTED_RELEASES:",
        after="    if not TESTED_RELEASES:",
    ),
    Promise(
        name="layers",
        text="A room imports only those before it in one list; there are no circles.",
        tests=(
            "tests/test_layering.py::test_a_module_imports_only_its_own_room_and_those_above",
            "tests/test_layering.py::test_no_modules_import_each_other_in_a_circle",
        ),
        how="a function of the random streams imports the runner",
        file="dl4jlegacy/seeding.py",
        before="        packed = struct.pack(",
        after="        from dl4jlegacy.runner import RunStatus as RunStatus\n\n        packed = struct.pack(",
    ),
    Promise(
        name="legacy-flags",
        text="`actor-network-runner` takes the flags of 2014, with their defaults.",
        tests=("tests/cli/test_legacy.py::test_every_flag_has_the_legacy_default",),
        how="another default of the corruption level",
        file="dl4jlegacy/cli/legacy.py",
        before='add("-c", type=partial(rate, "-c"), default=0.3,',
        after='add("-c", type=partial(rate, "-c"), default=0.5,',
    ),
    Promise(
        name="readme",
        text="Every flag, link and line of Python in the README and in docs/ works.",
        tests=("tests/test_readme.py::test_the_command_line_knows_every_flag_in_the_readme",),
        how="the README names a flag that there is not",
        file="README.md",
        before="--model dbn --seed 7 --jobs-per-round 4 --workers 1 ",
        after="--model dbn --sead 7 --jobs-per-round 4 --workers 1 ",
    ),
    Promise(
        name="wheel",
        text="The wheel holds data, licences, types and CUDA sources.",
        tests=("tests/test_packaging.py::test_the_wheel_holds_data_licence_notice_and_type_marker",),
        how="the data sets are left out",
        file="setup.cfg",
        before="    datasets/data/*\n",
        after="",
    ),
)

PROMISES: Mapping[str, tuple[Promise, ...]] = {
    "Nothing is lost": NOTHING_IS_LOST,
    "The answer does not depend on the cluster": SAME_ANSWER,
    "Nothing waits for ever, nothing fails silently": NOTHING_WAITS,
    "The numbers are right": NUMBERS,
    "Files interchange": FILES,
    "Nothing unsafe is read, and no secret gets out": SAFETY,
    "What is deployed stays under control": DEPLOY,
    "The package": PACKAGE,
}
