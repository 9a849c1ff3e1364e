"""Reference: writes a page for each class and topic before Sphinx reads, and links names in guides to them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext import intersphinx
from sphinx.transforms import SphinxTransform
from topics import DATA, FUNCTIONS, GUIDES, METHODS, Topic

PACKAGES = tuple(FUNCTIONS)
CONTAINERS = "tensordict_core.TensorDict"
CALL = re.compile(r"(?:(?P<owner>[A-Za-z_][\w.]*)\.)?(?P<name>[A-Za-z_]\w*)(?:\(.*\))?")
INSTANCES = {"td", "data", "batch", "params", "stack", "nested", "lazy", "rows", "disk", "stored", "source", "row"}
"""Names of tensordicts in the guides: `td.select` is a method of `TensorDict`."""


def owner_of(owner: type, name: str) -> type:
    """Returns the class that defines a member; a class below it may hold it once more."""
    member = inspect.getattr_static(owner, name)
    return [base for base in owner.__mro__ if vars(base).get(name) is member][-1]


def documented(member: object) -> bool:
    """Returns whether a member has a docstring of its own; the default of a field has that of its type."""
    if (
        type(member).__module__ == "builtins"
        and not isinstance(member, type | property)
        and not inspect.isroutine(member)
    ):
        return False
    function: Any = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    function = function.fget if isinstance(function, property) else function
    return bool(getattr(function, "__doc__", None))


def methods_of_containers() -> dict[str, str]:
    """Returns each public method of `TensorDict` with the module of core that defines it."""
    import tensordict_core

    td = tensordict_core.TensorDict
    names = [name for name in dir(td) if not name.startswith("_")]
    return {name: owner_of(td, name).__module__.removeprefix("tensordict_core.") for name in names}


def of_torch(owner: type, name: str) -> bool:
    """Returns whether a member implements one of a base class of another library, such as `torch.nn.Module`."""
    return any(name in vars(base) for base in owner.__mro__ if base.__module__.split(".")[0] not in PACKAGES)


def directive(owner: type, name: str) -> tuple[str, str]:
    """Returns a member's name with the directive that documents it."""
    if isinstance(inspect.getattr_static(owner, name), property):
        return name, "autoproperty"
    return name, "automethod" if inspect.isroutine(getattr(owner, name)) else "autoattribute"


def own_members(owner: type) -> list[str]:
    """Returns the public members of a class, less those that every container has and those of other libraries."""
    found = []
    for name in dir(owner):
        if name.startswith("_"):
            continue
        home = owner_of(owner, name)
        ours = home.__module__.split(".")[0] in PACKAGES
        shared = home.__module__.startswith("tensordict_core.") and (home is not owner or name in SHARED)
        forwarded = home.__module__ == "tensordict_class.forward"  # the methods of containers, once more
        if ours and not shared and not forwarded and documented(inspect.getattr_static(owner, name)):
            found.append(name)
    return found


SHARED = methods_of_containers()


def public(package: str) -> dict[str, object]:
    """Returns the public names of a package."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def kinds(names: Iterable[str]) -> list[tuple[str, str]]:
    """Returns methods of `TensorDict` with their directives."""
    import tensordict_core

    return [directive(tensordict_core.TensorDict, name) for name in names]


def pages() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the name, the template and the values of every page of the reference."""
    left = dict(SHARED)
    for topic in METHODS:
        methods = [name for name, home in left.items() if home.startswith(topic.names)]
        for name in methods:
            del left[name]
        yield f"tensordict-{topic.slug}", "methods", {"topic": topic, "names": methods, "members": kinds(methods)}
    if left:
        more = Topic("more", "More methods", "Other methods of containers.", ())
        yield "tensordict-more", "methods", {"topic": more, "names": list(left), "members": kinds(left)}
    for package in PACKAGES:
        names = public(package)
        aliases = {name for name, value in names.items() if getattr(value, "__name__", name) != name}
        functions = {n for n, v in names.items() if not inspect.isclass(v) and n not in DATA}
        for name, value in names.items():
            if inspect.isclass(value):
                members = [] if value.__qualname__ in ("TensorDict", "TensorCollection") else own_members(value)
                members = [directive(value, member) for member in members]
                shown = {"package": package, "name": name, "members": members, "guide": GUIDES.get(name, "")}
                shown["topics"] = METHODS if name == "TensorDict" else ()
                shown["alias"] = value.__name__ if name in aliases else ""
                yield f"{package.removeprefix('tensordict_')}-{name}", "class", shown
        for topic in FUNCTIONS[package]:
            known = [name for name in topic.names if name in functions]
            functions -= set(known)
            yield topic.slug, "functions", {"package": package, "topic": topic, "names": known}
        if functions:
            more = Topic("more", "More functions", "Other functions of the package.", ())
            values = {"package": package, "topic": more, "names": sorted(functions)}
            yield f"{package.removeprefix('tensordict_')}-more", "functions", values
    data = {name: DATA[name] for name in public("tensordict_core") if name in DATA}
    yield "core-types", "data", {"package": "tensordict_core", "data": data}


