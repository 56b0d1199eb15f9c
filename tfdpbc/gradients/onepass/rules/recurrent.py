"""SimpleRNN, LSTM and GRU.

The products with the input are computed for all steps before the loop and tapped there, so their gradients are those of
the gates' pre-activations at every step; the states that the loop passed through are the recurrent kernel's inputs. Both
kernels then are as those of a dense layer over a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass import rowwise
from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rules.dense import matrix
from tfdpbc.gradients.onepass.terms import Materialized, Outer, Term, total


class RecurrentRule(LayerRule):
    """What the three have in common; they differ in `step`, and a GRU also in `products`."""

    def reasons(self, layer: Any) -> list[str]:
        cell, found = layer.cell, []
        if layer.stateful:
            found.append("keeps its state between batches (stateful)")
        if cell.dropout or cell.recurrent_dropout:
            found.append("has dropout inside (put a Dropout layer before it)")
        if not rowwise.is_rowwise_function(getattr(cell, "recurrent_activation", None)):
            found.append("has a recurrent activation that is not known to treat rows on their own")
        return found

    def variables(self, layer: Any) -> list[Any]:
        return list(layer.cell._trainable_variables)

    def owns_sublayers(self, layer: Any) -> bool:
        return True

    def products(self, cell: Any, z: Any, probe: Any, state: Any, recurrent: Any) -> tuple[Any, Any]:
        """(the products with the recurrent kernel plus `probe`, what they saw)."""
        return tf.matmul(state, recurrent) + probe, state

    def step(self, cell: Any, z: Any, inner: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """New states (the output first) from the input's products `z`, the state's products `inner`, and the states."""
        raise NotImplementedError

    def recurrent_term(self, cell: Any, seen: Any, d: Any) -> Term:
        """The recurrent kernel's gradients: what its products saw and their gradients, ``[k, T, ...]``."""
        return Outer(seen, d, matrix)

    def biases(self, cell: Any) -> tuple[Any, Any]:
        """(of the input's products, of the state's products), None where there is none."""
        return cell.bias, None

    def call(
        self,
        layer: Any,
        tap: Callable[[Any], Any],
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        cell = layer.cell
        input_bias, inner_bias = self.biases(cell)
        dtype, n = cell.compute_dtype, sequences.shape[0]
        if initial_state is None:
            initial_state = layer.get_initial_state(n)
        initial_state = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
        initial_state = tuple(tf.cast(t, dtype) for t in initial_state)
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        mask = tf.ones(sequences.shape[:2], tf.bool) if mask is None else tf.cast(mask, tf.bool)
        if layer.go_backwards:
            sequences, mask = tf.reverse(sequences, [1]), tf.reverse(mask, [1])
        kernel, recurrent = (tf.convert_to_tensor(t) for t in (cell.kernel, cell.recurrent_kernel))
        z = tf.tensordot(tf.cast(sequences, dtype), kernel, 1)
        z = tap(z if input_bias is None else z + input_bias)
        # Adding a zero to the state's products at each step shows their gradients; here they may differ from the input's.
        probe = tap(tf.zeros_like(z))

        def step(carried: Any, given: Any) -> Any:
            (last, states, _), (z, probe, here) = carried, given
            inner, seen = self.products(cell, z, probe, states[0], recurrent)
            new = self.step(cell, z, inner if inner_bias is None else inner + inner_bias, states)
            here = here[:, None]
            skipped = tf.zeros_like(last) if layer.zero_output_for_mask else last
            kept = tuple(tf.where(here, a, b) for a, b in zip(new, states, strict=True))
            return tf.where(here, new[0], skipped), kept, seen

        by_step = tuple(tf.transpose(t, [1, 0, *range(2, t.shape.rank)]) for t in (z, probe, mask))
        _, blank = self.products(cell, z[:, 0], probe[:, 0], initial_state[0], recurrent)
        blank = tf.zeros_like(blank)
        outputs, states, seen = tf.scan(step, by_step, (tf.zeros_like(initial_state[0]), initial_state, blank))
        # Nothing comes after this tap: it only keeps the tensor.
        tap(tf.transpose(seen, [1, 0, 2]))
        outputs = tf.cast(outputs, layer.compute_dtype)
        output = tf.transpose(outputs, [1, 0, 2]) if layer.return_sequences else outputs[-1]
        return (output, *(tf.cast(t[-1], layer.compute_dtype) for t in states)) if layer.return_state else output

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        cell, x = layer.cell, call.inputs
        x = tf.reverse(x, [1]) if layer.go_backwards else x
        d, inner, _ = (call.positions(t) for t in call.gradients)
        yield cell.kernel, Outer(call.positions(x), d, matrix)
        yield cell.recurrent_kernel, self.recurrent_term(cell, call.positions(call.taps[2]), inner)
        if not cell.use_bias:
            return
        if self.biases(cell)[1] is None:
            yield cell.bias, total(d[:, None], cell.bias.shape)
        else:
            both = tf.stack([tf.reduce_sum(d, 1), tf.reduce_sum(inner, 1)], 1)
            yield cell.bias, Materialized.of(both, cell.bias.shape)


class SimpleRNNRule(RecurrentRule):
    def step(self, cell: Any, z: Any, inner: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        z = z + inner
        return (z if cell.activation is None else cell.activation(z),)


class LSTMRule(RecurrentRule):
    def step(self, cell: Any, z: Any, inner: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        i, f, c, o = tf.split(z + inner, 4, axis=1)
        c = cell.recurrent_activation(f) * states[1] + cell.recurrent_activation(i) * cell.activation(c)
        return cell.recurrent_activation(o) * cell.activation(c), c


class GRURule(RecurrentRule):
    """The reset gate after the product with the state (Keras's default, `reset_after`), or before it."""

    def biases(self, cell: Any) -> tuple[Any, Any]:
        if cell.bias is None or not cell.reset_after:
            return cell.bias, None
        return tuple(tf.unstack(tf.convert_to_tensor(cell.bias), 2))

    def products(self, cell: Any, z: Any, probe: Any, state: Any, recurrent: Any) -> tuple[Any, Any]:
        if cell.reset_after:
            return super().products(cell, z, probe, state, recurrent)
        gates, candidate = recurrent[:, : 2 * cell.units], recurrent[:, 2 * cell.units :]
        inner = tf.matmul(state, gates) + probe[:, : 2 * cell.units]
        reset = cell.recurrent_activation(tf.split(z, 3, axis=1)[1] + inner[:, cell.units :]) * state
        inner = tf.concat([inner, tf.matmul(reset, candidate) + probe[:, 2 * cell.units :]], 1)
        return inner, tf.concat([state, reset], 1)

    def step(self, cell: Any, z: Any, inner: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        update, reset, candidate = tf.split(z, 3, axis=1)
        inner_update, inner_reset, inner_candidate = tf.split(inner, 3, axis=1)
        update = cell.recurrent_activation(update + inner_update)
        if cell.reset_after:
            inner_candidate = cell.recurrent_activation(reset + inner_reset) * inner_candidate
        candidate = cell.activation(candidate + inner_candidate)
        return (update * states[0] + (1.0 - update) * candidate,)

    def recurrent_term(self, cell: Any, seen: Any, d: Any) -> Term:
        if cell.reset_after:
            return super().recurrent_term(cell, seen, d)
        # The kernel's three blocks of columns are kernels of their own, of which the last saw another state.
        state, reset = tf.split(seen, 2, axis=2)
        k, units = d.shape[0], cell.units
        d = tf.transpose(tf.reshape(d, [k, -1, 3, units]), [0, 2, 1, 3])

        def assemble(g: Any) -> Any:
            return tf.reshape(tf.transpose(g, [0, 2, 1, 3]), [-1, units, 3 * units])

        return Outer(tf.stack([state, state, reset], 1), d, assemble)


register(keras.layers.SimpleRNN, SimpleRNNRule())
register(keras.layers.LSTM, LSTMRule())
register(keras.layers.GRU, GRURule())
