"""The client: equality with local training, the interrupt routine, what is written before noise is drawn, restarts."""

import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc.errors import FederatedError, MalformedMessage, RunFolderError
from tfdpbc.federated.local import Trainer, released_variables, step_between
from tfdpbc.federated.messages import GlobalModel, Update, decode
from tfdpbc.ledger import Ledger


def collect(trainer):
    updates = []
    while (update := trainer.step()) is not None:
        updates.append(update)
    return updates


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.7),
    "momentum": lambda: keras.optimizers.SGD(0.3, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
}
SAMPLINGS = {
    "subsampling": lambda: dp.Subsampling.individual(helpers.N, 12),
    "shuffling, groups": lambda: dp.Shuffling(helpers.N, 4, 3),
    "poisson": lambda: dp.Poisson.individual(helpers.N, 12),
}


@pytest.mark.parametrize("sampling, optimizer", [*zip(SAMPLINGS, OPTIMIZERS, strict=True)])
def test_one_client_without_delay_equals_local_training_weight_by_weight(sampling, optimizer):
    plan = helpers.plan(SAMPLINGS[sampling]())
    alone = helpers.private(plan, seed=7, optimizer=OPTIMIZERS[optimizer](), physical=4)
    client = helpers.trainer(helpers.private(plan, seed=7, optimizer=OPTIMIZERS[optimizer](), physical=4))
    start = [v.numpy() for v in released_variables(alone)]
    alone.fit(*helpers.examples(), verbose=0)

    weights, version = [w.copy() for w in start], 0
    client.receive(GlobalModel(0, tuple(weights)))
    while (update := client.step()) is not None:
        assert (update.client, update.round, update.base_version) == ("a", version + 1, version)
        weights = [w + step for w, step in zip(weights, update.weights, strict=True)]
        version += 1
        client.receive(GlobalModel(version, tuple(weights)))
    assert version == plan.rounds
    for mine, theirs in zip(weights, released_variables(alone), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
    assert any((a != b).any() for a, b in zip(weights, start, strict=True))


def test_a_step_leads_to_the_same_bits():
    rng = np.random.default_rng(0)
    before = (rng.normal(size=200_000) * 10.0 ** rng.integers(-6, 3, 200_000)).astype(np.float32)
    update = (rng.normal(size=200_000) * 10.0 ** rng.integers(-6, 3, 200_000)).astype(np.float32)
    after = before + update
    np.testing.assert_array_equal(before + step_between(before, after), after)


# The interrupt routine.


class Linear(keras.layers.Layer):
    """Its gradient is its weight: what a contribution was computed at can be read off the update."""

    def build(self, shape):
        self.w = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        return x[:, :1] * 0.0 + self.w


def mirror(sampling, physical):
    """Loss w²/2, so each contribution is the w that it was computed at; σ = 0, C huge, step −1: update = mean of them."""
    net = keras.Sequential([keras.Input((helpers.DIM,)), Linear()])
    plan = helpers.plan(sampling, sigma=0.0, clipping=dp.FullGradientClipping(1e6))
    model = dp.PrivateModel(net, plan, physical_batch_size=physical, engine="vectorized")
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=lambda y, out: tf.square(out[:, 0]) / 2)
    return model


def constant(version, value):
    return GlobalModel(version, (np.array([value], np.float32),))


def test_a_newer_model_replaces_the_weights_in_the_middle_of_a_round():
    model = mirror(dp.Subsampling.individual(helpers.N, 12), physical=3)  # 4 micro-batches of 3
    client = helpers.trainer(model)
    client.receive(constant(0, 1.0))
    client.receive(constant(1, 5.0), at=0.5)
    update = client.step()
    assert update.base_version == 1
    np.testing.assert_allclose(update.weights[0], -(6 * 1.0 + 6 * 5.0) / 12)  # half at w = 1, half at w = 5
    np.testing.assert_allclose(client.variables[0].numpy(), 5.0 - 3.0)  # the step is taken from the new weights


