"""How ranks meet for a save: each rank is a thread here, with a store that the test can hold up at any step."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch.distributed as dist

from tensordict_memmap.distributed import rendezvous
from tensordict_memmap.distributed.errors import RankCancelledError, RankError, failure_of
from tensordict_memmap.distributed.rendezvous import join
from tensordict_memmap.distributed.team import Team, process_name

WAIT = 20.0


class Store(dist.PrefixStore):
    """A store that calls a function of the test right before a key is set or replaced."""

    def __init__(self, store, before):
        super().__init__("test", store)
        self._before = before

    def set(self, key, value):
        self._before("set", key)
        super().set(key, value)

    def compare_set(self, key, expected, desired):
        self._before("compare_set", key)
        return super().compare_set(key, expected, desired)


@pytest.fixture
def start(monkeypatch):
    """Starts meetings in threads; ``teams`` makes the ranks."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ThreadPoolExecutor(8) as pool:

        def run(team, cancelled=lambda: False, what="the save", wait=WAIT, **request):
            team.number += 1
            return pool.submit(join, team, {"call": "save", **request}, wait, what, cancelled)

        yield run


def teams(count, before=lambda call, key: None):
    """The ranks; the coordinator's store calls ``before``."""
    store = dist.HashStore()
    ranks = list(range(count))
    plain = dist.PrefixStore("test", store)
    return [Team(ranks, 0, Store(store, before)), *(Team(ranks, index, plain) for index in ranks[1:])]


def same(*links):
    names = {link.result(WAIT).name for link in links}
    return len(names) == 1 and names != {""}


def test_a_rank_that_is_cancelled_while_it_is_answered_takes_part(start):
    """Otherwise the coordinator would wait for its connection until the time is over."""
    stop, later = threading.Event(), []

    def before(call, key):
        if call == "set" and key.startswith("answer/"):
            stop.set()
            later.append(later_rank.exception(0.5) if later_rank.done() else None)
            time.sleep(0.3)

    first, second = teams(2, before)
    later_rank = start(second, stop.is_set)
    assert same(start(first), later_rank)
    assert later == [None]


def test_ranks_that_arrived_are_notified_if_another_withdraws(start):
    stop = threading.Event()

    def before(call, key):
        if call == "compare_set" and key == "arrived/1" and not stop.is_set():
            stop.set()  # the coordinator has seen all three arrive
            with pytest.raises(CancelledError):
                third.result(WAIT)

    ranks = teams(3, before)
    second, third = start(ranks[1]), start(ranks[2], stop.is_set)
    for waiting in (start(ranks[0]), second):
        with pytest.raises(RankCancelledError, match="cancelled on rank 2"):
            waiting.result(WAIT)
    assert same(*map(start, ranks))


def test_a_save_that_the_coordinator_cancelled_is_not_taken_for_its_next_one(start):
    first, second = teams(2)
    with pytest.raises(CancelledError):
        start(first, lambda: True).result(WAIT)
    coordinates = start(first)
    earlier = start(second)  # this rank was late for the save that was cancelled
    with pytest.raises(RankCancelledError, match="cancelled on rank 0"):
        earlier.result(WAIT)
    time.sleep(1.0)  # the coordinator waits for as long as it takes
    assert not coordinates.done()
    assert same(coordinates, start(second))
    assert first.number == second.number and not first.given_up and not second.given_up


def test_a_rank_that_is_at_the_next_save_ends_the_one_that_it_cancelled(start):
    first, second = teams(2)
    with pytest.raises(CancelledError):
        start(second, lambda: True).result(WAIT)
    arrived = start(second)
    with pytest.raises(RankCancelledError, match="cancelled on rank 1"):
        start(first).result(WAIT)
    assert same(start(first), arrived)


@pytest.mark.parametrize("cancelled", [0, 1], ids=["the coordinator", "another rank"])
def test_a_late_rank_of_a_cancelled_save_is_notified_at_once(start, cancelled):
    ranks = teams(2)
    with pytest.raises(CancelledError):
        start(ranks[cancelled], lambda: True).result(WAIT)
    before = time.monotonic()
    with pytest.raises(RankCancelledError, match=f"cancelled on rank {cancelled}"):
        start(ranks[1 - cancelled]).result(WAIT)
    assert time.monotonic() - before < WAIT / 2
    assert same(*map(start, ranks))


def test_ranks_that_cancel_at_random_moments_meet_at_the_next_save(start):
    first, second = teams(2)
    for number in range(30):
        stops = threading.Event(), threading.Event()
        found = [start(first, stops[0].is_set), start(second, stops[1].is_set)]
        for stop, seconds in zip(stops, (number % 5 * 0.002, number % 7 * 0.001), strict=True):
            time.sleep(seconds)
            stop.set()
        kinds = {type(one.exception(WAIT)) for one in found}
        assert kinds <= {type(None), CancelledError, RankCancelledError}, [one.exception() for one in found]
        assert len(kinds) == 1 or type(None) not in kinds, "one rank is in the save, and the other is not"
        assert same(start(first), start(second))


def test_ranks_that_did_not_take_part_in_the_same_saves_meet(start):
    """Without a cancelled save, a rank is taken at its word."""
    first, second = teams(2)
    first.number = 5
    assert same(start(first), start(second))
    assert first.number == second.number


@pytest.mark.parametrize("known", [True, False], ids=["on this machine", "elsewhere"])
@pytest.mark.parametrize("cancels", [True, False])
def test_a_rank_whose_coordinator_ends_before_it_answers_does_not_wait_for_ever(monkeypatch, start, known, cancels):
    monkeypatch.setattr(rendezvous, "_GRACE", 0.5)
    stop = threading.Event()
    _, second = teams(2)
    if known:
        second.store.set("process/0", process_name().rpartition("|")[0] + "|0")  # of a process that has ended
    waiting = start(second, stop.is_set, wait=5.0 if known else 0.5)
    while not second.store.check(["arrived/1"]):
        time.sleep(0.001)
    content = second.store.get("arrived/1")
    second.store.compare_set("arrived/1", content.decode(), "")
    if cancels:
        stop.set()
    try:
        with pytest.raises(RankError, match="has ended" if known else "did not arrive within"):
            waiting.result(WAIT)
    finally:
        second.store.set("arrived/1", content)  # a rank that still waits withdraws


def test_a_failure_of_the_only_rank_is_its_own_error(start):
    with pytest.raises(RankError, match="failed on rank 0: KeyError"):
        start(Team([0], 0, dist.HashStore()), failure=failure_of(KeyError("a"))).result(WAIT)


def test_a_request_that_differs_is_an_error_on_all_ranks(start):
    first, second = teams(2)
    second.number += 1
    waiting = start(first)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(join, second, {"call": "load"}, WAIT, "the save")
        for one in (waiting, other):
            with pytest.raises(RankError, match="rank 1: it has call='load' where rank 0 has 'save'"):
                one.result(WAIT)
