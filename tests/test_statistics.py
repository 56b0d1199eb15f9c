"""Batch normalisation under `private`: clipped, noised, charged; nothing of the data gets out on another way."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, one_round
from tfdpbc import statistics
from tfdpbc.errors import IncompatibleModel

X, Y = oracles.blobs(N)
SAMPLINGS = {"batch": dp.Shuffling(N, 1, 6), "mixed": dp.Shuffling(N, 3, 2), "subsampled": dp.Subsampling(N, 2, 3)}
BOTH = ["batch", "mixed"]
EXACT = dp.PrivateStatistics(norm=1e6)


def net(layer=None):
    """Batch normalisation first, so that its batch statistics are those of the inputs."""
    keras.utils.set_random_seed(4)
    layer = layer or keras.layers.BatchNormalization(momentum=0.9, name="normalization")
    dense = keras.layers.Dense(5, "tanh", name="hidden"), keras.layers.Dense(3, name="logits")
    return keras.Sequential([keras.Input((6,)), layer, *dense])


class Nothing(dp.Sum):
    """Lets no contribution through: what is released then is what does not come through the weights."""

    def weights(self, clip_weights, valid):
        return tf.zeros_like(clip_weights)


def trainer(sampling, how="private", *, model=None, private=EXACT, noise=1.0, epochs=1, aggregation=None, **options):
    plan = dp.PrivacyPlan(
        sampling,
        dp.FullGradientClipping(options.pop("norm", 1.0)),
        noise,
        epochs,
        aggregation or dp.Sum(),
        private if how == "private" else None,
    )
    compiled = {name: options.pop(name) for name in ("jit_compile",) if name in options}
    made = dp.PrivateModel(model or net(), plan, statistics=how, seed=options.pop("seed", 1), **options)
    made.compile(keras.optimizers.SGD(0.5), oracles.LOSS, **compiled)
    return made


def moving(model):
    return [v.numpy() for v in statistics.moving_statistics([model.model.layers[0]])]


def exported(model, path):
    """Every number in a SavedModel, by name and shape."""
    model.export(path)
    loaded = tf.saved_model.load(path)
    return {v.name.split("/", 1)[1]: v.numpy() for v in loaded.weights}


class TestWhatIsReleased:
    @pytest.mark.parametrize("norm", [1e6, 0.5])
    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    def test_without_noise_it_is_the_mean_of_the_clipped_differences(self, sampling, norm):
        """Against a plain loop in numpy; the gradient's clipping is another block and plays no part."""
        model = trainer(sampling, private=dp.PrivateStatistics(norm), noise=0.0, norm=1e-3)
        groups = np.arange(sampling.contributions * sampling.examples_per_contribution).reshape(
            sampling.contributions, -1
        )
        one_round(model, X, Y, groups)
        total = np.zeros(12)
        for group in groups:
            rows = X[group].astype(np.float64)
            vector = np.concatenate([rows.mean(0), rows.var(0) - 1])
            total += vector / max(1.0, np.linalg.norm(vector) / norm)
        step = 0.1 * total / len(groups)
        mean, variance = moving(model)
        np.testing.assert_allclose(mean, step[:6], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variance, 1 + step[6:], rtol=1e-5)

    def test_a_small_norm_of_the_statistics_leaves_the_gradient_alone(self):
        """Two blocks, clipped apart: the weights move as under `batch`, bit for bit."""
        found = []
        for how in ("private", "batch"):
            model = trainer(SAMPLINGS["mixed"], how, private=dp.PrivateStatistics(1e-6), noise=0.0)
            model.fit(X, Y, verbose=0)
            found.append(oracles.flat(model.model.trainable_variables))
        np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize("ratio", [0.5, 3.0])
    def test_the_noise_has_the_promised_size_and_is_no_copy_of_the_gradients(self, ratio):
        """std 2 C_s σ_s on the sum. 5.5 standard errors: a false alarm in 2.6e7 for each statement."""
        size, norm, m = 2000, 0.3, 3
        settings = dp.PrivateStatistics(norm, ratio)
        layer = keras.layers.BatchNormalization(
            momentum=0.5, moving_variance_initializer=keras.initializers.Constant(100)
        )
        model = keras.Sequential([keras.Input((size,)), layer, keras.layers.Dense(3)])
        model = trainer(dp.Shuffling(6, m, 2), model=model, private=settings, noise=2.0, aggregation=Nothing())
        beta = layer.beta.numpy()
        model.fit(*oracles.blobs(6, (size,)), verbose=0)
        mean, variance = moving(model)
        noise = np.concatenate([mean, variance - 100]) / 0.5 * m
        assert model.plan.statistics_noise_std == pytest.approx(2 * norm * 2.0 * ratio)
        assert noise.std() == pytest.approx(model.plan.statistics_noise_std, rel=5.5 / math.sqrt(2 * noise.size))
        gradient = layer.beta.numpy() - beta
        for part in np.split(noise, 2):
            assert abs(np.corrcoef(part, gradient)[0, 1]) < 5.5 / math.sqrt(size)
        assert abs(np.corrcoef(*np.split(noise, 2))[0, 1]) < 5.5 / math.sqrt(size)

    def test_rounds_have_noise_of_their_own(self):
        changes = []
        model = trainer(dp.Shuffling(N, 1, 6), noise=1.0, aggregation=Nothing(), private=dp.PrivateStatistics(0.1))
        for i in range(3):
            before = np.concatenate(moving(model))
            one_round(model, X, Y, np.arange(6)[None], round_index=i)
            changes.append(np.concatenate(moving(model)) - before)
        assert len({change.tobytes() for change in changes}) == 3 and np.all(np.concatenate(changes) != 0)

    def test_variances_stay_positive_under_huge_noise(self):
        settings = dp.PrivateStatistics(norm=1e4, variance_floor=0.01)
        model = trainer(dp.Shuffling(N, 1, 6), private=settings, noise=10.0, epochs=2)
        model.fit(X, Y, verbose=0)
        _, variance = moving(model)
        assert variance.min() >= np.float32(0.01) and variance.max() > 10
        assert np.isfinite(model.evaluate(X, Y, verbose=0))

    def test_xla_gives_the_same(self):
        found = []
        for jit in (False, True):
            model = trainer(SAMPLINGS["mixed"], noise=0.0, private=dp.PrivateStatistics(0.5), jit_compile=jit)
            one_round(model, X, Y, np.arange(6).reshape(3, 2))
            found.append(np.concatenate(moving(model)))
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


