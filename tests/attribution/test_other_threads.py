"""What a frozen pass changes for a while is changed for its own thread alone."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from normlens.lens import Lens


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7  # which only the function's own backward pass knows


class _Layer(nn.Module):
    """Waits in the middle of a pass until another thread has done its work."""

    def __init__(self, reached: threading.Event, done: threading.Event) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.reached, self.done = reached, done

    def forward(self, x: Tensor) -> Tensor:
        self.reached.set()
        assert self.done.wait(20)
        with torch.no_grad():  # the model's own code, in the pass: seen all the same
            y = self.one(x)
        return x + self.two(torch.tanh(y))


class _Model(nn.Module):
    def __init__(self, *events: threading.Event) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(*events)])

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.layers[0](vectors)
        return found


def test_another_thread_trains_as_if_nothing_happened() -> None:
    reached, done = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def train() -> None:
        block = torch.no_grad()
        block.__enter__()  # entered before the pass, left in the middle of it
        seen["ready"] = True
        assert reached.wait(20)
        block.__exit__(None, None, None)
        seen["on again"] = torch.is_grad_enabled()
        with torch.no_grad():
            seen["off"] = not torch.is_grad_enabled()
        seen["on at last"] = torch.is_grad_enabled()
        x = torch.ones(1, requires_grad=True)
        _Doubled.apply(x).backward()
        seen["gradient"] = float(x.grad)
        done.set()

    model = _Model(reached, done)
    other = threading.Thread(target=train)
    other.start()
    try:
        (found,) = Lens(model).explain_inputs({"vectors": torch.randn(1, 3, 4)}, direction=[1.0, 0, 0, 0])
    finally:
        done.set()
        other.join()
    assert seen == {"ready": True, "on again": True, "off": True, "on at last": True, "gradient": 7.0}
    assert float(abs(found["tokens"]).sum()) > 0
