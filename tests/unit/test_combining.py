"""Which thread does the jobs of many threads, and what result each caller gets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from unittest.mock import Mock

import pytest

from services import until
from strandline.errors import OutcomeUnknown, Sealed, Unavailable
from strandline.log.combining import Combiner
from strandline.log.records import NewRecords
from strandline.log.storage import Placed


class Disk:
    """Records the stored values by group, and the threads that stored them. `trouble` is raised once instead."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.threads: list[threading.Thread] = []
        self.trouble: BaseException | None = None
        self.free = True

    def store(self, group):
        self.threads.append(threading.current_thread())
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        self.groups.append([value for batches in group for batch in batches.values() for value in batch.values])
        return [{p: Placed(range(len(batch))) for p, batch in batches.items()} for batches in group]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def commits(disk, executor) -> Combiner:
    return Combiner(
        disk.store, executor, weight=lambda _: 0.2, attempt=lambda group: disk.store(group) if disk.free else None
    )


def records(value: bytes) -> dict[int, NewRecords]:
    return {0: NewRecords(1, [value])}


def test_a_caller_that_waits_stores_by_itself(commits, disk):
    """No other thread is woken for the job."""
    assert commits.add(records(b"a"), waits=True).result(10)[0].complete
    assert disk.threads == [threading.current_thread()]


def test_an_append_happens_without_anybody_waiting(commits, disk, executor):
    """A thread of the executor stores the append."""
    commits.add(records(b"a"), waits=False)
    executor.shutdown(wait=True)
    assert disk.groups == [[b"a"]]
    assert disk.threads != [threading.current_thread()]


def test_a_caller_that_could_be_held_up_lets_the_executor_do_it(commits, disk):
    """A caller that may be blocked does not store, because it has a deadline."""
    disk.free = False
    assert commits.add(records(b"a"), waits=True).result(10)[0].complete
    assert disk.threads != [threading.current_thread()]


def test_one_commit_takes_all_that_is_queued(commits, disk):
    """A group keeps the order of the appends."""
    appends = [commits.add(records(b"%d" % number), waits=True) for number in range(5)]
    assert all(append.result(10)[0].complete for append in reversed(appends))
    assert disk.groups == [[b"0", b"1", b"2", b"3", b"4"]]


def test_a_group_takes_no_more_than_its_weight(commits, disk):
    """The limit bounds how long the first job of a long queue waits."""
    appends = [commits.add(records(b"%d" % number), waits=True) for number in range(7)]
    assert all(append.result(10)[0].complete for append in reversed(appends))
    assert [len(group) for group in disk.groups] == [5, 2]


def test_an_error_of_one_is_not_the_others(executor):
    """The result of a single job may be an error."""
    refuse = Combiner(
        lambda group: [ValueError("odd") if number % 2 else number for number in group],
        executor,
        weight=lambda _: 0,
    )
    jobs = [refuse.add(number, waits=True) for number in range(3)]
    assert (jobs[0].result(10), jobs[2].result(10)) == (0, 2)
    with pytest.raises(ValueError, match="odd"):
        jobs[1].result(10)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (Sealed("sealed", token="t"), Sealed),
        (ValueError("a bug"), Unavailable),
        (OutcomeUnknown("?"), OutcomeUnknown),
    ],
)
def test_all_members_of_a_group_are_told_what_went_wrong(commits, disk, trouble, told):
    """Every job of a failed group gets the error, and the next group is stored normally."""
    disk.trouble = trouble
    appends = [commits.add(records(b"lost"), waits=True) for _ in range(2)]
    for append in appends:
        with pytest.raises(told):
            append.result(10)
    assert commits.add(records(b"next"), waits=True).result(10)[0].complete
    assert disk.groups == [[b"next"]]


def test_an_interrupted_caller_leaves_nobody_in_the_dark(commits, disk):
    """The outcome of the interrupted group is unknown, because Ctrl-C may come after the commit."""
    disk.trouble = KeyboardInterrupt()
    other = commits.add(records(b"other"), waits=True)
    mine = commits.add(records(b"mine"), waits=True)
    with pytest.raises(KeyboardInterrupt):
        mine.result(10)
    with pytest.raises(OutcomeUnknown):
        other.result(10)
    assert commits.add(records(b"next"), waits=True).result(10)[0].complete


def test_one_who_is_interrupted_while_telling_the_others_tells_the_rest(commits):
    """Jobs without an answer get OutcomeUnknown, so that no caller waits forever."""

    def interrupt(_):
        raise KeyboardInterrupt

    first, mine, last = (commits.add(records(value), waits=True) for value in (b"first", b"mine", b"last"))
    first.add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        mine.result(10)
    assert first.result(0)[0].complete
    with pytest.raises(OutcomeUnknown):
        last.result(0)


