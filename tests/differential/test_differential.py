"""Random programs give the same on the reference and on these packages, or docs/differences.md says why not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensordict", reason="the reference is not installed")
import torch

import tensordict

if "tensordict_core" in tensordict.TensorDict.__module__:
    pytest.skip("the suite stands in for the reference", allow_module_level=True)

from fuzzing import calls, predicates, programs, rules, structures
from fuzzing.oracles import containers as oracles
from fuzzing.oracles.invariants import names_follow_the_index
from fuzzing.outcomes import describe, differences
from fuzzing.search import Findings, cluster, open_clusters, search

SEED = 20
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


@pytest.fixture(autouse=True)
def short_tracebacks(monkeypatch):
    # a traceback would show what the reference does inside
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)


def some_programs() -> list[list[str]]:
    theirs, ours = programs.libraries()
    names = calls.call_names(ours.TensorDict, theirs.TensorDict)
    made = (calls.program(random.Random(f"{SEED}-{i}"), ours.TensorDict, theirs.TensorDict, names) for i in range(200))
    return [program.lines() for program in made]


def report(findings: Findings) -> str:
    theirs, ours = programs.libraries()
    spaces = programs.namespace(theirs), programs.namespace(ours)
    lines = [f"{findings.unexplained} of {findings.calls} calls differ in a way that is neither explained nor known"]
    for key, found in list(findings.clusters.items())[:5]:
        smallest = programs.shrink(found[0], *spaces, cluster)
        lines += [f"{len(found)} times {key}:", *smallest.lines(), *map(str, programs.compare(smallest, *spaces)[:2])]
    return "\n".join(lines)


def test_some_thousand_random_programs_show_no_new_difference():
    findings = search(SEED, range(2500), known=open_clusters())
    assert findings.calls == 2500 and not findings.clusters, report(findings)


@pytest.mark.long
def test_a_hundred_thousand_random_programs_show_no_new_difference():
    findings = search(SEED, range(100_000), known=open_clusters())
    print(f"{findings.calls} calls, {sum(findings.known.values())} known, {sum(findings.explained.values())} explained")
    assert not findings.clusters, report(findings)


def test_every_rule_names_a_row_of_the_page():
    cells = [line.split(" | ")[0].removeprefix("| ") for line in DIFFERENCES.read_text().splitlines()]
    for rule in (*rules.RULES, *rules.ORACLES):
        assert any(cell.startswith(rule.row) for cell in cells), f"no row starts with {rule.row!r}"


def test_a_seed_and_a_number_make_the_same_program():
    theirs, ours = programs.libraries()
    names = calls.call_names(ours.TensorDict, theirs.TensorDict)
    first, second = (
        calls.program(random.Random(f"{SEED}-7"), ours.TensorDict, theirs.TensorDict, names).lines() for _ in range(2)
    )
    assert first == second


def test_programs_do_not_depend_on_the_seed_of_hashes():
    made = [
        subprocess.run(
            [sys.executable, "-c", "import test_differential as t; print(t.some_programs())"],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] == f"{some_programs()}\n"


def test_leaves_on_two_devices_are_a_difference():
    theirs, ours = (describe(torch.zeros(2, device=device), {}) for device in ("meta", "cpu"))
    assert [(found.kind, found.theirs, found.ours) for found in differences(theirs, ours)] == [("on", "meta", "cpu")]


def test_a_difference_is_found_and_shrunk_to_what_it_needs():
    theirs, ours = programs.libraries()
    spaces = programs.namespace(theirs), programs.namespace(ours)
    spaces[1]["setitem"] = lambda x, index, value: x  # a write that is lost
    names = ["setitem key"]
    made = (calls.program(random.Random(f"0-{i}"), ours.TensorDict, theirs.TensorDict, names) for i in range(100))
    differing = [program for program in made if cluster(program, programs.compare(program, *spaces))]
    assert differing
    smallest = programs.shrink(differing[0], *spaces, cluster)
    assert programs.compare(smallest, *spaces) and len(str(smallest.lines())) <= len(str(differing[0].lines()))


def oracle(program: calls.Program) -> set[str]:
    """The starts of the rows that oracles alone find for the differences of a program."""
    oracles.DECIDED.clear()
    found = programs.compare(program, *predicates.spaces())
    assert found
    return {next((r.row for r in rules.ORACLES if r.matches(program, d)), "") for d in found}


def test_an_oracle_explains_what_the_reference_does_with_a_simpler_container_only(monkeypatch):
    entries = {"x": structures.Tensor((1,)), "y": structures.Tensor((1,), start=1)}
    instance = structures.Node("class", (), entries, suffix=".lock_()")
    write = calls.Call("setitem td", "setitem(x, @)", ((None, "I[None]"), (None, "x[I[None]] * 2")))
    locked = calls.Program(instance, write)
    assert oracle(locked) == {"operations of a tensorclass that the reference refuses"}
    stack = structures.Node("lazy", (3, 1, 3), elements=(structures.Node("dense", (1, 3), {}),) * 3)
    empty = calls.Program(stack, calls.Call("getitem index", "x[@]", ((None, "I[np.array([1, 1]), 1:]"),)))
    assert oracle(empty) == {"operations of a lazy stack that the reference does otherwise"}
    part = structures.Node("dense", (2,), {"a": structures.Tensor((2,))})
    written = calls.Program(
        structures.Node("lazy", (3, 2), elements=(part,) * 3),
        calls.Call("setitem value", "setitem(x, @)", ((None, "0"), (None, "1.0"))),
    )
    assert not programs.compare(written, *predicates.spaces())
    monkeypatch.setitem(predicates.spaces()[1], "setitem", lambda x, index, value: x)  # a write that is lost
    assert oracle(locked) == oracle(written) == {""}


def test_rows_that_are_rolled_to_a_wrong_place_are_not_explained(monkeypatch):
    elements = [structures.Node("dense", (), {"a": structures.Tensor((), start=i)}) for i in range(3)]
    elements[2].entries["e"] = structures.Tensor(())
    roll = calls.Call("roll", "x.roll(@)", ((None, "1"), (None, "0"), ("inplace", "True")))
    program = calls.Program(structures.Node("lazy", (3,), elements=tuple(elements)), roll)
    found = programs.compare(program, *predicates.spaces())
    assert found and all(oracles.rows_move(program, difference) for difference in found)
    assert cluster(program, found) is None
    monkeypatch.setattr(programs.libraries()[1].LazyStackedTensorDict, "roll", lambda self, *shifts, inplace: self)
    assert cluster(program, programs.compare(program, *predicates.spaces()))


def test_a_wrong_result_of_a_tensor_that_is_passed_by_name_is_not_explained(monkeypatch):
    x = structures.Node("dense", (2,), {"a": structures.Tensor((2, 2), start=1)})
    program = calls.Program(x, calls.Call("mod", "x.mod(@)", (("other", "t([2], start=2)"),)))
    found = programs.compare(program, *predicates.spaces())
    assert found and cluster(program, found) is None
    monkeypatch.setattr(programs.libraries()[1].TensorDict, "mod", lambda self, other: self.clone())
    assert cluster(program, programs.compare(program, *predicates.spaces()))


def test_one_of_two_faults_explains_an_error_and_no_other_error_does():
    x = structures.Node("dense", (2,), {"a": structures.Tensor((2,))})
    write = calls.Call("setitem value", "setitem(x, I[np.array([3])], @)", ((None, "'text'"),))
    program = calls.Program(x, write)
    (found,) = programs.compare(program, *predicates.spaces())
    assert found.kind == "IndexError > SourceError" and cluster(program, [found]) is None
    names_one_fault = next(rule for rule in rules.ORACLES if rule.row == "a call with two faults")
    assert names_one_fault.matches(program, found)
    assert not names_one_fault.matches(program, replace(found, ours="SourceError: the batch sizes differ"))


def made(call: str, x: structures.Node, *arguments: tuple[str | None, str], **operands: structures.Node):
    """A program that calls a method."""
    return calls.Program(x, calls.Call(call, f"x.{call}(@)", arguments), operands)


VALUE = structures.Node("dense", (), {"n": structures.Value("text", ())}, suffix=".lock_()")
NAMED = structures.Node("dense", (2,), {"a": structures.Tensor((2,))}, names=("x",))
FLOATS = structures.Node("dense", (2,), {"a": structures.Tensor((2,)), "b": structures.Tensor((2,), start=3)})
FEWER = structures.Node("dense", (2,), {"b": structures.Tensor((2,), start=5)})
LONGER = structures.Node("dense", (), {"n": structures.Node("dense", (2,), {"b": structures.Tensor((2, 3))})})
UNBATCHED = structures.Node("dense", (1,), {"b": structures.Unbatched((5,))})

EXPLAINED = {
    "an equivalent call": (
        made("update", VALUE, (None, "{'n': t([])}"), ("inplace", "True")),
        "two ways to write one operation",
    ),
    "operands with all keys": (
        made("clamp_min", FLOATS, (None, "y"), (None, "True"), y=FEWER),
        "two ways to write one operation",
    ),
    "names of a value": (
        made("setdefault", NAMED, (None, "'s'"), (None, "['u', 'v']")),
        "names, devices and locks of nested",
    ),
    "each entry": (
        made("apply_", LONGER, (None, "lambda a: a[1:]"), ("call_on_nested", "True")),
        "`td.apply_(fn, call_on_nested=True)`",
    ),
    "a tensor in place of an unbatched one": (
        made(
            *("apply_", UNBATCHED, (None, "lambda a, *o: a.clone()"), (None, "y"), ("batch_size", "[1]")),
            y=structures.Node("dense", (1,), {}),
        ),
        "`UnbatchedTensor` entries of reductions, `apply` with a batch size",
    ),
}


@pytest.mark.parametrize(("program", "row"), EXPLAINED.values(), ids=EXPLAINED)
def test_an_oracle_explains_what_it_can_prove(program, row):
    assert row in oracle(program)


@pytest.mark.parametrize("case", sorted(EXPLAINED.keys() - {"a tensor in place of an unbatched one"}))
def test_no_oracle_explains_a_call_that_is_lost(case, monkeypatch):
    program, _ = EXPLAINED[case]
    name = program.call.name
    monkeypatch.setattr(programs.libraries()[1].TensorDict, name, lambda self, *given, **options: self)
    oracles.DECIDED.clear()
    assert cluster(program, programs.compare(program, *predicates.spaces()))


def test_names_after_an_index_are_compared_with_the_dimensions_that_it_keeps():
    x = structures.Node("dense", (4, 1, 2), {}, names=("x", "y", "z"))
    index = "I[torch.tensor([3]), 0:2, [0, 1]]"
    program = calls.Program(x, calls.Call("getitem index", "x[@]", ((None, index),)))
    found = next(d for d in programs.compare(program, *predicates.spaces()) if d.kind == "names")
    assert names_follow_the_index(program, found)
    assert not names_follow_the_index(program, replace(found, ours="('x', 'y')"))


def test_an_oracle_compares_the_names_that_differ_too(monkeypatch):
    element = structures.Node("dense", (), {"s": structures.Value("text", ()), "a": structures.Tensor(())})
    stack = structures.Node("lazy", (2,), elements=(element, element))
    program = calls.Program(stack, calls.Call("copy", "assign(x, 'names', ['x']).clone()"))
    assert not programs.compare(program, *predicates.spaces())
    clone = programs.libraries()[1].LazyStackedTensorDict.clone
    monkeypatch.setattr(programs.libraries()[1].LazyStackedTensorDict, "clone", lambda self: clone(self).rename(None))
    found = programs.compare(program, *predicates.spaces())
    assert {d.kind for d in found} == {"names"} and cluster(program, found)


def test_the_programs_cover_the_public_methods():
    theirs, ours = programs.libraries()
    names = set(calls.call_names(ours.TensorDict, theirs.TensorDict))
    assert {"add", "apply", "update_", "gather", "to_dict", "getitem index", "torch.stack"} <= names and len(
        names
    ) > 250
