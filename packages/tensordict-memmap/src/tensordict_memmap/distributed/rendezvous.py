"""Rendezvous: the ranks of a save connect, and exchange messages, each with a time limit.

The ranks connect through the store of the process group: each registers under a unique name, and the coordinator
answers under that name. Therefore a rank that does not register can be named in the error, and one that is late, or
registers again after an error, cannot mix up two saves. A rank whose save is cancelled withdraws its registration,
unless the coordinator has already accepted it: then it takes part, and the ranks are told later. Saves are numbered,
and each rank publishes the numbers that it cancelled, so that the others neither wait for it there nor confuse two
saves. Messages between the coordinator and the other ranks then use separate gloo connections: a background save never
uses the process group of the program. A connection fails immediately when its process ends. Connections are kept for
the next save, unless one of them failed.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from tensordict_memmap.distributed.errors import RankError, describe_failure, failure_of
from tensordict_memmap.distributed.team import Team, has_ended, host_name
from tensordict_memmap.engine.future import Cancelled

_LOOK = 0.5
"""Seconds after which a rank that waits for another one on the same machine checks whether that has ended."""

_CANCELLED = "cancelled the save"
"""The failure of a rank that cancelled the save; also of this rank."""

_GAVE_UP = "gave up the save"
"""The failure of a rank that is at a later save, because it cancelled this one."""

_GIVEN_UP = "given_up"
"""The key of the numbers of the saves that the coordinator cancelled before the ranks connected."""

_GRACE = 5.0
"""Seconds that a rank waits for the answer of the coordinator beyond the time that the coordinator has."""


class Link:
    """Messages between the coordinator and the other ranks of a team.

    Args:
        team: The ranks.
        name: A name that occurs once, under which the ranks connect.
        timeout: The longest wait for another rank, in seconds.
        what: The name of the operation, for errors.

    Attributes:
        hosts: The machine of each rank.
        names: A digest of the names of the coordinator, if it has them before the ranks connect.
        told: Whether the coordinator reported a failure to the others.
        own_error: The error that this rank reported.
        is_broken: Whether a message failed, after which the connection is of no use.

    Raises:
        RankError: A rank did not connect.
    """

    def __init__(self, team: Team, name: str, timeout: float, what: str) -> None:
        self.team = team
        self.name = name
        self.timeout = timeout
        self.what = what
        self.hosts: list[str] = []
        self.names: str | None = None
        self.told = False
        self.own_error: Exception | None = None
        self._group: Any = None
        self.is_broken = False
        if team.size == 1:
            return
        try:
            store = PrefixStore(name, team.store)
            self._group = dist.ProcessGroupGloo(store, team.index, team.size, timedelta(seconds=timeout))
        except RuntimeError as error:
            raise RankError(f"the ranks of {what} could not connect: {error}; save again", team.ranks) from error

    def close(self) -> None:
        """Close the connections, so that ranks that wait for this one get an error at once."""
        if self.team.link is self:
            self.team.link = None
        self._group = None

    def send(self, message: bytes, to: int, *, tag: int = 0) -> None:
        """Send a message to the rank with a place in the team."""
        self._move(torch.tensor([len(message)], dtype=torch.int64, device="cpu"), to, tag, sends=True)
        if message:
            self._move(torch.frombuffer(bytearray(message), dtype=torch.uint8), to, tag, sends=True)

    def receive(self, source: int, timeout: float | None = None, *, tag: int = 0) -> bytes:
        """Receive a message from the rank with a place in the team."""
        size = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._move(size, source, tag, timeout)
        message = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        if message.numel():
            self._move(message, source, tag, timeout)
        return message.numpy().tobytes()

    def _move(
        self, tensor: torch.Tensor, peer: int, tag: int, timeout: float | None = None, *, sends: bool = False
    ) -> None:
        start = time.monotonic()
        limit = self.timeout if timeout is None else timeout
        group = self._group
        rank = self.team.ranks[peer]
        if group is None:
            raise RankError(f"{self.what} lost its connections to the other ranks; save again", [rank])
        try:
            work = group.send([tensor], peer, tag) if sends else group.recv([tensor], peer, tag)
            work.wait(timedelta(seconds=limit))
        except RuntimeError as error:
            self.is_broken = True
            late = time.monotonic() - start >= limit * 0.9
            how = f"did not answer within {limit:g} s (timeout=)" if late else "ended or closed its connection"
            raise RankError(f"rank {rank} {how} during {self.what}", [rank]) from error

    # --- the star around the coordinator

    def gather(self, message: bytes) -> list[bytes | RankError]:
        """Send a message to the coordinator, which gets those of all ranks, or the error of one that is lost."""
        if not self.team.is_coordinator:
            self.send(message, 0)
            return []
        found: list[bytes | RankError] = [message]
        deadline = time.monotonic() + self.timeout
        for peer in range(1, self.team.size):
            try:
                found.append(self.receive(peer, max(deadline - time.monotonic(), 0.01)))
            except RankError as error:
                found.append(error)
        return found

    def scatter(self, messages: Sequence[bytes]) -> None:
        """Send each other rank its message; a rank that is lost is left out, and `gather` finds that."""
        for peer in range(1, self.team.size):
            with contextlib.suppress(RankError):
                self.send(messages[peer], peer)

    def from_coordinator(self) -> bytes:
        """Receive a message of the coordinator, which itself may wait for other ranks as long as it may."""
        return self.receive(0, 2 * self.timeout + _GRACE)


@contextlib.contextmanager
def joined(
    team: Team,
    request: dict[str, Any],
    timeout: float,
    what: str,
    cancelled: Cancelled | None = None,
    error: Exception | None = None,
) -> Iterator[Link]:
    """Meet the other ranks of a team for one save, and yield the connections to them.

    Args:
        team: The ranks.
        request: The request of this rank, which has to be the same on all; its item ``"names"`` is a digest of the
            names of its tensors.
        timeout: The longest wait for the other ranks, in seconds.
        what: The name of the operation, for errors.
        cancelled: A function that returns whether the save was cancelled while it waits.
        error: The error because of which this rank cannot take part. The others learn of it; here it is raised.

    Raises:
        RankError: A rank did not arrive in time, has a different request, or cannot take part; all ranks raise it.
        concurrent.futures.CancelledError: ``cancelled`` returned True.
    """
    with team.lock:
        try:
            failure = {} if error is None else {"failure": failure_of(error)}
            link = join(team, request | failure, timeout, what, cancelled)
        except RankError:
            if error is not None:
                raise error from None
            raise
        try:
            yield link
        except BaseException as failed:
            # after an interrupt, or where it is of no use any more, the others get an error at once
            if link.is_broken or not isinstance(failed, Exception):
                link.close()
            raise


def join(team: Team, request: dict[str, Any], timeout: float, what: str, cancelled: Cancelled | None = None) -> Link:
    """Meet the other ranks; the arguments and errors are those of `joined`, and ``request`` says why a rank fails."""
    if team.size == 1:
        if (failure := request.get("failure")) is not None:
            raise describe_failure(what, {team.rank: failure})
        link = Link(team, "", timeout, what)
        link.hosts, link.names = [host_name()], request.get("names")
        return link
    kept = team.link
    own = {**request, "link": "" if kept is None else kept.name, "host": host_name(), "name": secrets.token_hex(8)}
    own |= {"rank": team.rank, "number": team.number, "given_up": team.given_up}
    try:
        meet = _invite if team.is_coordinator else _arrive
        answer = meet(team, own, timeout, what, cancelled)
    except BaseException as error:
        if kept is not None:
            kept.close()
        if isinstance(error, CancelledError):
            _give_up(team, [*team.given_up, own["number"]])
        raise
    if team.given_up:
        _give_up(team, [])
    if kept is not None and kept.name == answer["link"]:
        link = kept
        link.timeout, link.what = timeout, what
    else:
        if kept is not None:
            kept.close()
        link = team.link = Link(team, answer["link"], timeout, what)
    link.hosts, link.names = answer["hosts"], answer["names"]
    team.number = answer["number"]
    link.told, link.own_error = False, None
    return link


def _give_up(team: Team, numbers: list[int]) -> None:
    """Record the saves that this rank cancelled since the ranks connected, and notify those that wait."""
    team.given_up = numbers
    if team.is_coordinator:
        with contextlib.suppress(RuntimeError):
            team.store.set(_GIVEN_UP, orjson.dumps(numbers))


def _arrive(team: Team, own: dict[str, Any], timeout: float, what: str, cancelled: Cancelled | None) -> dict[str, Any]:
    """Tell the coordinator that this rank arrived, and wait for its answer."""
    store, place, reply = team.store, f"arrived/{team.index}", f"answer/{own['name']}"
    content = orjson.dumps(own)
    store.set(place, content)
    deadline = time.monotonic() + timeout + _GRACE
    found, late = _await(team, reply, 0, deadline, timeout, cancelled, own["number"])
    if late is not None:
        left = orjson.dumps({**own, "gone": late})
        limit = time.monotonic() + _GRACE
        while not _replace(store, place, content, left):
            # the coordinator counts on this rank: its answer comes at once, unless it has ended
            found, how = _await(team, reply, 0, time.monotonic() + _LOOK / 10, timeout, None, look=0)
            if how != late_text(timeout) or time.monotonic() >= limit:
                late = how
                break
    if late == _CANCELLED:
        raise CancelledError("the save was cancelled")
    if late == _GAVE_UP:
        raise describe_failure(what, {team.ranks[0]: {"text": _CANCELLED, "cancelled": True}})
    if late is not None:
        raise RankError(
            f"rank {team.ranks[0]}, which coordinates {what}, {late}; call it on all ranks of the group, or pass a "
            "longer timeout=",
            [team.ranks[0]],
        )
    answer: dict[str, Any] = orjson.loads(found)
    with contextlib.suppress(RuntimeError):
        store.delete_key(reply)
    if "failures" in answer:
        raise describe_failure(what, {int(rank): failure for rank, failure in answer["failures"].items()})
    return answer


def _replace(store: Any, place: str, content: bytes, other: bytes) -> bool:
    """Replace the content of a key, unless another rank has replaced it; a store that is lost lets go of it too."""
    try:
        return bool(store.compare_set(place, content.decode(), other.decode()) == other)
    except RuntimeError:
        return True


def _await(
    team: Team,
    key: str,
    index: int,
    deadline: float,
    timeout: float,
    cancelled: Cancelled | None,
    number: int | None = None,
    look: float = _LOOK,
) -> tuple[bytes, str | None]:
    """Wait until a rank has set a key of the store; return its content, or the failure of that rank.

    ``number`` is that of the save for which the answer of the coordinator is awaited, and ``look`` the number of
    seconds after which this rank looks whether the other one has ended.
    """
    # not by a wait in the store, about whose time limits torch prints warnings
    start = looked = time.monotonic()
    while True:
        now = time.monotonic()
        try:
            if team.store.check([key]) and (content := team.store.get(key)):
                return content, None
            if now - looked >= look:
                looked = now
                place = f"process/{index}"
                if team.store.check([place]) and has_ended(team.store.get(place).decode()):
                    return b"", "has ended"
                if number is not None and number in _given_up_by_the_coordinator(team.store):
                    return b"", _GAVE_UP
        except RuntimeError as error:
            return b"", f"cannot be reached, since the store of the process group does not answer ({error})"
        if cancelled is not None and cancelled():
            return b"", _CANCELLED
        if now >= deadline:
            return b"", late_text(timeout)
        time.sleep(max(min(0.0005 + (now - start) / 10, 0.1, deadline - now), 0))


def _given_up_by_the_coordinator(store: Any) -> list[int]:
    return orjson.loads(store.get(_GIVEN_UP)) if store.check([_GIVEN_UP]) else []


def late_text(timeout: float) -> str:
    """Return the part of an error message about a rank that is late."""
    return f"did not arrive within {timeout:g} s (timeout=)"


def _await_rank(
    team: Team, index: int, own: dict[str, Any], deadline: float, timeout: float, cancelled: Cancelled | None
) -> tuple[bytes, str | None]:
    """Wait until a rank has arrived for the same save; return its message, or its failure.

    If a rank is at another save, although neither rank cancelled one, one of the two has skipped a save; after a while
    its answer is accepted as it is.
    """
    store, place = team.store, f"arrived/{index}"
    start = time.monotonic()
    while True:
        content, how = _await(team, place, index, deadline, timeout, cancelled)
        if how is not None:
            return b"", how
        found: dict[str, Any] = orjson.loads(content)
        if own["number"] in found["given_up"]:
            return b"", _GAVE_UP
        if "gone" in found:
            if found["gone"] == _CANCELLED and found["number"] == own["number"]:
                return b"", _GAVE_UP
            _replace(store, place, content, b"")
        elif found["number"] in own["given_up"]:
            if _replace(store, place, content, b""):
                _answer(store, found, {"failures": {str(team.rank): {"text": _CANCELLED, "cancelled": True}}})
        else:
            waits = (
                _GRACE if _disagreement({0: own, index: found}) else _LOOK if found["number"] != own["number"] else 0
            )
            if time.monotonic() - start >= waits or found.get("failure") is not None:
                return content, None
        if cancelled is not None and cancelled():
            return b"", _CANCELLED
        time.sleep(0.01)


def _answer(store: Any, arrived: dict[str, Any], answer: dict[str, Any]) -> None:
    store.set(f"answer/{arrived['name']}", orjson.dumps(answer))


def _invite(team: Team, own: dict[str, Any], timeout: float, what: str, cancelled: Cancelled | None) -> dict[str, Any]:
    """Wait for all ranks, and answer each."""
    store = team.store
    deadline = time.monotonic() + timeout
    failures: dict[int, dict[str, Any]] = {}
    while True:
        contents, late = _await_all(team, own, deadline, timeout, cancelled)
        arrived = {0: own} | {index: orjson.loads(content) for index, content in contents.items()}
        failures = _failures(team, arrived, late)
        # from here on none of them withdraws; if one has, the others may again, until it arrives for another save
        taken = [index for index, content in contents.items() if _replace(store, f"arrived/{index}", content, b"")]
        if failures or len(taken) == len(contents):
            break
        for index in taken:
            store.set(f"arrived/{index}", contents[index])
    answer: dict[str, Any] = {"failures": {str(rank): failure for rank, failure in failures.items()}}
    if not failures:
        links = {one["link"] for one in arrived.values()}
        name = links.pop() if len(links) == 1 and "" not in links else secrets.token_hex(8)
        hosts = [arrived[index]["host"] for index in range(team.size)]
        answer = {"link": name, "hosts": hosts, "names": own.get("names"), "number": own["number"]}
    for index in taken:
        _answer(store, arrived[index], answer)
    if failures:
        raise describe_failure(what, failures)
    return answer


def _await_all(
    team: Team, own: dict[str, Any], deadline: float, timeout: float, cancelled: Cancelled | None
) -> tuple[dict[int, bytes], dict[int, str]]:
    """Wait for all other ranks; return the messages of those that arrived, and the failures of the others, by place."""
    contents: dict[int, bytes] = {}
    late: dict[int, str] = {}
    for index in range(1, team.size):
        content, how = _await_rank(team, index, own, deadline, timeout, cancelled)
        if how is None:
            contents[index] = content
        else:
            late[index] = how
            if how != late_text(timeout):  # nothing comes of this save: those that wait learn it soon
                deadline = min(deadline, time.monotonic() + _LOOK)
    return contents, late


def _failures(team: Team, arrived: dict[int, dict[str, Any]], late: dict[int, str]) -> dict[int, dict[str, Any]]:
    """Why a save cannot begin, by rank."""
    gone = [team.ranks[index] for index, how in late.items() if how == _GAVE_UP]
    if _CANCELLED in late.values():
        gone.append(team.rank)
    if gone:
        return {rank: {"text": _CANCELLED, "cancelled": True} for rank in gone}
    failures = {one["rank"]: one["failure"] for one in arrived.values() if one.get("failure") is not None}
    failures |= {team.ranks[index]: {"text": f"it {how}", "cancelled": False} for index, how in late.items()}
    return failures or _disagreement(arrived)


_OWN_FIELDS = frozenset({"link", "host", "name", "names", "number", "given_up", "rank", "failure"})
"""The items of a message that describe the rank and not its save."""


def _disagreement(arrived: dict[int, dict[str, Any]]) -> dict[int, dict[str, object]]:
    """Return the failure of ranks whose request differs from that of the coordinator."""
    first = arrived[0]
    for one in arrived.values():
        for field in first.keys() - _OWN_FIELDS:
            if one.get(field) != first[field]:
                text = f"it has {field}={one.get(field)!r} where rank {first['rank']} has {first[field]!r}"
                return {one["rank"]: {"text": text, "cancelled": False}}
    return {}