def test_one_who_is_interrupted_while_calling_the_executor_does_not_stop_the_others(commits, disk, executor):
    """No caller waits for a thread that was not requested."""
    submit, executor.submit = executor.submit, Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        commits.add(records(b"called for"), waits=False)
    executor.submit = submit
    assert commits.do(records(b"next"), 5)[0].complete
    assert disk.groups == [[b"called for", b"next"]]


def test_finishing_stores_what_is_queued_after_the_executor_is_gone(commits, disk, executor):
    """`finish` loses no job after the executor is shut down."""
    executor.shutdown(wait=True)
    append = commits.add(records(b"late"), waits=False)
    commits.finish()
    assert append.done()
    assert disk.groups == [[b"late"]]


def test_a_waiting_caller_gets_its_own_answer():
    """`do` returns or raises the result of its own job, whichever thread did the work."""
    with ThreadPoolExecutor(2) as executor:
        combiner = Combiner(
            lambda group: [ValueError(str(n)) if n % 2 else n * 10 for n in group], executor, weight=lambda _: 0.1
        )
        assert combiner.do(4, 5) == 40
        with pytest.raises(ValueError, match="5"):
            combiner.do(5, 5)


def test_a_waiting_caller_is_back_in_time():
    """`do` raises TimeoutError while another thread works. The job is still done."""
    entered, leave = threading.Event(), threading.Event()
    done: list[int] = []

    def act(group):
        done.extend(group)
        entered.set()
        leave.wait(10)
        return group

    with ThreadPoolExecutor(2) as executor:
        combiner = Combiner(act, executor, weight=lambda _: 1)
        first = combiner.add(1, waits=False)
        assert entered.wait(10)
        with pytest.raises(TimeoutError):
            combiner.do(2, 0.01)
        leave.set()
        assert first.result(10) == 1
        combiner.finish()
    assert done == [1, 2]


def test_one_that_gave_up_does_not_keep_the_others_asleep():
    """Each caller wakes the next one. Callers that timed out are skipped."""
    entered, leave = threading.Event(), threading.Event()

    def act(group):
        entered.set()
        leave.wait(10)
        return group

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(20) as callers:
        combiner = Combiner(act, executor, weight=lambda _: 0.01)
        combiner.add(-1, waits=False)
        assert entered.wait(10)
        patient = [callers.submit(combiner.do, n, 60) for n in range(0, 20, 2)]
        hasty = [callers.submit(combiner.do, n, 0.05) for n in range(1, 20, 2)]
        assert all(isinstance(call.exception(10), TimeoutError) for call in hasty)
        leave.set()
        assert [call.result(10) for call in patient] == [*range(0, 20, 2)]


def test_callers_work_by_themselves_after_the_executor_is_gone():
    """Callers do not wait for an executor that is shut down."""
    with ThreadPoolExecutor(1) as executor:
        combiner = Combiner(lambda group: group, executor, weight=lambda _: 1)
    combiner.add(1, waits=False)
    assert combiner.do(2, 10) == 2
    assert combiner.do(3, 10) == 3


def test_combiners_that_are_always_busy_leave_room_for_others():
    """A thread of the executor does a limited number of groups in a row for one combiner."""
    stop = threading.Event()

    def busy(combiner):
        while not stop.is_set():
            combiner.do(0, 60)

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(8) as callers:
        first, other = (Combiner(lambda group: group, executor, weight=lambda _: 0.01) for _ in range(2))
        for _ in range(8):
            callers.submit(busy, first)
        try:
            assert [other.add(n, waits=False).result(60) for n in range(20)] == [*range(20)]
        finally:
            stop.set()


# -- the future of a job


@pytest.fixture
def held():
    """A combiner whose executor does one group after each `release`."""
    with ThreadPoolExecutor(1) as executor:
        made = Held(executor)
        yield made
        made.release(100)


class Held:
    def __init__(self, executor) -> None:
        self._permits = threading.Semaphore(0)
        self.combiner = Combiner(self._act, executor, weight=lambda _: 1, attempt=lambda _: None)

    def _act(self, group):
        self._permits.acquire()
        return [ValueError(job) if job == "bad" else job for job in group]

    def release(self, number: int = 1) -> None:
        for _ in range(number):
            self._permits.release()


def test_many_threads_can_wait_for_one_job(held):
    """Before and after it is answered, for its result or its error."""
    jobs = [held.combiner.add(given, waits=False) for given in ("good", "bad")]
    with ThreadPoolExecutor(6) as pool:
        results = [pool.submit(jobs[0].result, 10) for _ in range(3)]
        errors = [pool.submit(jobs[1].exception, 10) for _ in range(3)]
        assert wait(jobs, timeout=0.05).not_done == set(jobs)
        held.release(2)
        assert wait(jobs, timeout=10).done == set(jobs)
        assert [found.result(10) for found in results] == ["good"] * 3
        assert [type(found.result(10)) for found in errors] == [ValueError] * 3
    assert jobs[0].exception(0) is None
    with pytest.raises(ValueError, match="bad"):
        jobs[1].result(0)
    assert not jobs[0].cancel()
    assert {*as_completed(jobs, timeout=1)} == {*jobs}


