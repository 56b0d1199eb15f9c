"""What a sum reads of its pass is found by tracing it, and may be given to it elsewhere."""

import numpy as np
import tensorflow as tf

from tfdpbc.gradients.held import HeldSum


def test_a_sum_is_the_same_elsewhere_with_other_tensors():
    made = []

    def of_pass(x):
        y, unused = tf.sin(x), tf.exp(x)

        def total(weights):
            # A condition is a function within the function.
            kept = tf.cond(tf.reduce_all(weights > 0), lambda: y, lambda: tf.where(weights > 0, y, 0.0))
            return [tf.reduce_sum(weights * kept), {"most": tf.reduce_max(y)}]

        made.append(HeldSum(total, tf.TensorSpec([4])))
        return [*made[0].tensors, tf.reduce_sum(unused)]

    @tf.function
    def both(first, second, weights):
        traced = tf.function(of_pass, autograph=False).get_concrete_function(tf.TensorSpec([4]))
        *held, _ = traced(second)
        traced(first)
        return made[0]([weights], held)

    first, second = np.arange(4, dtype=np.float32), np.float32([3, 1, 4, 1])
    weights = np.float32([1, 2, 0, 3])
    total, others = both(first, second, weights)
    np.testing.assert_allclose(total, np.sum(weights * np.sin(second)), rtol=1e-6)
    np.testing.assert_allclose(others["most"], np.sin(second).max(), rtol=1e-6)
    assert made[0].usable() and made[0].bytes() == 16  # sin(x) alone, not what else the pass made


def test_what_reads_a_variable_is_not_held():
    variable, made = tf.Variable(2.0), []

    def of_pass(x):
        made.append(HeldSum(lambda weights: variable * tf.reduce_sum(weights * x), tf.TensorSpec([3])))
        return x

    tf.function(of_pass, autograph=False).get_concrete_function(tf.TensorSpec([3]))
    assert not made[0].usable()