class TestNothingElseGetsOut:
    """What is exported depends on the data through the weighted, noised sums alone."""

    @pytest.mark.parametrize("how", ["private", "public", "batch"])
    @pytest.mark.parametrize("sampling", map(SAMPLINGS.get, BOTH), ids=BOTH)
    def test_with_the_contributions_taken_out_other_data_export_the_same_bits(self, how, sampling, tmp_path):
        found = []
        for i, (x, y) in enumerate([(X, Y), (1000 * X[::-1] + 7, np.zeros_like(Y))]):
            model = trainer(sampling, how, epochs=2, aggregation=Nothing())
            model.fit(x, y, verbose=0)
            if how == "public":
                model.recompute_statistics(oracles.blobs(20, seed=5)[0])
            found.append(exported(model, tmp_path / str(i)))
        assert found[0].keys() == found[1].keys() and len(found[0]) == 8
        for name, value in found[0].items():
            np.testing.assert_array_equal(value, found[1][name], err_msg=name)

    @pytest.mark.parametrize("sampling", map(SAMPLINGS.get, BOTH), ids=BOTH)
    def test_neighbours_under_one_noise_differ_by_at_most_the_sensitivity(self, sampling, tmp_path):
        """One round: the noise cancels, what is left is the step of one clipped contribution, at most 2 C_s."""
        norm, other = 0.05, X.copy()
        other[1] = 50.0
        m = sampling.contributions
        groups = np.arange(m * sampling.examples_per_contribution).reshape(m, -1)
        found = {}
        for noise in (0.0, 1.0):
            parts = []
            for i, x in enumerate((X, other)):
                model = trainer(sampling, private=dp.PrivateStatistics(norm), noise=noise)
                one_round(model, x, Y, groups)
                values = moving(model)
                if noise:
                    stored = exported(model, tmp_path / str(i))
                    values = [stored[name] for name in sorted(stored) if "moving" in name]
                assert len(values) == 2
                parts.append(np.concatenate(values).astype(np.float64))
            found[noise] = parts[1] - parts[0]
        bound = 0.1 * 2 * norm / m
        assert 0.1 * bound < np.linalg.norm(found[1.0]) <= bound * (1 + 1e-3)
        np.testing.assert_allclose(found[0.0], found[1.0], atol=1e-6)

    @pytest.mark.parametrize("how", ["public", "batch"])
    @pytest.mark.parametrize("sampling", map(SAMPLINGS.get, BOTH), ids=BOTH)
    def test_statistics_that_are_not_released_keep_their_bits(self, how, sampling, tmp_path):
        model = trainer(sampling, how, epochs=2)
        layer = model.model.layers[0]
        layer.moving_mean.assign(np.linspace(-1, 1, 6))
        held = layer.non_trainable_variables[0].numpy(), layer.non_trainable_variables[1].numpy()
        model.fit(X, Y, verbose=0)
        for old, new in zip(held, moving(model), strict=True):
            np.testing.assert_array_equal(old, new)
        if how == "batch":
            stored = exported(model, tmp_path / "one")
            for old, name in zip(held, ("moving_mean:0", "moving_variance:0"), strict=True):
                [new] = [value for key, value in stored.items() if key.endswith(name)]
                np.testing.assert_array_equal(old, new)

    def test_a_contribution_that_is_not_finite_counts_in_no_block(self):
        """pitfall 13: the other two, divided by the planned three."""
        groups, found = np.arange(6).reshape(3, 2), []
        for x in (X.copy(), X.copy()):
            model = trainer(SAMPLINGS["mixed"], noise=0.0)
            if found:
                x[2] = np.nan
                one_round(model, x, Y, groups)
            else:
                one_round(model, x, Y, groups, mask=[[True] * 2, [False] * 2, [True] * 2])
            found.append([*moving(model), oracles.flat(model.trainable_variables)])
        for masked, odd in zip(*found, strict=True):
            np.testing.assert_allclose(masked, odd, rtol=1e-6, atol=1e-7)

    def test_the_raw_statistics_of_an_earlier_training_stay_known(self):
        """A second PrivateModel of the same model would state a guarantee for statistics that the first one wrote raw."""
        first = trainer(SAMPLINGS["batch"], "unprotected")
        first.fit(X, Y, verbose=0)
        with pytest.warns(UserWarning, match="trained privately before"):
            second = trainer(SAMPLINGS["batch"], "batch", model=first.model)
        assert second.spent.epsilon(1e-5) == np.inf


