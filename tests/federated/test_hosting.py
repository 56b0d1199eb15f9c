"""A server and a client on machines of their own: what they read before anything starts."""

import json

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc.errors import FederatedError, MalformedMessage
from tfdpbc.federated import deploy, hosting, keys
from tfdpbc.federated.local import released_variables
from tfdpbc.federated.messages import GlobalModel


def normalised():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((helpers.DIM,)), *layers])


@pytest.mark.parametrize(
    "given, words",
    [
        ("", "no client's configuration"),
        ("[]", "no client's configuration"),
        ('{"client": "a"}', "no client's configuration: KeyError\\('directory'\\)"),
        ('{"client": "../a", "directory": "x"}', "client must be 1 to 64 letters"),
        ('{"client": "a", "directory": "x"}', "--ca .* or --key .* is missing"),
    ],
)
def test_a_client_without_what_it_needs(tmp_path, given, words):
    pytest.importorskip("flwr")
    (tmp_path / "a.json").write_text(given)
    with pytest.raises(FederatedError, match=words):
        hosting.join(tmp_path / "a.json", "127.0.0.1:9092", None, None, False, print)


@pytest.mark.parametrize("address", ["host", ":9092", "host:", "host:x", "host:0", "host:65536", "host:٣"])
def test_addresses_that_are_none(tmp_path, address):
    pytest.importorskip("flwr")
    (tmp_path / "a.json").write_text(json.dumps({"client": "a", "directory": str(tmp_path / "a")}))
    with pytest.raises(FederatedError, match="HOST:PORT"):
        hosting.join(tmp_path / "a.json", address, None, None, True, print)
    assert not (tmp_path / "a").exists()


def test_in_the_clear_to_another_machine_is_refused(tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "a.json").write_text(json.dumps({"client": "a", "directory": str(tmp_path / "a")}))
    with pytest.raises(FederatedError, match="loopback"):
        hosting.join(tmp_path / "a.json", "fed.example.org:9092", None, None, True, print)


def test_names_that_lead_elsewhere_are_refused(tmp_path):
    with pytest.raises(ValueError, match="client must be 1 to 64 letters"):
        keys.make_node_key(tmp_path, "../../root")
    (tmp_path / "a b.pub").touch()
    with pytest.raises(FederatedError, match="a key's file is CLIENT.pub"):
        hosting._public_keys(tmp_path)


def test_the_servers_own_programs_find_a_server_that_listens_everywhere(tmp_path):
    pytest.importorskip("flwr")
    from cryptography import x509

    address = deploy.Address("0.0.0.0", 9092, tmp_path / "certificates")
    hosting._certificates(address, [address.host, "fed.example.org"])
    certificate = x509.load_pem_x509_certificate(address.file(keys.CERTIFICATE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one.value) for one in names} == {"127.0.0.1", "fed.example.org"}
    deploy.configure(tmp_path / "flower", address)
    assert 'address = "127.0.0.1:9092"' in (tmp_path / "flower" / "config.toml").read_text()
    assert deploy.Address("::1", 9092, None).text == "[::1]:9092"


def test_a_model_file_holds_what_the_clients_release(tmp_path):
    """With batch normalisation whose statistics the plans release they are part of the model, in the clients' order."""
    net = normalised()
    net.save(tmp_path / "m.keras")
    plain, whole = (hosting._read_keras(tmp_path / "m.keras", statistics) for statistics in (False, True))
    plan = helpers.plan(dp.Subsampling.batch(helpers.N, 12), statistics=dp.PrivateStatistics(1.0))
    model = helpers.private(plan, net=net, statistics="private")
    expected = [v.numpy() for v in released_variables(model)]
    assert len(whole.weights) == len(plain.weights) + 2 == len(expected)
    for mine, theirs in zip(whole.weights, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    client = helpers.trainer(model)
    with pytest.raises(MalformedMessage, match="--private-statistics"):
        client.receive(plain)
    assert client.receive(GlobalModel(1, whole.weights)) and client.step().round == 1
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "none.keras")
    with pytest.raises(FederatedError, match="no batch normalisation"):
        hosting._read_keras(tmp_path / "none.keras", True)
    with pytest.raises(FederatedError, match="--initial is missing"):
        hosting._read_keras(None, False)
