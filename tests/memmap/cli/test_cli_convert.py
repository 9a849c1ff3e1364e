"""``tensordict-memmap convert``, ``diff`` in numbers, ``completion`` and ``--version``."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from importlib.metadata import version

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap
from tensordict_memmap_cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    TensorDict({"a": torch.arange(3.0), "b": {"c": torch.ones(2)}}).save("x")


def test_an_unknown_ending_is_refused_unless_the_format_is_given(capsys):
    assert main(["convert", "x", "y.sft"]) == 2
    said = capsys.readouterr().err
    assert "unknown ending '.sft'" in said and "--format" in said and not os.path.exists("y.sft")
    assert main(["convert", "x", "y.sft", "--format", "safetensors"]) == 0
    assert main(["convert", "x", "folder/"]) == 0 and os.path.isdir("folder")


def test_an_existing_target_is_replaced_by_force_only(capsys):
    assert main(["convert", "x", "y.safetensors"]) == 0
    TensorDict({"new": torch.ones(1)}).save("x")
    assert main(["convert", "x", "y.safetensors"]) == 2
    assert "--force" in capsys.readouterr().err
    assert list(load_memmap("y.safetensors").keys()) == ["a", "b"]
    assert main(["convert", "x", "y.safetensors", "--force"]) == 0
    assert list(load_memmap("y.safetensors").keys()) == ["new"]


@pytest.mark.parametrize("target", ["y", "y.safetensors", "y.tdz"])
def test_checksums_are_recorded_on_request(target):
    assert main(["convert", "x", target, "--checksum"]) == 0
    assert main(["verify", target, "--full"]) == 0


def test_a_consolidated_file_has_no_place_for_checksums(capsys):
    assert main(["convert", "x", "y.bin", "--format", "consolidated", "--checksum"]) == 2
    assert "checksums" in capsys.readouterr().err


def test_files_of_torch_save_are_read_without_running_code(capsys):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    torch.save(module.state_dict(), "model.pt")
    assert main(["convert", "model.pt", "model.safetensors"]) == 0
    loaded = load_memmap("model.safetensors")
    assert torch.equal(loaded["0", "weight"], module[0].weight) and len(loaded.keys(True, True)) == 4
    torch.save({"a": torch.ones(1), "a.b": torch.zeros(1), "step": 3}, "odd.pth")
    assert main(["convert", "odd.pth", "odd"]) == 0
    assert sorted(load_memmap("odd").keys()) == ["a", "a.b", "step"]
    torch.save({"a": torch.ones(1)}, "early.pt", _use_new_zipfile_serialization=False)  # as before torch 1.6
    assert main(["convert", "early.pt", "early"]) == 0
    assert load_memmap("early")["a"].item() == 1


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("content", [{"a": _Evil()}, [torch.ones(1)], {0: torch.ones(1)}])
def test_other_objects_than_dicts_of_tensors_and_plain_values_are_refused(capsys, content):
    torch.save(content, "model.pt")
    assert main(["convert", "model.pt", "y"]) == 2
    assert capsys.readouterr().err.startswith("tensordict-memmap: ")
    assert not os.path.exists("ran") and not os.path.exists("y")


def test_errors_of_torch_files_name_the_class_inside_or_the_damage(capsys):
    torch.save({"a": _Evil()}, "model.pt")
    assert main(["convert", "model.pt", "y"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tensordict-memmap: model.pt holds posix.mkdir, which is neither a tensor nor a plain value")
    assert said.count("\n") == 1
    with open("model.pt", "wb") as file:
        file.write(b"nothing")
    assert main(["convert", "model.pt", "y"]) == 2
    assert "model.pt is damaged" in capsys.readouterr().err


def test_a_path_without_a_save_is_named_and_the_remedy(capsys):
    for command, name in itertools.product(("tree", "ls", "verify"), ("nothing", "nothing.safetensors")):
        assert main([command, name]) == 2
        assert "no saved tensordict at" in (said := capsys.readouterr().err) and "give the path" in said


def test_diff_counts_elements_and_gives_the_largest_difference(capsys):
    td = load_memmap("x").clone().unlock_()
    td["a"] += torch.tensor([0, 0.25, -0.5])
    td["b", "c"][1] = torch.nan
    td.save("y")
    assert main(["diff", "x", "y"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "values of b.c: 1 of 2 differ, by at most inf",
        "values of a: 2 of 3 differ, by at most 0.5",
        "2 differences",
    ]


def test_the_version_is_that_of_the_distribution(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"tensordict-memmap {version('tensordict-memmap')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_with_the_commands_and_options(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("verify", "convert", "checksum", "depth"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["tr"], ["tree"]), (["verify", "--f"], ["--full"]), (["convert", "x", "--fo"], ["--force", "--format"])],
)
def test_bash_completes_commands_and_options(capsys, words, expected):
    main(["completion", "bash"])
    line = " ".join(["tensordict-memmap", *words])
    script = f"{capsys.readouterr().out}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n_tensordict_memmap\n"
    done = subprocess.run(
        ["bash", "-c", script + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == expected