def contents(found: list[tuple[str, str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the page of contents of each package."""
    for package in PACKAGES:
        mine = [(page, kind, values) for page, kind, values in found if values.get("package") == package]
        methods = [values for _, kind, values in found if kind == "methods"] if package == "tensordict_core" else []
        classes = [(values["name"], page) for page, kind, values in mine if kind == "class"]
        classes.sort(key=lambda one: one[0] != "TensorDict")  # programs use it first
        # classes that are used like functions are listed with them: decorators, and options for a block
        like_functions = {name for name, _ in classes if name.islower()}
        functions = [
            (
                v["topic"],
                page,
                [name for name in v["topic"].names if name in {*v["names"], *like_functions}] or v["names"],
            )
            for page, kind, v in mine
            if kind == "functions"
        ]
        listed = {name for _, _, names in functions for name in names}
        groups = {
            "classes": [name for name, _ in classes if name not in listed],
            "class_pages": classes,
            "functions": functions,
            "methods": [(v["topic"], f"tensordict-{v['topic'].slug}", v["names"]) for v in methods],
            "types": [page for page, kind, _ in mine if kind == "data"],
        }
        module = importlib.import_module(package)
        yield package.removeprefix("tensordict_"), {"package": package, "idea": inspect.getdoc(module), **groups}


def write(app: Sphinx) -> None:
    """Writes the pages, and leaves those alone that have not changed, so that a second build is short."""
    source = Path(app.srcdir)
    folder = source / "reference"
    folder.mkdir(exist_ok=True)
    environment = Environment(loader=FileSystemLoader(source / "_templates"), trim_blocks=True, lstrip_blocks=True)
    environment.filters["underlined"] = lambda text, mark="=": f"{text}\n{mark * len(text)}"
    found = list(pages())
    texts = {name: environment.get_template(f"{kind}.rst").render(values) for name, kind, values in found}
    for name, values in contents(found):
        texts[name] = environment.get_template("contents.rst").render(values)
    for old in folder.glob("*.rst"):
        if old.stem not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def targets() -> dict[str, str]:
    """Returns the full name of what an inline literal of a guide may mean."""
    found: dict[str, str] = {}
    for package in reversed(PACKAGES):  # core is last: its functions and the methods of containers come before others
        if package == "tensordict_core":
            found |= {name: f"{CONTAINERS}.{name}" for name in SHARED}
        for name, value in public(package).items():
            found[name] = found[f"{package}.{name}"] = f"{package}.{name}"
            if inspect.isclass(value):
                found |= {f"{name}.{member}": f"{package}.{name}.{member}" for member in own_members(value)}
    found |= {f"TensorDict.{name}": f"{CONTAINERS}.{name}" for name in SHARED}
    return found


class LinkNames(SphinxTransform):
    """Links the first mention of a public name in each section of a guide to the reference."""

    default_priority = 700
    known: ClassVar[dict[str, str]] = {}

    def apply(self, **_: Any) -> None:
        """Wraps literals in references."""
        if self.env.docname.startswith("reference/"):
            return
        if not LinkNames.known:
            LinkNames.known = targets()
        linked: set[tuple[int, str]] = set()
        for literal in list(self.document.findall(nodes.literal)):
            inside = literal.parent
            while inside is not None and not isinstance(inside, nodes.reference | nodes.title | pending_xref):
                inside = inside.parent
            match = CALL.fullmatch(literal.astext())
            if inside is not None or match is None:
                continue
            owner, name = match["owner"], match["name"]
            target = LinkNames.known.get(name if owner is None or owner in INSTANCES else f"{owner}.{name}")
            section = literal.parent
            while section is not None and not isinstance(section, nodes.section | nodes.document):
                section = section.parent
            if target is None or (id(section), target) in linked:
                continue
            linked.add((id(section), target))
            link = pending_xref("", refdomain="py", reftype="obj", reftarget=target, refdoc=self.env.docname)
            link["refexplicit"] = True
            literal["classes"] += ["xref", "py", "py-obj"]
            literal.replace_self(link)
            link += literal


ALIASES = {
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.fx.graph.Graph": "torch.fx.Graph",
    "torch.fx.graph_module.GraphModule": "torch.fx.GraphModule",
    "torch.storage.UntypedStorage": "torch.UntypedStorage",
    "torch.storage.TypedStorage": "torch.TypedStorage",
    "asyncio.streams.StreamReader": "asyncio.StreamReader",
    "asyncio.streams.StreamWriter": "asyncio.StreamWriter",
    "asyncio.base_events.Server": "asyncio.Server",
    "asyncio.queues.Queue": "asyncio.Queue",
    **{
        name: f"collections.abc.{name}"
        for name in ("Awaitable", "Callable", "Iterable", "Iterator", "Mapping", "MutableMapping", "Sequence", "Sized")
    },
    **{name: f"typing.{name}" for name in ("Any", "Literal", "Self")},
    "Tensor": "torch.Tensor",
    "Module": "torch.nn.Module",
    "TensorDictBase.pack": "tensordict_core.TensorDict.pack",
}
"""Names under which annotations and docstrings mention what is documented under another name."""


def resolve(app: Sphinx, env: Any, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """Finds the target of a name that is written without its package, or as the module that defines it."""
    if node.get("refdomain") != "py":
        return None
    target = ALIASES.get(node["reftarget"])
    if target is not None and not target.startswith(PACKAGES):
        node["reftarget"] = target
        return intersphinx.resolve_reference_any_inventory(env, True, node, content)
    if not LinkNames.known:
        LinkNames.known = targets()
    target = target or LinkNames.known.get(node["reftarget"])
    if target is None and node["reftarget"].startswith(PACKAGES):  # tensordict_memmap.tensor.memmap.MemoryMappedTensor
        target = LinkNames.known.get(node["reftarget"].rpartition(".")[2])
    if target is None or target == node["reftarget"]:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("builder-inited", write)
    app.connect("missing-reference", resolve)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
