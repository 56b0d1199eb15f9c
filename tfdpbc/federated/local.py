"""A client: Algorithm 1 on the client's own data, round after round, without waiting for anybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.errors import FederatedError, MalformedMessage, RunFolderError
from tfdpbc.federated.mailbox import Mailbox
from tfdpbc.federated.messages import GlobalModel, Update, encode, is_client_name
from tfdpbc.federated.store import ClientFolder, Memory
from tfdpbc.keras_model import PrivateModel
from tfdpbc.ledger import Ledger

LONGEST_WAIT = 600.0


class Trainer:
    """Owns a client's data, model, plan, ledger, sampler position and randomness.

    What leaves it is `exchange`: for each round the client's name, the round's number, the version of the global model that
    the client worked from, and the step: what the local optimizer made of Ū/m. Losses and metrics of the data never do.

    Formal guarantee: all that leaves is a post-processing of the ``ledger``'s noisy updates (the optimizer sees nothing
    else), so it is f-DP for f = ``ledger.trade_off()`` with respect to this client's data, whatever the server and the
    other clients do, and whenever their models come: the weights a round starts from may be chosen by anybody who sees
    all former updates (adaptive composition), and where a newer model replaces them in the middle of a round, individual
    clipping bounds each contribution whatever weights it was computed at. The latter needs fixed-size rounds: under Poisson and
    balls-in-bins sampling, and with trimmed sums, a model that arrives takes effect with the next round (see `Round`).

    A round is spent when the ledger is on the disk, which is before its noise is drawn. One whose process died after that
    is spent without an update. A restarted client goes on after it with randomness of its own, fresh from the operating
    system; a shuffled or balls-in-bins epoch that was cut counts as a whole, for its draws are gone.

    Args:
      model: compiled and built, without a seed, on one device; its weights become the server's.
      x, y, sample_weight, public_data: as for `PrivateModel.fit`.
      client: its name for the server; it outlives restarts.
      folder: what must outlive the process, see `ClientFolder`. None keeps nothing (simulations).
      max_outbox: how many unconfirmed updates there may be before `run` waits.
      wait_for_model: whether `run` waits for a first global model. Without, all clients must be built with equal weights.
      checkpoint_seconds: how often optimizer and clipping state are kept.
      delta: of the ε in `status`.
      seeded: lets a model with a seed in, for tests and studies: whoever knows the seed can take the noise off.

    Raises:
      FederatedError: another process trains in the folder.
      RunFolderError: the folder is damaged or belongs to another plan or model.
      ValueError, TypeError: the model cannot be a client's.
    """

    def __init__(
        self,
        model: PrivateModel,
        x: Any,
        y: Any = None,
        *,
        client: str,
        folder: Any = None,
        sample_weight: Any = None,
        public_data: Any = None,
        max_outbox: int = 1024,
        wait_for_model: bool = True,
        checkpoint_seconds: float = 60.0,
        delta: float = 1e-5,
        seeded: bool = False,
    ):
        _validate.instance("model", model, PrivateModel, "a PrivateModel")
        if not is_client_name(client):
            _validate.fail("client", "1 to 64 letters, digits and ._-, beginning with a letter or digit", client)
        if not (model.compiled and model.model.built):
            _validate.fail("model", "compiled, and built (with an Input layer)", model.model.name)
        if model.streams.seed is not None and not seeded:
            _validate.fail("seed", "None: a client's noise comes from the operating system", model.streams.seed)
        if model.plan.noise_multiplier == 0 and not seeded:
            _validate.fail("noise_multiplier", "above 0: without noise a client's steps are its raw data's", 0)
        if model.statistics == "unprotected":
            _validate.fail(
                "statistics", "'private', 'public' or 'batch': raw statistics must not leave", model.statistics
            )
        if model.distribute_strategy.num_replicas_in_sync > 1 or model.jit_compile:
            _validate.fail("model", "on one device and without jit_compile, which cannot be interrupted", model.name)
        self.client, self.model = client, model
        self.max_outbox = _validate.integer("max_outbox", max_outbox, at_least=1)
        self.wait_for_model = wait_for_model
        self.checkpoint_seconds = _validate.number("checkpoint_seconds", checkpoint_seconds, at_least=0.0)
        self.delta = _validate.probability("delta", delta)
        self.variables = released_variables(model)
        if any(v.dtype != "float32" for v in self.variables):
            _validate.fail("model", "one whose released variables are float32", [v.dtype for v in self.variables])
        self._data = {"x": x, "y": y, "sample_weight": sample_weight, "public_data": public_data}
        self._rounds: Iterator[int] | None = None
        self._changed, self._stopped, self._finished = threading.Condition(), False, False
        self._sent, self._known_epsilon = 0, (-1, 0.0)
        self.store = Memory() if folder is None else ClientFolder(folder)
        try:
            self._restore()
        except BaseException:
            self.store.close()
            raise
        self._saved = time.monotonic()

    def _restore(self) -> None:
        model = self.model
        model._build_optimizer()
        # A checkpoint has a ledger of its own, so one that was emptied or put back is healed from it.
        trained = self.store.state is not None and self.store.state.exists()
        if self.store.ledger.entries or trained:
            if self.store.ledger.plans not in ((), (model.plan,)):
                raise RunFolderError(
                    "the client's folder belongs to another plan: a new plan needs a folder of its own"
                )
            if trained:
                model.load_checkpoint(self.store.state)
            model.ledger.absorb(self.store.ledger)
            model._record(0)
        if self.store.state is not None:
            self.store.write_ledger(model.ledger)  # from now on a missing one is noticed
        self._outbox = self.store.rounds()
        if self._outbox and self._outbox[-1] > self.round:
            raise RunFolderError("the outbox is ahead of the ledger: an older ledger was put in its place")
        self.mailbox = Mailbox(self.variables)
        last = self.store.last_model()
        if last is not None:
            try:
                self.receive(last)
            except MalformedMessage as error:
                raise RunFolderError(f"the client's folder belongs to another model ({error})") from error
            self.mailbox.replace()

    # What a round calls (`PrivateModel.rounds`).

    def recorded(self, ledger: Ledger) -> None:
        """Puts the ledger on the disk; the noise of the rounds it counts is drawn after that."""
        self.store.write_ledger(ledger)

    def interrupt(self, i: Any, passes: int) -> None:
        """The interrupt routine, in the graph of the round."""
        self.mailbox.interrupt(i, passes)

    # Training.

    @property
    def round(self) -> int:
        """How many rounds of the plan are spent."""
        return self.model._released()

    @property
    def version(self) -> int:
        """Of the global model taken over last, -1 before the first."""
        return self.mailbox.version

    @property
    def finished(self) -> bool:
        """Whether the plan is used up and its last update is in the outbox."""
        return self._finished

    @property
    def exhausted(self) -> bool:
        """Whether all rounds of the plan are spent."""
        return self.round >= self.model.plan.rounds

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return self.model.ledger

    def receive(self, model: GlobalModel, at: float = 0.0) -> bool:
        """The weights become those of a newer global model, at the next micro-batch. May be called from any thread.

        Args:
          model: of any version; one that is not newer than what came before is ignored.
          at: for simulations, see `Mailbox.put`.

        Returns:
          Whether it was newer.

        Raises:
          MalformedMessage: its arrays are not those of this client's model, or not finite.
        """
        if not isinstance(model, GlobalModel) or model.version < 0:
            raise MalformedMessage("not a global model")
        shapes = [tuple(v.shape) for v in self.variables]
        if [tuple(w.shape) for w in model.weights] != shapes or any(w.dtype != np.float32 for w in model.weights):
            hint = ""
            if self.model.plan.statistics and len(model.weights) == len(self.model.model.trainable_variables):
                hint = ": batch normalisation's statistics are missing (federate server --private-statistics)"
            raise MalformedMessage(f"the global model's arrays are not those of this client's model{hint}")
        if not all(np.isfinite(w).all() for w in model.weights):
            raise MalformedMessage("the global model has weights that are not finite")
        with self._changed:
            if not self.mailbox.put(model, at):
                return False
            self.store.keep_model(model)
            self._changed.notify_all()
        return True

    def step(self) -> Update | None:
        """Releases the next round and puts its update into the outbox; None when the plan is used up."""
        if self._rounds is None:
            self._rounds = self.model.rounds(**self._data, watch=self)
        self.mailbox.replace()
        released = next(self._rounds, None)
        if released is None:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
            return None
        after = [np.array(v.numpy()) for v in self.variables]
        steps = [step_between(before, now) for before, now in zip(self.mailbox.weights, after, strict=True)]
        # The server adds the step in float32: both shall come to the same weights, to the last bit.
        reached = [before + step for before, step in zip(self.mailbox.weights, steps, strict=True)]
        for variable, value, now in zip(self.variables, reached, after, strict=True):
            if not np.array_equal(value, now):
                variable.assign(value)
        self.mailbox.hold(reached)
        self.mailbox.round_over()
        update = Update(self.client, released, self.version, tuple(steps))
        self.store.put(released, encode(update))
        with self._changed:
            self._outbox.append(released)
            self._changed.notify_all()
        return update

    def run(self) -> None:
        """Round after round, until the plan is used up or `stop` is called. Call it in one thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self.wait_for_model or self.mailbox.newest >= 0)
        while not self._stopped and self.step() is not None:
            if time.monotonic() - self._saved >= self.checkpoint_seconds:
                self.save()
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or len(self._outbox) < self.max_outbox)
        self.save()

    def save(self) -> None:
        """Keeps weights, optimizer and clipping state."""
        if self.store.state is not None:
            self.model.save_checkpoint(self.store.state)
        self._saved = time.monotonic()

    def stop(self) -> None:
        """Ends `run` after the round under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Gives up the folder; the trainer is of no use afterwards."""
        if self._rounds is not None:
            self._rounds.close()
        self.store.close()

    # What leaves.

    def exchange(self, wait: float = 0.0, most: int = 64, acknowledged: int = 0) -> list[bytes]:
        """The oldest updates that the server has not confirmed, encoded; the same again until it confirms them.

        Args:
          wait: seconds to wait for one.
          most: how many at most.
          acknowledged: the server has all updates up to this round that ever left here: they are forgotten.

        Raises:
          MalformedMessage: numbers that make no sense.
        """
        whole = type(most) is int and type(acknowledged) is int and type(wait) in (int, float)
        if not whole or not 0 <= wait <= LONGEST_WAIT or most < 1 or not 0 <= acknowledged <= self.round:
            raise MalformedMessage("wait, max and acknowledged must be numbers that can be")
        with self._changed:
            for number in [n for n in self._outbox if n <= acknowledged]:
                self.store.discard(number)
                self._outbox.remove(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox or self._finished or self._stopped, wait)
            chosen = self._outbox[:most]
            self._sent = max([self._sent, *chosen])
            return [self.store.get(number) for number in chosen]

    def facts(self) -> dict[str, Any]:
        """What a reply says beside the updates."""
        with self._changed:
            done = self._finished and not self._outbox
        return {"client": self.client, "round": self.round, "version": self.version, "finished": done}

    def status(self) -> dict[str, Any]:
        """JSON-able: rounds, ε so far at `delta`, and so on; of the data only what the plan makes public."""
        spent = self.model.spent
        if self._known_epsilon[0] != spent.rounds:
            self._known_epsilon = spent.rounds, float(spent.epsilon(self.delta))
        epsilon = self._known_epsilon[1]
        return {
            **self.facts(),
            "rounds": self.model.plan.rounds,
            "epsilon": epsilon if np.isfinite(epsilon) else None,
            "delta": self.delta,
            "neighbouring": self.model.plan.neighbouring,
            "sent": self._sent,
            "outbox": len(self._outbox),
            "examples": self.model.plan.sampling.planned_examples,
        }


def released_variables(model: PrivateModel) -> list[Any]:
    """The variables that hold released values only, in the order of the messages: the trainable weights, then batch
    normalisation's statistics where the plan releases them."""
    if not model.model.built:
        raise FederatedError("the model must be built: give it an Input layer")
    return [*model.model.trainable_variables, *(model._state_variables() if model.plan.statistics else ())]


def step_between(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """A float32 step with ``before + step == after`` in float32, wherever there is one.

    The difference is one, but for a tie of its rounding, where a neighbour is.
    """
    step = after - before
    for towards in (-np.inf, np.inf):
        wrong = before + step != after
        if not wrong.any():
            break
        other = np.nextafter(after - before, np.float32(towards))
        step = np.where(wrong & (before + other == after), other, step)
    return step
