"""The model as a pure function of its weights and a batch; what an algorithm A computes with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.losses import PerExampleLoss


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of one contribution.

    Attributes:
      x, y: nests of tensors with leading axis s.
      sample_weight: nest of tensors ``[s]`` or None.
      mask: bool ``[s]``; False marks padding, which may not influence anything.
      seeds: int64 ``[G, 2]``, one seed for each random generator of the model.
    """

    x: Any
    y: Any
    sample_weight: Any
    mask: Any
    seeds: Any


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What one forward pass gives: `losses` ``[s]`` (0 at padding), the scalar `penalty` (regularisers and `add_loss`),
    `outputs` (nest, leading axis s), `state` (new values of the function's `state_variables`)."""

    losses: Any
    penalty: Any
    outputs: Any
    state: list[Any]


def with_step(seeds: Any, step: Any) -> Any:
    """Seeds for one of several evaluations within a contribution: random layers draw anew in each `step`."""
    return seeds + tf.cast(step, seeds.dtype) * tf.constant([0, 0x5851F42D4C957F2D], seeds.dtype)


def seed_generators(model: keras.Model) -> list[Any]:
    """The random generators of a model's layers (dropout, noise layers, random augmentation), each once."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for value in [*getattr(layer, "_seed_generators", []), *vars(layer).values()]:
            if isinstance(value, keras.random.SeedGenerator):
                found[id(value)] = value
    return list(found.values())


# What changes something outside the contribution, by the beginning of the operation's type.
WRITING = (
    "Assign",
    "ResourceScatter",
    "ResourceApply",
    "ResourceStrided",
    "PyFunc",
    "EagerPyFunc",
    "LookupTableI",
    "QueueEnqueue",
    "StackPush",
    "WriteFile",
    "SaveV2",
)


class ModelFunction:
    """A Keras model and its loss as a pure function; the model itself stays as it was.

    Random layers take their seed from the batch, so each contribution and each round has masks of its own, and the state
    that layers write from data (moving statistics) is returned, never stored.

    Args:
      model: a built Keras model.
      loss: the per-example loss.
      state_variables: the non-trainable variables whose new values `Evaluation.state` returns (in this order). What the
        forward pass writes to any other variable is dropped, so that nothing written from data outlives the round.
    """

    def __init__(self, model: keras.Model, loss: PerExampleLoss, state_variables: Sequence[Any] = ()):
        self.model, self.loss = model, loss
        self.trainable = list(model.trainable_variables)
        generators = {id(generator.state): i for i, generator in enumerate(seed_generators(model))}
        position = {id(v): i for i, v in enumerate(model.non_trainable_variables)}
        self._generator_of = [generators.get(id(v)) for v in model.non_trainable_variables]
        self._state_positions = [position[id(v)] for v in state_variables]
        self.num_generators = len(generators)

    def weights(self) -> list[tf.Tensor]:
        """The current trainable weights, in the order of `trainable`."""
        return [tf.convert_to_tensor(v.value) for v in self.trainable]

    def state(self) -> list[tf.Tensor]:
        """The current values of the state variables, in the order of `Evaluation.state`."""
        variables = self.model.non_trainable_variables
        return [tf.convert_to_tensor(variables[i].value) for i in self._state_positions]

    def evaluate(self, weights: list[Any], batch: Examples, state: list[Any] | None = None) -> Evaluation:
        """One forward pass in training mode at `weights`, the state variables at `state` (by default as they are).

        Raises:
          IncompatibleModel: while it is traced, if a layer or the loss writes to something that Keras does not know.
        """
        non_trainable = [
            v.value if g is None else tf.cast(batch.seeds[g], v.dtype)
            for v, g in zip(self.model.non_trainable_variables, self._generator_of, strict=True)
        ]
        for i, value in zip(self._state_positions, state or (), strict=bool(state)):
            non_trainable[i] = value
        with no_side_effects("model", " in a forward pass", ". Use variables of keras (add_weight)"):
            outputs, new_state, penalties = self.model.stateless_call(
                weights, non_trainable, batch.x, training=True, return_losses=True
            )
            losses = self.loss(batch.y, outputs, batch.sample_weight)
        losses = tf.where(batch.mask, losses, tf.zeros_like(losses))
        penalty = tf.add_n([tf.cast(p, tf.float32) for p in penalties]) if penalties else tf.constant(0.0)
        return Evaluation(losses, penalty, outputs, [new_state[i] for i in self._state_positions])


@contextlib.contextmanager
def no_side_effects(name: str, when: str = "", way_out: str = "") -> Iterator[None]:
    """Refuses operations, traced within, that write: they would carry raw data out of the contribution.

    Keras variables are isolated by the stateless call; this is about whatever else the argument `name` does `when`.

    Raises:
      IncompatibleModel: naming the operation.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = 0 if graph is None else len(graph.get_operations())
    yield
    nodes = [] if graph is None else [operation.node_def for operation in graph.get_operations()[before:]]
    for node in [*nodes, *_within(graph, nodes)]:
        if node.op.startswith(WRITING):
            raise IncompatibleModel(
                f"{name} must not write data to variables of its own or run Python code{when}; got the operation "
                f"{node.op} ({node.name}){way_out}"
            )


def _within(graph: Any, nodes: list[Any]) -> list[Any]:
    """The nodes of the functions that `nodes` call (loops, conditions, tf.functions), and of those that these call."""
    found, known, waiting = [], {}, _called(nodes)
    if waiting:
        known = {function.signature.name: function for function in graph.as_graph_def().library.function}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name in known:
            seen.add(name)
            found += known[name].node_def
            waiting += _called(known[name].node_def)
    return found


def _called(nodes: Any) -> list[str]:
    values = [value for node in nodes for value in node.attr.values()]
    return [f.name for value in values for f in ([value.func] if value.HasField("func") else value.list.func)]
