"""A small training run, whose state depends on everything that a checkpoint holds; runs alone as a new process too."""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from torch import nn

from tensordict_memmap import load_checkpoint, save_checkpoint

OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW groups": lambda parameters: torch.optim.AdamW(
        [{"params": parameters[:2], "lr": 0.02, "betas": (0.8, 0.9)}, {"params": parameters[2:], "weight_decay": 0.1}]
    ),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "tensor lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
}
SCHEDULERS = {
    "none": None,
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    "multi step": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 6]),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
    "sequential": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        ],
        [3],
    ),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
}


class Run:
    """A model with dropout, batch norm, weights in channels-last memory, an optimizer, a scheduler and a scaler."""

    def __init__(self, optimizer, scheduler, *, seed=0):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.3), nn.Linear(12, 4), nn.Linear(4, 4)
        )
        if optimizer != "LBFGS":  # which flattens gradients by view
            self.model.to(memory_format=torch.channels_last)
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.scheduler = None if SCHEDULERS[scheduler] is None else SCHEDULERS[scheduler](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.generator = torch.Generator().manual_seed(seed)
        self.losses = []

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "shuffle": self.generator,
        }

    def train(self, steps):
        for _ in range(steps):
            inputs = torch.rand(3, 2, 4, 4, generator=self.generator) * random.random() + np.random.rand()

            def closure(inputs=inputs):
                self.optimizer.zero_grad()
                loss = self.model(inputs).pow(2).mean()
                loss.backward()
                return loss

            if isinstance(self.optimizer, torch.optim.LBFGS):
                loss = self.optimizer.step(closure)
            else:
                self.optimizer.zero_grad()
                loss = self.model(inputs).pow(2).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.losses.append(loss.item())
            if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(loss.detach())
            elif self.scheduler is not None:
                self.scheduler.step()


def resumed(path, target, optimizer, scheduler):
    """Continues a run from a checkpoint, with other seeds, and saves where it arrives."""
    run = Run(optimizer, scheduler, seed=99)
    run.train(1)
    found = load_checkpoint(path, **run.parts(), verify="full")
    assert found.step == 5 and found.extra == {"losses": found.extra["losses"]}
    run.losses = found.extra["losses"]
    run.train(5)
    save_checkpoint(target, **run.parts(), step=10, extra={"losses": run.losses})


if __name__ == "__main__":
    resumed(*sys.argv[1:])
