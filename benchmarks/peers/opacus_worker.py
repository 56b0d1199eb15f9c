"""Opacus: "flat" clips per-sample gradients made by its hooks, "ghost" uses norms and a second backward pass."""

from __future__ import annotations

import math

import opacus
import torch
from opacus.layers import DPMultiheadAttention
from protocol import (
    BLOCKS,
    CLIP,
    CONVNET,
    HEADS,
    HIDDEN,
    LENGTH,
    NOISE,
    RATE,
    RESNET,
    SHAPES,
    VOCABULARY,
    WIDTH,
    Ready,
    Unsupported,
    orders,
    pool,
    serve,
)
from torch import nn


def convolution(inputs: int, filters: int, size: int, normalized: bool, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, filters, size, stride, padding=size // 2, bias=not normalized)
    return [layer, nn.GroupNorm(math.gcd(32, filters), filters)] if normalized else [layer]


class Block(nn.Module):
    """Basic block of the ResNet."""

    def __init__(self, inputs: int, filters: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(*convolution(inputs, filters, 3, True, stride), nn.ReLU())
        self.second = nn.Sequential(*convolution(filters, filters, 3, True))
        same = stride == 1 and inputs == filters
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, filters, 1, True, stride))
        self.last = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)) + self.shortcut(x))


class Transformer(nn.Module):
    """As `transformer` of benchmarks/step.py: x is a pair of tokens and positions [b, LENGTH]."""

    def __init__(self, classes: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention = nn.ModuleList(DPMultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(BLOCKS))
        self.norm1 = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(BLOCKS))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(BLOCKS)
        )
        self.norm2 = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(BLOCKS))
        self.logits = nn.Linear(WIDTH, classes)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(positions)
        for attention, norm1, feed, norm2 in zip(self.attention, self.norm1, self.feed, self.norm2, strict=True):
            x = norm1(x + attention(x, x, x, need_weights=False)[0])
            x = norm2(x + feed(x))
        return self.logits(x.mean(1))


def build(name: str) -> nn.Module:
    classes = SHAPES[name].classes
    if name == "transformer":
        return Transformer(classes)
    if name == "mlp":
        hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, classes))
    if name == "tutorial_cnn":
        layers = [nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
        layers += [nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, classes))
    if name in ("convnet", "convnet_groupnorm"):
        layers, inputs = [], 3
        for block, filters in enumerate(CONVNET, start=1):
            layers += [*convolution(inputs, filters, 3, name == "convnet_groupnorm"), nn.ReLU()]
            layers.append(nn.AvgPool2d(2) if block < len(CONVNET) else nn.AdaptiveAvgPool2d(1))
            inputs = filters
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))
    if name == "resnet18_groupnorm":
        layers, inputs = [*convolution(3, RESNET[0], 3, True), nn.ReLU()], RESNET[0]
        for stage, filters in enumerate(RESNET):
            for number in range(2):
                layers.append(Block(inputs, filters, 2 if stage and not number else 1))
                inputs = filters
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    raise Unsupported("no such model in this worker")


def make(name: str, variant: str, batches: int) -> Ready:
    x, y = pool(name, batches)
    inputs = [torch.from_numpy(part) for part in x] if isinstance(x, tuple) else [torch.from_numpy(x)]
    if inputs[0].ndim == 4:
        inputs = [inputs[0].permute(0, 3, 1, 2).contiguous()]
    labels = torch.from_numpy(y)
    model, criterion = build(name).train(), nn.CrossEntropyLoss()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    if variant != "plain":
        # The loader only tells the engine the batch size: batches are drawn as on the plain side.
        dataset = torch.utils.data.TensorDataset(*inputs, labels)
        loader = torch.utils.data.DataLoader(dataset, batch_size=SHAPES[name].batch)
        options = {"poisson_sampling": False, "noise_multiplier": NOISE, "max_grad_norm": CLIP}
        if variant == "ghost":
            options |= {"grad_sample_mode": "ghost", "criterion": criterion}
        private = opacus.PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, **options)
        model, optimizer = private[:2]
        criterion = private[2] if variant == "ghost" else criterion

    def run(steps: int) -> int:
        total = torch.zeros(())
        for order in orders(name, len(labels), steps):
            index = torch.from_numpy(order)
            optimizer.zero_grad()
            loss = criterion(model(*(part[index] for part in inputs)), labels[index])
            loss.backward()
            optimizer.step()
            if variant != "ghost":  # there the loss is an object of Opacus's
                total += loss.detach()
        total.item()
        return steps

    return Ready(run, parameters)


if __name__ == "__main__":
    serve({"Opacus": opacus.__version__, "PyTorch": torch.__version__}, make)
