"""Symbolic tracing: turns modules on tensordicts into one ``torch.fx`` graph on tensors.

``torch.fx`` traces each wrapped module, and its nodes are copied into one graph and connected by the keys. Only the
inputs are read from the tensordict, and only the outputs are written into it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from tensordict_nn import errors
from tensordict_nn.modules.base import TensorDictModuleBase, require_inputs
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.modules.module import TensorDictModule, TensorDictModuleWrapper
from tensordict_nn.modules.sequential import TensorDictSequential


class TDGraphModule(TensorDictModuleBase):
    """A graph on tensors that reads its inputs from a tensordict and writes its outputs into it.

    Args:
        graph_module: A module from the values of ``in_keys``, in order, to a tuple of the values of ``out_keys``.
        in_keys: The keys that it reads.
        out_keys: The keys that it writes.

    Raises:
        KeyError: An input is missing in a call.

    >>> graph = torch.fx.symbolic_trace(lambda x: (x + 1, x * 2))
    >>> TDGraphModule(graph, ["x"], ["y", "z"])(TensorDict({"x": 3}))["z"]
    tensor(6)
    """

    def __init__(self, graph_module: fx.GraphModule, in_keys: list[Any], out_keys: list[Any]) -> None:
        super().__init__()
        self.graph_module = graph_module
        self.in_keys = in_keys
        self.out_keys = out_keys

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, tensordict_out: Any = None) -> Any:
        """Read the inputs, run the graph and write the outputs.

        Args:
            tensordict: The tensordict with the inputs.
            tensordict_out: The tensordict into which the results are written; by default ``tensordict``.
        """
        require_inputs(self, self.in_keys, tensordict)
        results = self.graph_module(*(tensordict[key] for key in self.in_keys))
        out = tensordict if tensordict_out is None else tensordict_out
        for key, value in zip(self.out_keys_source, results, strict=True):
            out.set(key, value)
        return out

    @property
    def graph(self) -> fx.Graph:
        """The graph.

        >>> module = TDGraphModule(torch.fx.symbolic_trace(lambda x: (x + 1,)), ["x"], ["y"])
        >>> [node.op for node in module.graph.nodes]
        ['placeholder', 'call_function', 'output']
        """
        return self.graph_module.graph

    @property
    def code(self) -> str:
        """The Python code of the graph.

        >>> module = TDGraphModule(torch.fx.symbolic_trace(lambda x: (x + 1,)), ["x"], ["y"])
        >>> "x + 1" in module.code
        True
        """
        return self.graph_module.code


class _Tracer(fx.Tracer):
    """Traces modules on tensordicts inside modules, too, and starts at any method."""

    def __init__(self, method: str | None) -> None:
        super().__init__()
        self.traced_func_name = method or "forward"


def _leaves(module: Any) -> list[Any]:
    """Return the wrapped modules in the order in which they run.

    Raises:
        TypeError: A module overrides ``forward``, so its keys do not describe what it does.
    """
    if isinstance(module, TensorDictSequential):
        return [leaf for child in module for leaf in _leaves(child)]
    if type(module) is TensorDictModuleWrapper:
        return _leaves(module.td_module)
    if isinstance(module, TensorDictModule):
        return [module]
    raise errors.not_traceable(module)


def _inline(graph: fx.Graph, prefix: str, traced: fx.Graph, owner: Any, known: dict[str, Any]) -> Any:
    """Copy the nodes of a traced module into the graph and return the node of its result.

    Args:
        graph: The graph.
        prefix: The name of the traced module in the root.
        traced: The traced graph.
        owner: The traced module.
        known: The values of its arguments by name.
    """
    env: dict[fx.Node, Any] = {}
    for node in traced.nodes:
        if node.op == "placeholder":
            if node.target in known:
                env[node] = known[node.target]
            elif node.args:
                env[node] = node.args[0]  # the default of the argument
            else:
                raise errors.missing_argument(owner, str(node.target))
        elif node.op == "output":
            return fx.node.map_arg(node.args[0], lambda arg: env[arg])
        else:
            copied = graph.node_copy(node, lambda arg: env[arg])
            if node.op in ("get_attr", "call_module"):
                copied.target = f"{prefix}.{node.target}"
            env[node] = copied
    return None


def _trace(module: TensorDictModule) -> tuple[nn.Module, fx.Graph]:
    """Trace a wrapped module; return the module that the graph refers to, and the graph."""
    wrapped = module.module
    if isinstance(wrapped, nn.Module):
        tracer = _Tracer(module.method)
        if tracer.is_leaf_module(wrapped, "") and module.method is None:
            holder = nn.Module()
            holder.inner = wrapped
            return holder, _one_call(module, "call_module", "inner")
        return wrapped, tracer.trace(wrapped)
    function: Callable[..., Any] = wrapped if module.method is None else getattr(wrapped, module.method)
    if isinstance(function, types.BuiltinFunctionType):
        return nn.Module(), _one_call(module, "call_function", function)
    tracer = _Tracer(None)
    graph = tracer.trace(function)
    return tracer.root, graph


def _one_call(module: TensorDictModule, kind: str, target: Any) -> fx.Graph:
    """Make a graph of one node: a call of one of torch's own modules, or of a function without Python code."""
    names = module._arguments or [f"x{i}" for i in range(len(module.in_keys))]
    graph = fx.Graph()
    args = [graph.placeholder(name) for name in names]
    keywords = dict(zip(names, args, strict=True)) if module._arguments else {}
    call = graph.create_node(kind, target, () if keywords else tuple(args), {**keywords, **module._method_kwargs})
    graph.output(call)
    return graph


