"""House rules, checked on the source: sizes of files and folders, and a reason beside everything that is excused."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_MODULE = 500
FULLEST_FOLDER = 20
MOST_IGNORED_BY_TYPE_CHECKERS = 60
# Each line of these is an error that a type checker has to report.
EXPECTED_ERRORS = "tests/typing/"
# What follows the codes of an exception: its reason, in brackets or as another comment.
NO_REASON = re.compile(r"#\s*(noqa|type: ignore|pyright: ignore)(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[\w\s,-]+\])?\s*$")

# The descriptions of a docstring's arguments: an indented name and a colon below the heading.
ARGUMENTS = re.compile(r"^( *)(?:Args|Attributes):\n((?:\1 {4}.*\n?)+)", re.MULTILINE)


def sources() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("the files of a repository are listed by git")
    return [ROOT / name for name in tracked.stdout.split() if (ROOT / name).exists()]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def unexplained_skips(tree: ast.AST) -> Iterator[int]:
    """The lines of calls that skip a test, or expect it to fail, and do not say why."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        has_reason = any(keyword.arg == "reason" for keyword in node.keywords)
        if name in ("skip", "xfail") and "pytest" in ast.unparse(node.func):
            has_reason = has_reason or bool(node.args)
        elif name not in ("importorskip", "skipif"):
            continue
        if not has_reason:
            yield node.lineno


def test_no_module_is_longer_than_500_lines() -> None:
    long = {shown(path): lines for path in sources() if (lines := len(path.read_text().splitlines())) > LONGEST_MODULE}
    assert long == {}


def test_no_folder_has_more_than_20_modules() -> None:
    counts = Counter(shown(path.parent) for path in sources())
    assert {folder: count for folder, count in counts.items() if count > FULLEST_FOLDER} == {}


def passes_on_names(tree: ast.Module) -> bool:
    """Whether a module lists names in ``__all__`` that it imports from others."""
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return any(isinstance(name, ast.Constant) and name.value in imported for name in ast.walk(node.value))
    return True


def test_only_interfaces_list_their_names() -> None:
    """Privacy is decided by the `__init__.py` of a package and by `extension.py`, which pass on names of modules."""
    modules = [path for path in sources() if "src" in path.parts and path.name != "__init__.py"]
    assert [shown(path) for path in modules if not passes_on_names(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('__all__ = ["a"]\na = 1', False),
        ('from m import a\n__all__ = ["a"]', True),
        ('from m import b\n__all__ = ["a"]\na = b', False),
        ("a = 1", True),
    ],
)
def test_the_scan_finds_lists_of_own_names(text: str, passes: bool) -> None:
    assert passes_on_names(ast.parse(text)) is passes


def test_what_linters_and_type_checkers_ignore_has_a_reason() -> None:
    lines = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in sources()
        if not shown(path).startswith(EXPECTED_ERRORS)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NO_REASON.search(line)
    ]
    assert lines == []


def test_type_checkers_ignore_fewer_than_60_lines() -> None:
    ignored = [
        shown(path)
        for path in sources()
        for line in path.read_text().splitlines()
        if "# type: ignore[" in line and not shown(path).startswith(EXPECTED_ERRORS)
    ]
    assert len(ignored) < MOST_IGNORED_BY_TYPE_CHECKERS


def test_tests_that_do_not_run_say_why() -> None:
    lines = [f"{shown(path)}:{line}" for path in sources() for line in unexplained_skips(ast.parse(path.read_text()))]
    assert lines == []


def small_descriptions(docstring: str) -> list[str]:
    """The names of arguments whose description starts with a small letter."""
    return [
        name
        for indent, section in ARGUMENTS.findall(docstring)
        for name in re.findall(rf"^{indent} {{4}}\*{{0,2}}(\w+): [a-z]", section, re.MULTILINE)
    ]


