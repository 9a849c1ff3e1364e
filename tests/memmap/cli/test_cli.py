"""Command line: printed text, JSON and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap
from tensordict_memmap_cli.main import main


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Changes to a new folder that holds a save ``x``."""
    monkeypatch.chdir(tmp_path)
    TensorDict({"a": torch.zeros(3, 2), "b": {"c": torch.arange(2, dtype=torch.int8)}, "s": "text"}).save("x")
    return tmp_path


def run(capsys, *words):
    """Runs a command and returns its exit code and output."""
    code = main(words)
    return code, capsys.readouterr()


def test_the_tree_shows_keys_shapes_dtypes_and_bytes(saved, capsys):
    code, said = run(capsys, "tree", "x")
    assert code == 0
    assert said.out.splitlines() == [
        "├─ a     float32  [3, 2]  24 B",
        "├─ b     1 entry           2 B",
        "│  └─ c  int8     [2]      2 B",
        "└─ s     value",
        "3 entries, 26 B, tree",
    ]
    assert run(capsys, "tree", "x", "--depth", "1")[1].out.splitlines() == [
        "├─ a  float32  [3, 2]  24 B",
        "├─ b  1 entry           2 B",
        "└─ s  value",
        "3 entries, 26 B, tree",
    ]
    assert run(capsys, "ls", "x")[1].out.splitlines() == [
        "a    float32  [3, 2]  24 B",
        "b.c  int8     [2]      2 B",
        "s    value",
    ]
    code, said = run(capsys, "tree", "x", "--json", "--keys", "b.*")
    assert code == 0
    assert json.loads(said.out) == {
        "path": "x",
        "format": "tree",
        "bytes": 2,
        "entries": [{"key": ["b", "c"], "dtype": "int8", "shape": [2], "bytes": 2}],
    }


def test_nested_tensors_are_shown_without_a_shape(saved, capsys):
    TensorDict({"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)}).save("n")
    assert run(capsys, "ls", "n")[1].out.splitlines() == ["n  float32, jagged"]


def test_invisible_keys_are_quoted_and_wide_ones_take_two_columns(saved, capsys):
    TensorDict({" ": torch.zeros(1), "名前": torch.zeros(1), "e\u0301": torch.zeros(1)}).save("keys")
    assert run(capsys, "ls", "keys")[1].out.splitlines() == [
        "' '   float32  [1]  4 B",
        "名前  float32  [1]  4 B",
        "e\u0301     float32  [1]  4 B",
    ]


def test_a_terminal_without_unicode_gets_plain_lines_and_escapes(saved):
    TensorDict({"b": {"e": torch.zeros(1)}, "é": "text"}).save("keys")
    command = [sys.executable, "-m", "tensordict_memmap_cli", "tree", "keys"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True)
    assert done.stdout.decode("ascii").splitlines()[:3] == [
        "|- b     1 entry       4 B",
        "|  `- e  float32  [1]  4 B",
        "`- \\xe9     value",
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize(("command", "code"), [("tree", 2), ("ls", 2), ("verify", 1)])
def test_a_pipe_without_a_writer_is_refused_at_once(saved, command, code):
    os.mkfifo("pipe")
    words = [sys.executable, "-m", "tensordict_memmap_cli", command, "pipe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code and "pipe" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz", "x.bin"])
def test_verify_accepts_whole_saves_and_reports_damaged_ones(saved, capsys, name):
    if name != "x":
        assert (
            main(
                ["convert", "x", name, "--format", {"z": "archive", "s": "safetensors", "n": "consolidated"}[name[-1]]]
            )
            == 0
        )
    assert run(capsys, "verify", name)[0] == 0
    path = saved / name / "a.memmap" if name == "x" else saved / name
    path.write_bytes(path.read_bytes()[:-4])
    code, said = run(capsys, "verify", name, "--json")
    assert code == 1 and json.loads(said.out)["fine"] is False and json.loads(said.out)["problem"]
    assert not said.err


def test_verify_full_finds_a_flipped_bit(saved, capsys):
    TensorDict({"a": torch.zeros(1000)}).save("sums", checksum=True)
    assert run(capsys, "verify", "sums", "--full")[0] == 0
    path = saved / "sums" / "a.memmap"
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(bytes(data))
    assert run(capsys, "verify", "sums")[0] == 0
    code, said = run(capsys, "verify", "sums", "--full")
    assert code == 1 and "'a'" in said.out


def test_tree_and_verify_unpickle_nothing(saved, capsys):
    with pytest.warns(UserWarning, match="pickled"):
        TensorDict({"odd": object, "a": torch.ones(1)}).save("odd")
    assert run(capsys, "tree", "odd")[0] == 0 and run(capsys, "verify", "odd")[0] == 0
    code, said = run(capsys, "convert", "odd", "odd.safetensors")
    assert code == 2 and "allow_pickle" in said.err


def test_convert_and_diff(saved, capsys):
    assert run(capsys, "convert", "x", "y.safetensors") == (0, ("", ""))
    assert run(capsys, "diff", "x", "y.safetensors") == (0, ("", ""))
    td = load_memmap("y.safetensors").clone().unlock_()
    td["b", "c"][0] = 5
    td["new"] = torch.ones(1)
    td["a"] = torch.zeros(3, dtype=torch.int16)
    td.save("z")
    code, said = run(capsys, "diff", "x", "z")
    assert code == 1
    assert said.out.splitlines() == [
        "only in z: new",
        "shape of a: [3, 2] and [3]",
        "dtype of a: torch.float32 and torch.int16",
        "values of b.c: 1 of 2 differ, by at most 5",
        "4 differences",
    ]
    code, said = run(capsys, "diff", "x", "z", "--json", "--structure")
    record = json.loads(said.out)
    assert code == 1 and record["only_in_b"] == [["new"]] and record["values"] == [] and record["same"] is False


@pytest.mark.parametrize(
    "words",
    [
        ["tree", "absent"],
        ["verify", "absent"],
        ["diff", "x", "absent"],
        ["convert", "absent", "y"],
        ["tree", "absent.safetensors"],
        ["tree", "x", "--keys", "nothing"],
        ["convert", "x", ""],
    ],
)
def test_failed_commands_print_an_error_and_exit_with_2(saved, capsys, words):
    code, said = run(capsys, *words)
    assert code == 2 and said.err.startswith("tensordict-memmap: ") and not said.out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["tree"],
        ["tree", "x", "--depth", "0"],
        ["tree", "x", "--depth", "all"],
        ["convert", "x", "y", "--format", "zip"],
        ["convert", "x", "y", "--shard-size", "-1"],
    ],
)
def test_wrong_arguments_exit_with_2(saved, capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2


def test_it_runs_as_a_module(saved):
    done = subprocess.run(
        [sys.executable, "-m", "tensordict_memmap", "tree", "x"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.endswith("3 entries, 26 B, tree\n"), done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "tensordict_memmap", "diff", "x", "absent"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "absent" in done.stderr