def symbolic_trace(module: TensorDictModuleBase) -> TDGraphModule:
    """Trace a `TensorDictModule` or a `TensorDictSequential` to one ``torch.fx`` graph on tensors.

    Args:
        module: The module; sequences may be nested.

    Returns:
        A module with the same keys, whose ``graph_module`` takes and returns tensors.

    Raises:
        TypeError: A module overrides ``forward``, so its keys do not describe what it does.

    >>> from tensordict_nn import TensorDictModule, TensorDictSequential
    >>> module = TensorDictSequential(
    ...     TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=["y"]),
    ...     TensorDictModule(lambda y: y * 2, in_keys=["y"], out_keys=["z"]),
    ... )
    >>> graph = symbolic_trace(module)
    >>> td = TensorDict({"x": torch.ones(3)})
    >>> graph(td.copy())["z"].equal(module(td.copy())["z"])
    True
    """
    graph, root = fx.Graph(), nn.Module()
    in_keys, out_keys = list(module.in_keys), list(module.out_keys)
    placeholders = [graph.placeholder("_".join((key,) if isinstance(key, str) else key)) for key in in_keys]
    env: dict[Any, Any] = dict(zip(in_keys, placeholders, strict=True))
    for i, leaf in enumerate(_leaves(module)):
        holder, traced = _trace(leaf)
        prefix = f"module_{i}"
        root.add_module(prefix, holder)
        names = leaf._arguments or [str(n.target) for n in traced.nodes if n.op == "placeholder"][: len(leaf.in_keys)]
        known = {**leaf._method_kwargs, **dict(zip(names, (env[key] for key in leaf.in_keys), strict=True))}
        result = _inline(graph, prefix, traced, leaf, known)
        keys = leaf.out_keys_source
        results = result if isinstance(result, tuple | list) else (result,)
        if isinstance(result, dict):
            results = tuple(result[key] for key in keys)
        elif len(keys) > 1 and isinstance(result, fx.Node):
            results = tuple(graph.call_function(_item, (result, position)) for position in range(len(keys)))
        if len(results) != len(keys):
            raise errors.wrong_count(leaf, len(results), keys)
        env.update((key, value) for key, value in zip(keys, results, strict=True) if key != "_")
    written = [key for key in out_keys if key != "_"]
    graph.output(tuple(env[key] for key in written))
    graph.lint()
    return TDGraphModule(fx.GraphModule(root, graph), in_keys, written)


def _item(values: Any, position: int) -> torch.Tensor:
    """Return one of several results of a module that is one node of a graph."""
    item: torch.Tensor = values[position]
    return item