def test_under_add_remove_a_newer_model_waits_for_the_next_round():
    """One example more would move others to micro-batches after the replacement: they would all count."""
    model = mirror(dp.Poisson(1.0, 2, helpers.N), physical=12)
    client = helpers.trainer(model)
    client.receive(constant(0, 1.0))
    client.receive(constant(1, 5.0), at=0.5)
    first = client.step()
    assert first.base_version == 0
    np.testing.assert_allclose(first.weights[0], -1.0)
    second = client.step()
    assert second.base_version == 1
    np.testing.assert_allclose(second.weights[0], -5.0)


def test_a_model_that_arrives_from_another_thread_is_taken_over_in_the_round_under_way():
    model = mirror(dp.Subsampling.individual(helpers.N, 12), physical=1)
    client = helpers.trainer(model)
    client.receive(constant(0, 1.0))
    seen, interrupt = [], client.mailbox._due

    def due():
        # Between two micro-batches, in TensorFlow's thread: the courier's thread hands a model in.
        seen.append(client.mailbox._reached)
        if client.mailbox._reached == 0.25:
            thread = threading.Thread(target=client.receive, args=(constant(1, 9.0),))
            thread.start()
            thread.join()
        return interrupt()

    client.mailbox._due = due
    update = client.step()
    assert len(set(seen)) == 12
    np.testing.assert_allclose(update.weights[0], -(3 * 1.0 + 9 * 9.0) / 12)


def test_replacement_keeps_the_sensitivity():
    """Two data sets that differ in one example, a wild model in the middle of each round: one clipped sum differs, by 2C
    at most. Every round starts from the same weights, so that nothing else can differ."""
    norm, found = 0.01, []
    plan = helpers.plan(
        dp.Shuffling.individual(helpers.N, 12), sigma=0.0, epochs=1, clipping=dp.FullGradientClipping(norm)
    )
    for other in (False, True):
        x, y = helpers.examples()
        if other:
            x[5], y[5] = -50.0, 1 - y[5]
        client = helpers.trainer(helpers.private(plan, seed=3, physical=4), (x, y))
        start, rng, sums = helpers.global_model(client), np.random.default_rng(1), []
        wild = tuple(rng.normal(size=v.shape).astype(np.float32) * 3 for v in client.variables)
        for version in range(0, 8, 2):
            client.receive(GlobalModel(version, start.weights))
            client.receive(GlobalModel(version + 1, wild), at=1 / 3)
            sums.append(np.concatenate([w.ravel() for w in client.step().weights]) * 12 / 0.5)
        found.append(sums)
    moved = sorted(np.linalg.norm(a - b) for a, b in zip(*found, strict=True))
    assert moved[:3] == [0, 0, 0]
    assert norm / 10 < moved[3] <= 2 * norm * (1 + 1e-3)


def test_old_and_impossible_models_change_nothing():
    client = helpers.trainer()
    assert client.receive(helpers.global_model(client, 3, 0.1))
    assert not client.receive(helpers.global_model(client, 3, 0.2))
    assert not client.receive(helpers.global_model(client, 2, 0.3))
    good = helpers.global_model(client, 9, 1.0)
    for weights in (
        good.weights[1:],
        (*good.weights[:-1], good.weights[-1].astype(np.float64)),
        (*good.weights[:-1], np.full_like(good.weights[-1], np.nan)),
        (*good.weights[:-1], good.weights[-1][None]),
    ):
        with pytest.raises(MalformedMessage):
            client.receive(GlobalModel(9, weights))
    client.step()
    assert client.version == 3


# The ledger comes first.


def test_the_ledger_is_on_the_disk_before_the_round_is_computed(tmp_path):
    client = helpers.trainer(folder=tmp_path / "a")
    client.receive(helpers.global_model(client))
    seen = []
    client.step()
    rounds = client.model._rounds

    def spy(draw, first, streams):
        text = (tmp_path / "a" / "ledger.json").read_text()
        seen.append((first, Ledger.from_config(json.loads(text)).position(client.model.plan)))
        raise KeyboardInterrupt  # the process dies in the middle of the round

    rounds.run = spy
    with pytest.raises(KeyboardInterrupt):
        client.step()
    assert seen == [(1, 2)]
    client.close()
    again = helpers.trainer(folder=tmp_path / "a")
    assert again.round == 2  # spent, though its update is lost
    assert again.step().round == 3
    assert [decode(data).round for data in again.exchange()] == [1, 3]
    again.close()