class TestBlock:
    @settings(max_examples=50)
    @given(
        st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=8, max_size=8),
        st.sampled_from([1e-12, 1e-3, 1.0, 1e10]),
        st.sampled_from([0.0, 1.0, np.inf, np.nan]),
    )
    def test_clipped_vectors_have_at_most_the_norm_and_what_is_not_finite_counts_nothing(self, values, norm, gradient):
        layer = keras.layers.BatchNormalization()
        layer.build((None, 2))
        block = statistics.StatisticsBlock([layer], dp.PrivateStatistics(norm))
        vectors = tf.constant(values, tf.float32, [2, 4])
        norms = tf.constant([[0.5, gradient], [0.5, 1.0]])
        weights = block.weights(tf.ones([2, 2]), norms, vectors).numpy()
        for h in range(2):
            size = np.linalg.norm(np.asarray(values[4 * h : 4 * h + 4], np.float64))
            alone = np.zeros(2, np.float32)
            alone[h] = weights[h, -1]
            clipped = block.weighted_sum(vectors, tf.constant(alone)).numpy().astype(np.float64)
            assert np.linalg.norm(clipped) <= norm * (1 + 1e-5)
            if not np.isfinite(size) or not np.isfinite(norms[h]).all():
                assert not weights[h].any() and not clipped.any()

    def test_a_layer_with_momentum_1_has_no_part_in_it(self):
        still, moves = (keras.layers.BatchNormalization(momentum=momentum) for momentum in (1.0, 0.5))
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input((6,)), moves, keras.layers.Dense(5), still, keras.layers.Dense(3)])
        trained = trainer(SAMPLINGS["batch"], model=model)
        trained.fit(X, Y, verbose=0)
        np.testing.assert_array_equal(still.moving_mean, 0)
        np.testing.assert_array_equal(still.moving_variance, 1)
        assert np.all(moves.moving_mean.numpy() != 0)
        assert statistics.block([still], dp.PrivateStatistics()) is None

    def test_a_layer_used_twice_moves_twice(self):
        """Keras moves it once a use; the block is the sum of both steps, and with momentum m the layer ends where Keras's
        would."""
        keras.utils.set_random_seed(4)
        layer, inputs = keras.layers.BatchNormalization(momentum=0.9), keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(3)(layer(layer(inputs) * 2.0 + 1.0)))
        trained = trainer(dp.Shuffling(6, 1, 6), model=model, noise=0.0)
        plain = keras.models.clone_model(model)
        plain.set_weights(model.get_weights())
        plain(X[:6], training=True)
        trained.fit(X[:6], Y[:6], verbose=0)
        expected = plain.layers[1]
        np.testing.assert_allclose(layer.moving_mean, expected.moving_mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(layer.moving_variance, expected.moving_variance, rtol=1e-4)


def plan(sampling=SAMPLINGS["batch"], private=EXACT, noise=2.0, epochs=5, kind=dp.FullGradientClipping):
    return dp.PrivacyPlan(sampling, kind(1.0), noise, epochs, statistics=private)


class TwoBlocks(dp.FullGradientClipping):
    config_name = "two"

    def num_blocks(self):
        return 2


class TestAccounting:
    @pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
    @pytest.mark.parametrize("kind, blocks", [(dp.FullGradientClipping, 1), (TwoBlocks, 2)])
    def test_it_equals_the_closed_form(self, ratio, kind, blocks):
        """Shuffled batch clipping is G_{√E/σ}; L blocks of σ and one of σ_s are G of 1/σ_total² = L/σ² + 1/σ_s²."""
        one = plan(private=dp.PrivateStatistics(1.0, ratio), kind=kind)
        mu = math.sqrt(5 * (blocks / 2.0**2 + 1 / (2.0 * ratio) ** 2))
        assert one.mu() == pytest.approx(mu, rel=1e-12)
        assert one.epsilon(1e-5) == pytest.approx(dp.Gaussian(mu).epsilon(1e-5), rel=1e-9)

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
    @pytest.mark.parametrize("group", [1, 3])
    def test_every_number_is_that_of_the_smaller_noise(self, sampling, group):
        one, plain = plan(sampling, dp.PrivateStatistics(0.1, 2.0)), plan(sampling, None)
        weaker = dataclasses.replace(plain, noise_multiplier=2.0 / math.sqrt(1.25))
        assert one.epsilon(1e-5, group) == weaker.epsilon(1e-5, group) > plain.epsilon(1e-5, group)
        assert one.trade_off(group).f(0.1) == weaker.trade_off(group).f(0.1)
        assert one.bounds(1e-5, group) == weaker.bounds(1e-5, group)
        assert one.spent(3).epsilon(1e-5) == weaker.spent(3).epsilon(1e-5)

    def test_calibration_pays_for_it(self):
        done = plan(private=dp.PrivateStatistics(1.0, 1.0)).calibrate(2.0, 1e-5)
        assert done.statistics == dp.PrivateStatistics(1.0, 1.0) and 1.98 <= done.epsilon(1e-5) <= 2.0
        without = plan(private=None).calibrate(2.0, 1e-5)
        assert done.noise_multiplier == pytest.approx(without.noise_multiplier * math.sqrt(2), rel=2e-3)

    def test_without_noise_there_is_none_on_the_statistics_and_no_guarantee(self):
        assert plan(noise=0.0).statistics_noise_std == 0 and plan(noise=0.0).epsilon(1e-5) == math.inf
        assert plan(private=None).statistics_noise_std == 0

    def test_configuration_and_words(self):
        one = plan(private=dp.PrivateStatistics(0.3, 2.0, 1e-4))
        again = dp.PrivacyPlan.from_config(json.loads(json.dumps(one.to_config())))
        assert again == one and hash(again) == hash(one) and again.statistics.variance_floor == 1e-4
        assert plan(private=None) == dp.PrivacyPlan.from_config(plan(private=None).to_config())
        assert "σ_s = 4 of its statistics" in str(one) and "the moving statistics of batch normalisation" in str(one)
        assert "σ_s" not in str(plan(private=None))

    @pytest.mark.parametrize("change", [{"norm": None}, {"more": 1.0}, {"noise_ratio": 0.0}, "private", {"norm": "1"}])
    def test_a_damaged_configuration_is_refused(self, change):
        config = plan().to_config()
        config["statistics"] = change if isinstance(change, str) else config["statistics"] | change
        with pytest.raises((ValueError, TypeError), match="statistics|noise_ratio|norm"):
            dp.PrivacyPlan.from_config(config)
        without = {key: value for key, value in config.items() if key != "statistics"}
        with pytest.raises(ValueError, match="config must be"):
            dp.PrivacyPlan.from_config(without)

    @pytest.mark.parametrize("sampling", [dp.Shuffling(N, 6, 1), dp.Poisson(0.25, 4, 6), dp.Poisson(0.25, 4, 6, 1)])
    def test_plans_that_cannot_train_such_models_are_refused(self, sampling):
        with pytest.raises(ValueError, match="statistics must be None"):
            plan(sampling)

    @pytest.mark.parametrize(
        "field, value",
        [("norm", 0.0), ("norm", math.nan), ("noise_ratio", 0.0), ("noise_ratio", math.inf)]
        + [("variance_floor", 0.0), ("variance_floor", -1.0)],
    )
    def test_values_out_of_range(self, field, value):
        with pytest.raises(ValueError, match=field):
            dp.PrivateStatistics(**{field: value})


class TestTheChargeCannotBeLeftOut:
    def test_private_without_a_plan_that_charges_is_refused(self):
        plain = plan(private=None)
        with pytest.raises(ValueError, match=r"charged by the plan.*statistics=PrivateStatistics\(norm\)"):
            dp.PrivateModel(net(), plain, statistics="private")

    @pytest.mark.parametrize("how", ["public", "batch", "unprotected"])
    def test_another_treatment_than_the_plan_charges_is_refused(self, how):
        with pytest.raises(ValueError, match="'private' .or not given. under a plan with PrivateStatistics"):
            dp.PrivateModel(net(), plan(), statistics=how)

    def test_a_plan_that_charges_is_choice_enough(self):
        assert dp.PrivateModel(net(), plan()).statistics == "private"

    def test_a_charge_for_nothing_is_warned_of(self):
        with pytest.warns(UserWarning, match="this model does not release"):
            dp.PrivateModel(oracles.dense_net(), plan())

    def test_what_was_spent_is_what_the_plan_charges(self):
        model = trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.1), epochs=2)
        model.fit(X, Y, epochs=1, verbose=0)
        assert model.spent.epsilon(1e-5) == model.plan.epsilon(1e-5, rounds=4)
        stated = model.spent.guarantee(1e-5)
        assert stated["epsilon"] == model.plan.epsilon(1e-5, rounds=4)
        assert stated["plan"]["statistics"]["norm"] == 0.1