def test_a_job_that_takes_too_long_is_waited_for_no_longer(held):
    """The job itself goes on."""
    job = held.combiner.add("late", waits=False)
    for get in (job.result, job.exception):
        with pytest.raises(TimeoutError):
            get(0.01)
    held.release()
    assert job.result(10) == "late"


def test_callbacks_are_called_once_each(held, caplog):
    """Those that are added before the answer and those after it; an error of one is logged."""
    called: list[object] = []

    def broken(_):
        raise ZeroDivisionError

    job = held.combiner.add("good", waits=False)
    for callback in (called.append, broken, called.append):
        job.add_done_callback(callback)
    held.release()
    held.combiner.finish()
    job.add_done_callback(lambda done: called.append(done.result()))
    assert called == [job, job, "good"]
    assert "callback" in caplog.text


def test_a_caller_that_would_have_to_wait_keeps_the_order(held):
    """What it could not do is done by the executor, before what is queued later."""
    jobs = [held.combiner.add(number, waits=True) for number in range(3)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(jobs[1].result, 10)
        held.release(3)
        assert waiting.result(10) == 1
    assert [job.result(10) for job in jobs] == [0, 1, 2]


def test_a_combiner_is_busy_until_everything_is_answered(held):
    """Also while a group is in progress and the queue is empty."""
    assert not held.combiner.busy
    job = held.combiner.add("a", waits=False)
    assert held.combiner.busy
    held.release()
    job.result(10)
    held.combiner.finish()
    assert not held.combiner.busy


# -- callers without others


def test_a_job_without_others_is_done_by_its_caller(commits, disk):
    """The caller does the job at once in its own thread."""
    assert commits.do(records(b"a"), 10)[0].complete
    assert disk.threads == [threading.current_thread()]
    assert disk.groups == [[b"a"]]


def test_jobs_that_come_during_a_single_one_share_the_next_group():
    """The single job comes first, and all other jobs are done after it."""
    entered, leave = threading.Event(), threading.Event()
    groups: list[list[int]] = []

    def act(group):
        groups.append([*group])
        entered.set()
        leave.wait(10)
        return group

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(4) as callers:
        combiner = Combiner(act, executor, weight=lambda _: 0.1)
        first = callers.submit(combiner.do, 0, 10)
        assert entered.wait(10)
        others = [callers.submit(combiner.do, n, 10) for n in (1, 2, 3)]
        until(lambda: len(combiner._queue) == 3, "all other jobs are queued")
        leave.set()
        assert [call.result(10) for call in (first, *others)] == [0, 1, 2, 3]
    assert [sorted(group) for group in groups] == [[0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (Sealed("sealed", token="t"), Sealed),
        (ValueError("a bug"), Unavailable),
        (OutcomeUnknown("?"), OutcomeUnknown),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_caller_alone_is_told_what_went_wrong(commits, disk, trouble, told):
    """The caller gets the error, and the next job is done as usual."""
    disk.trouble = trouble
    with pytest.raises(told):
        commits.do(records(b"lost"), 10)
    assert commits.do(records(b"next"), 10)[0].complete
    assert disk.groups == [[b"next"]]


def test_a_caller_alone_that_could_be_held_up_lets_the_executor_do_it(commits, disk):
    """The caller must be able to return after its timeout."""
    disk.free = False
    assert commits.do(records(b"a"), 10)[0].complete
    assert disk.threads != [threading.current_thread()]


def test_a_job_is_tried_only_without_others(commits, disk):
    """A try neither overtakes queued jobs nor waits."""
    assert commits.try_do(records(b"a"))[0].complete
    waiting = commits.add(records(b"b"), waits=True)
    assert commits.try_do(records(b"c")) is None
    assert waiting.result(10)[0].complete
    disk.free = False
    assert commits.try_do(records(b"d")) is None
    disk.free = True
    assert commits.try_do(records(b"e"))[0].complete
    assert disk.groups == [[b"a"], [b"b"], [b"e"]]
    assert {*disk.threads} == {threading.current_thread()}


@pytest.mark.parametrize(
    ("trouble", "told"), [(Sealed("sealed", token="t"), Sealed), (ValueError("a bug"), Unavailable)]
)
def test_a_try_that_fails_raises(commits, disk, trouble, told):
    """The caller gets the error, and the next job is done as usual."""
    disk.trouble = trouble
    with pytest.raises(told):
        commits.try_do(records(b"lost"))
    assert commits.try_do(records(b"next"))[0].complete