def test_a_ledger_that_cannot_be_written_stops_the_round(tmp_path, monkeypatch):
    client = helpers.trainer(folder=tmp_path / "a")
    client.receive(helpers.global_model(client))
    client.step()
    before = [v.numpy() for v in client.variables]

    def full(ledger):
        raise OSError("no space left on device")

    monkeypatch.setattr(client.store, "write_ledger", full)
    with pytest.raises(OSError, match="no space"):
        client.step()
    for value, variable in zip(before, client.variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())
    assert [decode(data).round for data in client.exchange()] == [1]
    client.close()


def test_a_restarted_client_goes_on_and_draws_other_noise(tmp_path):
    """Both processes start from the same state; with replayed noise, and draws, updates would repeat."""
    first = helpers.trainer(folder=tmp_path / "a")
    first.receive(helpers.global_model(first))
    noises = [np.concatenate([w.ravel() for w in first.step().weights]) for _ in range(2)]
    first.save()
    first.close()
    second = helpers.trainer(folder=tmp_path / "a")
    assert (second.round, second.version) == (2, 0)
    noises += [np.concatenate([w.ravel() for w in update.weights]) for update in collect(second)]
    assert len(noises) == second.model.plan.rounds == second.ledger.position(second.model.plan)
    assert len({n.tobytes() for n in noises}) == len(noises)
    assert second.finished and second.status()["epsilon"] == pytest.approx(second.model.plan.epsilon(1e-5))
    assert len(second.ledger.entries) == 2
    second.close()
    third = helpers.trainer(folder=tmp_path / "a")
    assert third.step() is None and third.finished  # the plan is used up, and stays so
    third.close()


def test_a_shuffled_epoch_that_was_cut_counts_as_a_whole(tmp_path):
    plan = helpers.plan(dp.Shuffling.individual(helpers.N, 12))
    first = helpers.trainer(helpers.private(plan), folder=tmp_path / "a")
    first.receive(helpers.global_model(first))
    assert first.step().round == 1
    first.close()
    second = helpers.trainer(helpers.private(plan), folder=tmp_path / "a")
    with pytest.warns(UserWarning, match="cannot be resumed"):
        assert second.step().round == plan.rounds_per_epoch + 1
    assert second.ledger.spent(plan).repeated == ()
    second.close()


def test_one_process_a_folder_and_no_forgotten_ledger(tmp_path):
    first = helpers.trainer(folder=tmp_path / "a")
    with pytest.raises(FederatedError, match="another process"):
        helpers.trainer(folder=tmp_path / "a")
    first.receive(helpers.global_model(first))
    first.step()
    first.close()
    with pytest.raises(RunFolderError, match="another plan"):
        helpers.trainer(helpers.private(helpers.plan(sigma=2.0)), folder=tmp_path / "a")
    (tmp_path / "a" / "ledger.json").write_text('{"format": 1, "entries": [')
    with pytest.raises(RunFolderError, match="damaged"):
        helpers.trainer(folder=tmp_path / "a")
    (tmp_path / "a" / "ledger.json").unlink()
    with pytest.raises(RunFolderError, match="missing"):
        helpers.trainer(folder=tmp_path / "a")


# What leaves.


def test_updates_are_sent_until_they_are_confirmed_oldest_first():
    client = helpers.trainer()
    client.receive(helpers.global_model(client))
    for _ in range(3):
        client.step()
    assert [decode(data).round for data in client.exchange(most=2)] == [1, 2]
    assert [decode(data).round for data in client.exchange()] == [1, 2, 3]
    assert [decode(data).round for data in client.exchange(acknowledged=2)] == [3]
    for wrong in ({"acknowledged": 99}, {"most": 0}, {"wait": -1.0}, {"wait": float("nan")}, {"most": True}):
        with pytest.raises(MalformedMessage):
            client.exchange(**wrong)
    assert [decode(data).round for data in client.exchange()] == [3]
    update = decode(client.exchange()[0])
    assert isinstance(update, Update) and [w.shape for w in update.weights] == [
        tuple(v.shape) for v in client.variables
    ]


