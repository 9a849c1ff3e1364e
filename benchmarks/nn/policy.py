"""Policy: training steps of one policy, written on tensordicts of a library and on plain dictionaries.

A step is a loss of a batch, ``backward`` and a step of the optimizer; the loss is the function that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from benchmarks.contenders import core, found, reference

ROWS = 16


class Program(NamedTuple):
    """A loss to compile, what makes its first argument, its other arguments, and the parameters to train."""

    loss: Callable[..., Tensor]
    batch: Callable[[], Any]
    others: tuple[Any, ...]
    parameters: list[Tensor]


class Policy(nn.Module):
    """An encoder with a head for actions and a head for values."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(obs)
        return self.actor(hidden), self.critic(hidden)


def library(name: str) -> Any:
    """The names of a library that programs use; ``None`` for plain dictionaries."""
    if name == "plain":
        return None
    if name == "reference":
        return SimpleNamespace(**{**vars(found("tensordict.nn")), **vars(reference())})
    return SimpleNamespace(
        **{**vars(found("tensordict_nn")), **vars(core())}, tensorclass=found("tensordict_class:tensorclass")
    )


def batch(lib: Any) -> Any:
    """A batch of transitions: a dictionary, or a tensordict of the library."""
    values = {"obs": torch.randn(ROWS, 8), "action": torch.randn(ROWS, 4), "return": torch.randn(ROWS, 1)}
    return values if lib is None else lib.TensorDict(values, [ROWS])


def error(loc: Tensor, value: Tensor, action: Tensor, target: Tensor) -> Tensor:
    return (loc - action).square().mean() + (value - target).square().mean()


def modules(lib: Any) -> Program:
    """Modules that read and write entries, in a sequence."""
    policy = Policy()
    if lib is None:

        def run(td: Any) -> Any:
            td["hidden"] = policy.encoder(td["obs"])
            td["loc"] = policy.actor(td["hidden"])
            td["value"] = policy.critic(td["hidden"])
            return td

    else:
        run = lib.TensorDictSequential(
            lib.TensorDictModule(policy.encoder, ["obs"], ["hidden"]),
            lib.TensorDictModule(policy.actor, ["hidden"], ["loc"]),
            lib.TensorDictModule(policy.critic, ["hidden"], ["value"]),
        )

    def loss(td: Any) -> Tensor:
        td = run(td.copy())
        return error(td["loc"], td["value"], td["action"], td["return"])

    return Program(loss, lambda: batch(lib), (), list(policy.parameters()))


def to_module(lib: Any) -> Program:
    """A module that is called with parameters that are arguments."""
    policy = Policy()
    if lib is None:
        params: Any = dict(policy.named_parameters())

        def loss(td: Any, params: Any) -> Tensor:
            return error(*functional_call(policy, params, (td["obs"],)), td["action"], td["return"])

    else:
        params = lib.TensorDict.from_module(policy)

        def loss(td: Any, params: Any) -> Tensor:
            with params.to_module(policy):
                loc, value = policy(td["obs"])
            return error(loc, value, td["action"], td["return"])

    return Program(loss, lambda: batch(lib), (params,), list(policy.parameters()))


def ensemble(lib: Any) -> Program:
    """Four policies in one call by ``torch.vmap``."""
    policies = [Policy() for _ in range(4)]
    policy = policies[0]
    if lib is None:
        params: Any = {k: v.detach().requires_grad_() for k, v in stack_module_state(policies)[0].items()}
        trained = list(params.values())

        def call(params: Any, obs: Tensor) -> Any:
            return functional_call(policy, params, (obs,))

    else:
        params = lib.TensorDict.from_modules(*policies).detach().requires_grad_()
        trained = list(params.values(True, True))

        def call(params: Any, obs: Tensor) -> Any:
            with params.to_module(policy):
                return policy(obs)

    def loss(td: Any, params: Any) -> Tensor:
        loc, value = torch.vmap(call, (0, None))(params, td["obs"])
        return error(loc, value, td["action"], td["return"])

    return Program(loss, lambda: batch(lib), (params,), trained)


def tensorclasses(lib: Any) -> Program:
    """A batch that is a tensorclass, and another one that is made of the outputs."""
    policy = Policy()
    if lib is None:

        def plain(td: Any) -> Tensor:
            loc, value = policy(td["obs"])
            out = {"loc": loc, "value": value, "action": td["action"], "target": td["return"]}
            return error(out["loc"], out["value"], out["action"], out["target"])

        return Program(plain, lambda: batch(None), (), list(policy.parameters()))

    def declare(name: str, *fields: str) -> Any:
        body = {"__annotations__": dict.fromkeys(fields, Tensor), "__module__": __name__}
        return lib.tensorclass(type(name, (), body))

    transitions = declare("Transitions", "obs", "action", "target")
    outputs = declare("Outputs", "loc", "value", "action", "target")

    def loss(td: Any) -> Tensor:
        loc, value = policy(td.obs)
        out = outputs(loc=loc, value=value, action=td.action, target=td.target, batch_size=td.batch_size)
        return error(out.loc, out.value, out.action, out.target)

    def made() -> Any:
        values = batch(None)
        return transitions(obs=values["obs"], action=values["action"], target=values["return"], batch_size=[ROWS])

    return Program(loss, made, (), list(policy.parameters()))


PROGRAMS: dict[str, Callable[[Any], Program]] = {
    "modules": modules,
    "to_module": to_module,
    "ensemble": ensemble,
    "tensorclasses": tensorclasses,
}


def train(program: Program, backend: str = "inductor") -> Callable[[Any], Tensor]:
    """Compiles the loss of a program; the function that is returned makes a step with a batch and returns its loss."""
    compiled = torch.compile(program.loss, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(program.parameters, lr=0.05)

    def step(batch: Any) -> Tensor:
        loss: Tensor = compiled(batch, *program.others)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
