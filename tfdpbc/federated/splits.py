"""Who owns which examples: splits of one data set among clients, for studies and demonstrations."""

from __future__ import annotations

import numpy as np

from tfdpbc import _validate

KINDS = ("iid", "label")


def split(kind: str, y: np.ndarray, clients: int, seed: int = 0, classes_per_client: int = 2) -> list[np.ndarray]:
    """Disjoint index arrays of equal size, one for each client.

    Args:
      kind: "iid" deals the examples out at random. "label" sorts them by label (at random among equals), cuts the order into
        ``clients * classes_per_client`` shards and deals each client so many of them: most see about `classes_per_client`
        classes only (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data").
      y: labels ``[N]``; "iid" looks at their number only.
      clients: how many.
      seed: of the split.

    Raises:
      ValueError: fewer examples than shards.
    """
    _validate.choice("split", kind, KINDS)
    y = np.asarray(y).reshape(-1)
    clients = _validate.integer("clients", clients, at_least=1)
    shards = clients * (1 if kind == "iid" else _validate.integer("classes_per_client", classes_per_client, at_least=1))
    if len(y) < shards:
        _validate.fail("clients", f"so few that each of {shards} shards gets one of {len(y)} examples", clients)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0x5911,)))
    order, size = rng.permutation(len(y)), len(y) // shards
    if kind == "label":
        order = order[np.argsort(y[order], kind="stable")]
    pieces = order[: shards * size].reshape(shards, size)
    return [np.concatenate(chosen) for chosen in np.split(pieces[rng.permutation(shards)], clients)]
