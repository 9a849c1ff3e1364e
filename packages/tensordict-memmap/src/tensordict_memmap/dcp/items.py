"""Items: converts the write items of DCP's plans to shard plans and to the schema of the files.

The schema follows the paths of the state dict, which the default planner stores in addition to the joined names: it is
that of a tensordict with the same nested keys. The keys of list elements are their numbers, and `LISTS` distinguishes
them from dictionary keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from xxhash import xxh3_128_hexdigest

from tensordict_memmap.distributed.assign import Assignment
from tensordict_memmap.distributed.placements import Part
from tensordict_memmap.distributed.plan import Box, Kind, ShardPlan, stand_in
from tensordict_memmap.formats.safetensors.header import Form
from tensordict_memmap.schema.node import Dense, Leaf, Path, Value, show
from tensordict_memmap.schema.plan import check_depth

LISTS = "tensordict_dcp_lists"
"""The name of the text in a safetensors file with the nested keys of the nodes that were lists, as JSON."""

LISTS_FILE = "tensordict.dcp.json"
"""The file of a tree with the same."""

StatePath = tuple[str | int, ...]
"""The path of an entry of a state dict; numbers are those of elements of lists."""


def shard_plan(items: Iterable[WriteItem], known: list[str] | None = None) -> tuple[ShardPlan, list[str]]:
    """Return the parts of tensors that a plan writes, and the names of its non-tensor values.

    Args:
        items: The write items of one rank.
        known: The names of the tensors of another rank, each once; the plan shares them if they are the same.

    >>> from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
    >>> plan, values = shard_plan(create_default_local_save_plan({"a": torch.zeros(2, 3), "b": 1}, True).items)
    >>> plan.names, plan.kinds[0].boxes, values
    (['a'], (Box(offset=(0, 0), size=(2, 3)),), ['b'])
    """
    plan = ShardPlan()
    values: list[str] = []
    names, column, kinds = plan.names, plan.column, plan.kinds
    numbers: dict[Any, int] = {}
    for item in items:
        data = item.tensor_data
        if data is None:
            values.append(item.index.fqn)
            continue
        chunk = data.chunk
        # sizes are tuples: nothing is made for an item of a form that was seen before
        form = (data.properties.dtype, data.size, chunk.offsets, chunk.sizes)
        number = numbers.get(form)
        if number is None:
            number = numbers[form] = len(kinds)
            box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
            kinds.append(Kind(data.properties.dtype, tuple(data.size), (box,) if box.volume else ()))
        names.append(item.index.fqn)
        column.append(number)
    if known is not None and names == known:
        plan.names = known
    elif len(set(names)) < len(names):
        plan = _joined(plan)
    return plan, values


def _joined(plan: ShardPlan) -> ShardPlan:
    """Return the same plan with each name once, where a rank holds several parts of a tensor."""
    rows: dict[str, list[Kind]] = {}
    for name, number in zip(plan.names, plan.column, strict=True):
        rows.setdefault(name, []).append(plan.kinds[number])
    made = ShardPlan()
    for name, kinds in rows.items():
        made.add(name, kinds[0].dtype, kinds[0].shape, [box for kind in kinds for box in kind.boxes])
    return made


def digest_of(names: Iterable[str]) -> str:
    """Return a digest of names in their order.

    >>> digest_of(["a", "b"]) == digest_of(["b", "a"])
    False
    """
    return xxh3_128_hexdigest("\0".join(names).encode("utf-8", "surrogatepass"))


def paths_of(plans: Iterable[SavePlan], names: Iterable[str]) -> dict[str, StatePath]:
    """Return the paths of names in the state dict, which the default planner puts into the plans; others are one key.

    >>> paths_of([SavePlan([], planner_data={"a.b": ("a", "b")}), SavePlan([])], ["a.b", "c.d"])
    {'a.b': ('a', 'b'), 'c.d': ('c.d',)}
    """
    left, found = list(names), dict[str, StatePath]()
    for plan in plans:
        data = plan.planner_data if isinstance(plan.planner_data, Mapping) else {}
        found |= {name: data[name] for name in left if data.get(name)}
        left = [name for name in left if name not in found]
        if not left:
            break
    return found | {name: (name,) for name in left}


def _clash(key: Path) -> ValueError:
    return ValueError(
        f"key {show(key)} is both an entry and a node on some ranks, and a file holds one of them; rename one"
    )


class Described:
    """The tensors and values of a save as a schema, for the formats of distributed saves.

    Args:
        assignment: The tensors and what each rank writes.
        values: The names of the non-tensor values.
        paths: The paths in the state dict by joined name.

    Attributes:
        schema: The schema.
        values: The node of each value by its name, whose ``value`` the caller sets.
        lists: The nested keys of nodes that were lists.

    Raises:
        ValueError: An entry has the key of a node; the error names it.
    """

    def __init__(self, assignment: Assignment, values: Iterable[str], paths: Mapping[str, StatePath]) -> None:
        self.schema = Dense((), "", ())
        self._assignment = assignment
        self._nodes: dict[StatePath, Dense] = {(): self.schema}
        self._order: list[int] = []
        self.lists: list[Path] = []
        leaves = []
        for tensor, name in enumerate(assignment.names):
            dtype, shape = assignment.kind(tensor)
            leaves.append(Leaf((), "", dtype, shape, source=stand_in(dtype, shape)))
            self._put(paths[name], leaves[-1])
        self._numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
        self.values = {name: Value((), "", ()) for name in values}
        for name, value in self.values.items():
            self._put(paths[name], value)
        check_depth(self.schema)

    def _put(self, path: StatePath, entry: Leaf | Value | Dense) -> None:
        entry.key = tuple(map(str, path))
        node, name = self._node(path[:-1]), str(path[-1])
        if name in node.entries:
            raise _clash(entry.key)
        if isinstance(path[-1], int) and not node.entries:
            self.lists.append(node.key)
        node.entries[name] = entry

    def _node(self, path: StatePath) -> Dense:
        found = self._nodes.get(path)
        if found is None:
            found = self._nodes[path] = Dense((), "", ())
            self._put(path, found)
        return found

    @property
    def names(self) -> list[str]:
        """The names of the tensors in the state dict."""
        return self._assignment.names

    # --- what formats use of the parts of a rank

    def plan(self, rows: Sequence[Leaf], forms: Sequence[Form] | None) -> tuple[ShardPlan, list[list[Part]]]:
        """Take the order of the tensors in the files; the coordinator has no parts itself."""
        self._order = [self._numbers[id(leaf)] for leaf in rows]
        return ShardPlan(), []

    def ordered(self, name_of: Callable[[int], str]) -> Assignment:
        """Return the assignment in the order of the format, which may lack empty tensors.

        Args:
            name_of: The name in the file of the tensor at a position.
        """
        whole, order = self._assignment, self._order
        made = Assignment([name_of(n) for n in range(len(order))], whole.kinds, [whole.column[n] for n in order])
        for share in whole.shares:
            made.shares.append(share.of(order))
        return made

    def places(self) -> list[int]:
        """For each tensor of the assignment its position in the order of the format; -1 where that lacks it."""
        found = [-1] * len(self._assignment.names)
        for position, number in enumerate(self._order):
            found[number] = position
        return found