def test_run_waits_for_a_model_and_for_room_and_ends_by_itself():
    client = helpers.trainer(max_outbox=2)
    thread = threading.Thread(target=client.run)
    thread.start()
    assert client.exchange(wait=0.2) == [] and client.round == 0
    client.receive(helpers.global_model(client))
    seen, acknowledged = [], 0
    while not client.facts()["finished"]:
        new = [decode(data).round for data in client.exchange(wait=5.0, acknowledged=acknowledged)]
        assert len(new) <= 2
        seen += [n for n in new if n > acknowledged]
        acknowledged = max([acknowledged, *new])
    thread.join(30)
    assert not thread.is_alive() and seen == list(range(1, client.model.plan.rounds + 1))


def test_fit_and_rounds_do_not_run_at_once():
    model = helpers.private()
    rounds = model.rounds(*helpers.examples())
    assert next(rounds) == 1
    with pytest.raises(RuntimeError, match="fit must not"):
        model.fit(*helpers.examples(), verbose=0)
    rounds.close()
    assert len(list(model.rounds(*helpers.examples()))) == model.plan.rounds - 1
    with pytest.raises(dp.BudgetExhausted):
        model.fit(*helpers.examples(), verbose=0)


def test_models_that_cannot_be_a_client():
    seeded = helpers.private(seed=1)
    with pytest.raises(ValueError, match="seed"):
        Trainer(seeded, *helpers.examples(), client="a")
    with pytest.raises(ValueError, match="client"):
        helpers.trainer(client="no spaces")
    with pytest.raises(ValueError, match="steps_per_execution"):
        model = helpers.private()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=2)
        helpers.trainer(model).step()


def test_status_says_nothing_of_the_data_but_what_the_plan_makes_public():
    plan = helpers.plan(dp.Poisson(0.25, 4, 12))
    client = helpers.trainer(helpers.private(plan), helpers.examples(31))
    assert client.status()["examples"] == 48.0
    assert not {"loss", "accuracy"} & set(client.status())


def two_rounds_with_an_older_ledger(folder, saved):
    """A client's folder after two rounds, whose ledger is that of before them."""
    first = helpers.trainer(folder=folder)
    first.receive(helpers.global_model(first))
    older = (folder / "ledger.json").read_bytes()
    for _ in range(2):
        first.step()
    if saved:
        first.save()
    first.close()
    (folder / "ledger.json").write_bytes(older)


def test_a_ledger_that_was_put_back_is_noticed(tmp_path):
    """Rounds that an older ledger does not know were released all the same: they are not released once more."""
    two_rounds_with_an_older_ledger(tmp_path, saved=False)
    with pytest.raises(RunFolderError, match="ahead of the ledger"):
        helpers.trainer(folder=tmp_path)


def test_an_emptied_ledger_is_healed_from_the_checkpoint(tmp_path):
    two_rounds_with_an_older_ledger(tmp_path, saved=True)
    assert helpers.trainer(folder=tmp_path).round == 2


def test_a_plan_without_noise_is_refused():
    with pytest.raises(ValueError, match="noise_multiplier must be above 0"):
        Trainer(helpers.private(helpers.plan(sigma=0.0)), *helpers.examples(), client="a")


def test_the_time_of_a_clients_poisson_round_does_not_follow_its_size():
    """Whoever times rounds would learn how many examples they had: with an interrupt routine the padding is computed too."""
    from tfdpbc.training.round import Round

    mask = tf.constant([[[True]], [[False]], [[False]]])
    for interrupt in (None, lambda i, passes: None):
        model = helpers.private(helpers.plan(dp.Poisson.individual(helpers.N, 12)))
        one = Round(model.plan, None, None, [0], interrupt=interrupt)
        live = one._live(mask, 3)
        assert (live is None) if interrupt else (int(live) == 1)
