# SPDX-License-Identifier: Apache-2.0
"""Real PyTorch models that are cut into steps. The work of one step is asked for and launched together.

A step is a function without arguments that launches work on the current stream. Inference has a step for each block.
Training goes through the blocks forwards and backwards, computes each block's gradient separately, and then runs the
optimizer. Weights and inputs are random, because only time is measured. PyTorch is imported when a model is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Number of blocks, their width, and the shape of a batch."""

    blocks: int
    width: int
    batch: tuple[int, ...]


def _residual(torch: Any, size: Size) -> list[Any]:
    """A first convolution, then residual blocks of two convolutions."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            parts = [nn.Conv2d(size.width, size.width, 3, padding=1), nn.BatchNorm2d(size.width), nn.ReLU()]
            parts += [nn.Conv2d(size.width, size.width, 3, padding=1), nn.BatchNorm2d(size.width)]
            self.inner = nn.Sequential(*parts)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.inner(x))

    first = nn.Sequential(nn.Conv2d(size.batch[1], size.width, 7, stride=4, padding=3), nn.ReLU())
    return [first, *(Block() for _ in range(size.blocks))]


def _separable(torch: Any, size: Size) -> list[Any]:
    """Depthwise and pointwise convolutions: many short kernels."""
    nn = torch.nn

    def block() -> Any:
        depthwise = nn.Conv2d(size.width, size.width, 3, padding=1, groups=size.width)
        return nn.Sequential(depthwise, nn.BatchNorm2d(size.width), nn.ReLU6(), nn.Conv2d(size.width, size.width, 1))

    first = nn.Sequential(nn.Conv2d(size.batch[1], size.width, 3, stride=4, padding=1), nn.ReLU6())
    return [first, *(block() for _ in range(size.blocks))]


def _transformer(torch: Any, size: Size) -> list[Any]:
    """Encoder layers."""
    return [
        torch.nn.TransformerEncoderLayer(size.width, size.width // 64, 4 * size.width, dropout=0.0, batch_first=True)
        for _ in range(size.blocks)
    ]


MODELS: dict[str, tuple[Callable[[Any, Size], list[Any]], Size]] = {
    "residual": (_residual, Size(blocks=16, width=128, batch=(4, 3, 224, 224))),
    "separable": (_separable, Size(blocks=32, width=96, batch=(4, 3, 224, 224))),
    "transformer": (_transformer, Size(blocks=12, width=768, batch=(4, 128, 768))),
    "wide-transformer": (_transformer, Size(blocks=6, width=1536, batch=(8, 128, 1536))),
}


def inference(name: str, device: str, *, size: Size | None = None) -> list[Step]:
    """Return the steps of one request."""
    torch = importlib.import_module("torch")
    blocks, x = _made(torch, name, device, size)
    for block in blocks:
        block.eval()
    held = [x]

    def step(block: Any, *, is_first: bool) -> None:
        with torch.inference_mode():
            held[0] = block(x if is_first else held[0])

    return [lambda block=block, at=at: step(block, is_first=at == 0) for at, block in enumerate(blocks)]


def training(name: str, device: str, *, size: Size | None = None) -> list[Step]:
    """Return the steps of one iteration. The loss is the mean square of the output."""
    torch = importlib.import_module("torch")
    blocks, x = _made(torch, name, device, size)
    optimizer = torch.optim.SGD([weight for block in blocks for weight in block.parameters()], lr=1e-4)
    inputs: list[Any] = [None] * len(blocks)
    outputs: list[Any] = [None] * len(blocks)

    def forward(at: int) -> None:
        given = x if at == 0 else outputs[at - 1]
        inputs[at] = given.detach().requires_grad_(at > 0)
        outputs[at] = blocks[at](inputs[at])

    def backward(at: int) -> None:
        if at == len(blocks) - 1:
            outputs[at].square().mean().backward()
        else:
            outputs[at].backward(inputs[at + 1].grad)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    steps: list[Step] = [lambda at=at: forward(at) for at in range(len(blocks))]  # type: ignore[misc]
    steps += [lambda at=at: backward(at) for at in reversed(range(len(blocks)))]  # type: ignore[misc]
    return [*steps, update]


def _made(torch: Any, name: str, device: str, size: Size | None) -> tuple[list[Any], Any]:
    make, usual = MODELS[name]
    size = size or usual
    torch.manual_seed(1)
    return [block.to(device) for block in make(torch, size)], torch.randn(size.batch, device=device)