def test_descriptions_of_arguments_start_with_a_capital() -> None:
    packages = [path for path in sources() if shown(path).startswith("packages/")]
    assert {shown(path): names for path in packages if (names := small_descriptions(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("    Args:\n        a: the first.\n            of all: it goes on\n        b: The second.\n", ["a"]),
        ("Attributes:\n    **c: what it is\n\n    d: is code\n", ["c"]),
        ("    Raises:\n        ImportError: h5py is not installed.\n", []),
    ],
)
def test_the_scan_finds_descriptions_with_a_small_letter(docstring: str, names: list[str]) -> None:
    assert small_descriptions(docstring) == names


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("import a  # noqa: E402", True),
        ("import a  # noqa", True),
        ("x = 1  # noqa: E402, B018", True),
        ("x = 1  # type: ignore[misc, override]", True),
        ("import a  # noqa: E402 (it changes the path)", False),
        ("x = 1  # noqa: B018  # for its error", False),
        ("x = 1  # type: ignore[misc]  # as in torch", False),
    ],
)
def test_the_scan_finds_exceptions_without_a_reason(line: str, bare: bool) -> None:
    assert bool(NO_REASON.search(line)) is bare


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("pytest.importorskip('a')", 1),
        ("pytest.mark.skipif(True)", 1),
        ("pytest.skip()", 1),
        ("pytest.skip('there is none')", 0),
        ("pytest.mark.xfail(reason='why')", 0),
        ("dataset.skip()", 0),
    ],
)
def test_the_scan_finds_skips_without_a_reason(line: str, count: int) -> None:
    assert len(list(unexplained_skips(ast.parse(line)))) == count


# Functions of torch that make a tensor on the default device, which a program may set to a GPU.
MAKERS = frozenset(
    {"tensor", "as_tensor", "arange", "zeros", "ones", "full", "empty", "eye", "linspace", "rand", "randn", "randperm"}
)
# New tensors of a user, which belong on the default device, and stand-ins whose device does not matter.
ON_THE_DEFAULT_DEVICE = {
    "tensordict_class/casting.py": 1,  # the value of a field
    "tensordict_core/containers/unbatched.py": 3,  # instances that hold another tensor
    "tensordict_core/ops/creation.py": 1,  # new_tensor
    "tensordict_core/ops/io/parse.py": 1,  # a tensordict of a text
    "tensordict_core/torch_api/pytree.py": 1,  # a stand-in for vmap
}


def test_tensors_of_the_library_name_their_device() -> None:
    found: Counter[str] = Counter()
    for path in sources():
        name = shown(path)
        if not name.startswith("packages/") or "/testing/" in name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{maker}" for maker in MAKERS}:
                named = {keyword.arg for keyword in node.keywords}
                found[name.partition("/src/")[2]] += not named & {"device", None}  # None: **options
    assert +found == Counter(ON_THE_DEFAULT_DEVICE)


def recursive_closures(tree: ast.AST) -> Iterator[str]:
    """The names of functions inside of others that call themselves: each call of the outer one makes a cycle."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    for outer in ast.walk(tree):
        for inner in ast.walk(outer) if isinstance(outer, kinds) else ():
            if isinstance(inner, kinds) and inner is not outer:
                used = {node.id for line in inner.body for node in ast.walk(line) if isinstance(node, ast.Name)}
                if inner.name in used:
                    yield inner.name


def test_no_closure_calls_itself() -> None:
    """Such a function keeps what it refers to, such as tensors, until Python looks for cycles of references."""
    found = {
        f"{shown(path)}:{name}"
        for path in sources()
        if "src" in path.parts
        for name in recursive_closures(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(x):\n def walk(n):\n  return walk(n - 1)\n return walk(x)", ["walk"]),
        ("def f(x):\n def one(n):\n  return n\n return one(one(x))", []),
        ("def walk(n):\n return walk(n - 1)", []),
        ("class A:\n def walk(self):\n  return self.walk()", []),
    ],
)
def test_the_scan_finds_closures_that_call_themselves(text: str, names: list[str]) -> None:
    assert list(recursive_closures(ast.parse(text))) == names