class TestEngines:
    @pytest.mark.parametrize("how", ["private", "public", "batch"])
    @pytest.mark.parametrize("sampling", ["batch", "mixed"])
    def test_the_engine_that_mixes_rows_names_the_layer(self, how, sampling):
        model = trainer(SAMPLINGS[sampling], how, engine="onepass")
        with pytest.raises(IncompatibleModel, match="'onepass' cannot compute.*'normalization' .BatchNormalization."):
            model.fit(X, Y, verbose=0)

    def test_auto_says_why_it_takes_the_other_one(self):
        model = trainer(SAMPLINGS["mixed"])
        assert "BatchNormalization" in str(model.engine_report())

    @pytest.mark.parametrize("limit", [2, 4, 6])
    def test_micro_batches_change_nothing(self, limit):
        """pitfall 12: a last pass that is not full holds contributions that do not exist; they have no statistics."""
        found = []
        for size in (None, limit):
            model = trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.4), noise=1.0, physical_batch_size=size)
            model.fit(X, Y, verbose=0)
            found.append(np.concatenate(moving(model)))
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


class TestFiles:
    def test_keras_file(self, tmp_path):
        model = trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.3, 2.0), seed=None)
        model.fit(X, Y, verbose=0)
        model.save(tmp_path / "m.keras")
        again = keras.models.load_model(tmp_path / "m.keras")
        assert again.plan == model.plan and again.statistics == "private"
        assert again.spent.epsilon(1e-5) == model.spent.epsilon(1e-5)
        for old, new in zip(moving(model), moving(again), strict=True):
            np.testing.assert_array_equal(old, new)
        np.testing.assert_array_equal(model.predict(X, verbose=0), again.predict(X, verbose=0))

    def test_a_resumed_run_ends_where_the_whole_one_does(self, tmp_path):
        whole, part = (trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.3), epochs=2) for _ in range(2))
        whole.fit(X, Y, verbose=0)
        part.fit(X, Y, epochs=1, verbose=0)
        part.save_checkpoint(tmp_path / "c")
        rest = trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.3), epochs=2)
        rest.load_checkpoint(tmp_path / "c")
        rest.fit(X, Y, verbose=0)
        for old, new in zip(moving(whole), moving(rest), strict=True):
            np.testing.assert_array_equal(old, new)
        # Weights of a plan that does not charge state nothing under one that does.
        other = trainer(SAMPLINGS["mixed"], "batch", epochs=2)
        whole.save_weights(tmp_path / "w.weights.h5")
        other.load_weights(tmp_path / "w.weights.h5")
        assert other.spent.epsilon(1e-5) == np.inf

    def test_an_exported_model_normalises_by_the_noisy_statistics(self, tmp_path):
        model = trainer(SAMPLINGS["mixed"], private=dp.PrivateStatistics(0.3))
        model.fit(X, Y, verbose=0)
        model.export(tmp_path / "one")
        loaded = tf.saved_model.load(tmp_path / "one")
        np.testing.assert_allclose(loaded.serve(X), model.model(X, training=False), rtol=1e-5, atol=1e-6)
        stated = json.loads(loaded.signatures["guarantee"]()["guarantee"].numpy())
        assert stated["epsilon"] == model.spent.epsilon(1e-5)
        assert stated["plan"]["statistics"] == {"norm": 0.3, "noise_ratio": 1.0, "variance_floor": 1e-3}
