"""EinsumDense, for any equation in which the kernel's axes meet the input's and the output's; attention is made of it.

LoRA adapters included.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rules.lora import adapters
from tfdpbc.gradients.onepass.terms import Outer, Term, size, total


@dataclasses.dataclass(frozen=True)
class Equation:
    """``input,kernel->output`` with one letter for each axis; the first axis of input and output is the rows.

    The letters fall into four kinds: `positions` (input and output), `groups` (in all three), `contracted` (input and
    kernel) and `features` (kernel and output).
    """

    inputs: str
    kernel: str
    output: str

    @classmethod
    def parse(cls, equation: str, input_rank: int) -> Equation:
        left, output = equation.replace(" ", "").split("->")
        inputs, kernel = left.split(",")
        if "..." in inputs:
            free = [c for c in string.ascii_letters if c not in equation]
            hidden = "".join(free[: input_rank - len(inputs.replace("...", ""))])
            inputs, output = inputs.replace("...", hidden), output.replace("...", hidden)
        return cls(inputs, kernel, output)

    @property
    def groups(self) -> str:
        return "".join(c for c in self.kernel if c in self.inputs and c in self.output)

    @property
    def contracted(self) -> str:
        return "".join(c for c in self.kernel if c in self.inputs and c not in self.output)

    @property
    def features(self) -> str:
        return "".join(c for c in self.kernel if c not in self.inputs)

    @property
    def positions(self) -> str:
        return "".join(c for c in self.inputs if c not in self.kernel)[1:]

    def problem(self) -> str | None:
        """Why the rule does not cover this equation."""
        row = self.inputs[:1]
        if row != self.output[:1] or row in self.kernel:
            return "does not keep the rows as its first axis"
        if any(len(set(part)) < len(part) for part in (self.inputs, self.kernel, self.output)):
            return "names an axis twice"
        if set(self.features) - set(self.output) or set(self.positions) - set(self.output):
            return "sums over an axis of one operand alone"
        return None


class EinsumDenseRule(LayerRule):
    def reasons(self, layer: Any) -> list[str]:
        problem = Equation.parse(layer.equation, layer.input_spec.ndim).problem()
        return [f"has the equation {layer.equation!r}, which {problem}"] if problem else []

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        equation = Equation.parse(layer.equation, call.inputs.shape.rank)
        if lora := adapters(layer, call):
            variables, values = lora
            yield from zip(variables, adapter_terms(equation, call, *values), strict=True)
        else:
            yield layer.kernel, kernel_term(equation, call, call.inputs, call.gradient, tuple(layer.kernel.shape))
        if layer.bias is not None:
            yield layer.bias, total(call.split(call.gradient), layer.bias.shape)


def kernel_term(equation: Equation, call: Call, a: Any, d: Any, shape: tuple[int, ...]) -> Term:
    """Both tensors as ``[k, (groups,) T, features]``, and the way from the product's axes to the kernel's."""
    e, sizes = equation, dict(zip(equation.kernel, shape, strict=True))
    count = size([sizes[c] for c in e.groups])

    def arranged(t: Any, letters: str, last: str) -> Any:
        # [n, ...] -> [n, groups, positions, last] -> [k, groups, s x positions, last]
        order = letters[0] + e.groups + e.positions + last
        t = tf.cast(t, tf.float32)
        if order != letters:
            t = tf.transpose(t, [letters.index(c) for c in order])
        width = size([sizes[c] for c in last])
        if not e.groups:
            return tf.reshape(t, [call.k, -1, width])
        t = tf.reshape(t, [call.k, call.s, count, -1, width])
        return tf.reshape(tf.transpose(t, [0, 2, 1, 3, 4]), [call.k, count, -1, width])

    found = e.groups + e.contracted + e.features
    back = [0, *(1 + found.index(c) for c in e.kernel)]

    def assemble(g: Any) -> Any:
        return tf.transpose(tf.reshape(g, [-1, *(sizes[c] for c in found)]), back)

    return Outer(arranged(a, e.inputs, e.contracted), arranged(d, e.output, e.features), assemble)


def adapter_terms(equation: Equation, call: Call, left: Any, right: Any) -> tuple[Term, Term]:
    """The gradients of A ``[..., r]`` and B ``[r, last]`` of an adapter c A B; left and right are c A and c B.

    The two in a row are two layers of which each has an equation, with an axis of size r between them.
    """
    e, x, d = equation, tf.cast(call.inputs, tf.float32), tf.cast(call.gradient, tf.float32)
    last = e.kernel[-1]
    rank = next(c for c in string.ascii_letters if c not in e.inputs + e.kernel + e.output)
    first, second, shapes = e.kernel[:-1] + rank, rank + last, (tuple(left.shape), tuple(right.shape))
    if last in e.features:  # z = (x A) B
        between = e.output.replace(last, rank)
        hidden = tf.einsum(f"{e.inputs},{first}->{between}", x, left)
        back = tf.einsum(f"{e.output},{second}->{between}", d, right)
        return (
            kernel_term(Equation(e.inputs, first, between), call, x, back, shapes[0]),
            kernel_term(Equation(between, second, e.output), call, hidden, d, shapes[1]),
        )
    if last in e.contracted:  # z = (x B) A
        between = e.inputs.replace(last, rank)
        hidden = tf.einsum(f"{e.inputs},{second}->{between}", x, right)
        back = tf.einsum(f"{e.output},{first}->{between}", d, left)
        return (
            kernel_term(Equation(between, first, e.output), call, hidden, d, shapes[0]),
            kernel_term(Equation(e.inputs, second, between), call, x, back, shapes[1]),
        )
    # A kernel of its own for each index of the last axis, which B weighs.
    between = e.output + rank
    back = tf.einsum(f"{e.output},{second}->{between}", d, right)
    hidden = tf.einsum(f"{e.inputs},{first}->{between}", x, left)
    weighed = tf.einsum(f"{between},{e.output}->{e.output[0]}{second}", hidden, d)
    return (
        kernel_term(Equation(e.inputs, first, between), call, x, back, shapes[0]),
        total(call.split(weighed), shapes[1]),
    )


register(keras.layers.EinsumDense, EinsumDenseRule())
