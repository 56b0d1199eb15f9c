"""A server and a client on machines of their own: what they read before anything starts."""

import datetime
import json
import socket

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc.errors import FederatedError, MalformedMessage
from tfdpbc.federated import deploy, files, hosting, keys, loop
from tfdpbc.federated.local import released_variables
from tfdpbc.federated.messages import GlobalModel
from tfdpbc.federated.processes import free_port


def normalised(seed=0):
    keras.utils.set_random_seed(seed)
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


@pytest.fixture
def config(tmp_path):
    """A client's configuration, good enough for what is read before anything starts."""
    (tmp_path / "a.json").write_text(json.dumps({"client": "a", "directory": str(tmp_path / "a")}))
    return tmp_path / "a.json"


def test_what_a_client_shows_a_server_is_looked_at_first(tmp_path, config):
    pytest.importorskip("flwr")
    keys.make_certificates(tmp_path, ["127.0.0.1"])
    private, public = keys.make_node_key(tmp_path, "a")

    def refused(words, ca=tmp_path / keys.CA, key=private, insecure=False):
        with pytest.raises(FederatedError, match=words):
            hosting.join(config, "127.0.0.1:9092", ca, key, insecure, print)
        assert not (tmp_path / "a").exists()

    refused("--insecure excludes --ca and --key", insecure=True)
    refused("must be called ca.pem; got .*server.pem", ca=tmp_path / keys.CERTIFICATE)
    public.chmod(0o600)
    refused("--key: .*a.pub is not what", key=public)
    private.chmod(0o640)
    refused("--key: others than its owner may read .*a.key")
    private.chmod(0o600)
    (tmp_path / keys.CA).write_text("-----BEGIN CERTIFICATE-----")
    refused("ca.pem is no certificate")


def test_a_folder_in_use(tmp_path, config, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr(deploy, "FREE_SECONDS", 0.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "server").mkdir()
    with files.lock(tmp_path / "a" / "lock"), pytest.raises(FederatedError, match="another process trains in .*/a"):
        hosting.join(config, "127.0.0.1:9092", None, None, True, print)
    with files.lock(tmp_path / "server" / "serving"), pytest.raises(FederatedError, match="another server runs in"):
        serve(tmp_path, names=("a",), insecure=True)
    assert not files.is_locked(tmp_path / "a" / "lock")


def serve(tmp_path, **given):
    """`hosting.serve` with a model; it is to fail before anything starts."""
    if not (tmp_path / "m.keras").exists():
        normalised().save(tmp_path / "m.keras")
    usual = {
        "public_keys": None,
        "names": (),
        "host": "127.0.0.1",
        "hosts": (),
        "port": free_port(),
        "max_seconds": None,
    }
    usual |= {"initial": tmp_path / "m.keras", "insecure": False, "statistics": False, "max_norm": 1e4, "tell": print}
    return hosting.serve(tmp_path / "server", **usual | given)


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "--keys is missing"),
        ({"insecure": True}, "no client may take part: --client is missing"),
        ({"names": ("a",)}, "--client is for --insecure only"),
        ({"insecure": True, "names": ("a", "b", "a")}, "--client: a more than once"),
        ({"insecure": True, "names": ("a b",)}, "clients must be names of letters"),
        ({"insecure": True, "names": ("a",), "host": "0.0.0.0"}, "--insecure.* must listen on loopback"),
        ({"insecure": True, "names": ("a",), "max_norm": -1.0}, "max_norm must be"),
        ({"insecure": True, "names": ("a",), "max_seconds": 0.0}, "max_seconds must be"),
        ({"insecure": True, "names": ("a",), "trim": -1}, "trim must be"),
        ({"insecure": True, "names": ("a",), "initial": None}, "--initial is missing"),
    ],
)
def test_servers_that_are_refused_leave_nothing(tmp_path, given, words):
    pytest.importorskip("flwr")
    with pytest.raises((FederatedError, ValueError), match=words):
        serve(tmp_path, **given)
    assert not (tmp_path / "server").exists()


def test_public_keys_that_are_refused(tmp_path):
    pytest.importorskip("flwr")
    folder = tmp_path / "keys"
    folder.mkdir()

    def refused(words, **given):
        with pytest.raises(FederatedError, match=words):
            serve(tmp_path, public_keys=folder, **given)

    refused("no CLIENT.pub in .*keys")
    private, public = keys.make_node_key(folder, "a")
    refused("exclude each other", insecure=True)
    (folder / "b.pub").write_bytes(public.read_bytes())
    refused("a.pub and b.pub in .* are one key")
    (folder / "b.pub").write_bytes(private.read_bytes())
    refused("b.pub is not what")


def test_a_port_in_use_and_another_model(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr(deploy, "FREE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(FederatedError, match=f"port must be free; another process listens on 127.0.0.1:{port}"):
            serve(tmp_path, names=("a",), insecure=True, port=port)
    loop.prepare(tmp_path / "server", hosting.read_keras(tmp_path / "m.keras"), {"max_norm": 1.0}, {})
    normalised(seed=1).save(tmp_path / "other.keras")
    with pytest.raises(FederatedError, match="other.keras is not the model that .*server began with"):
        serve(tmp_path, names=("a",), insecure=True, initial=tmp_path / "other.keras")


def test_a_server_whose_app_fails_or_is_gone(tmp_path, monkeypatch):
    class Nothing:
        def ended(self):
            return {}

    monkeypatch.setattr(hosting, "APP_SECONDS", 0.0)
    with pytest.raises(FederatedError, match="app does not run"):
        hosting._result(tmp_path, Nothing())
    (tmp_path / loop.FAILED).write_text("RunFolderError: damaged")
    with pytest.raises(FederatedError, match="app failed: RunFolderError: damaged"):
        hosting._result(tmp_path, Nothing())


@pytest.mark.parametrize("address", ["host", ":9092", "host:", "host:x", "host:0", "host:65536", "host:٣"])
def test_addresses_that_are_none(tmp_path, config, address):
    pytest.importorskip("flwr")
    with pytest.raises(FederatedError, match="HOST:PORT"):
        hosting.join(config, address, None, None, True, print)
    assert not (tmp_path / "a").exists()


def test_in_the_clear_to_another_machine_is_refused(config):
    pytest.importorskip("flwr")
    with pytest.raises(FederatedError, match="loopback"):
        hosting.join(config, "fed.example.org:9092", None, None, True, print)


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
    hosting._certificates(address, address.host, ("fed.example.org",))
    certificate = x509.load_pem_x509_certificate(address.file(keys.CERTIFICATE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one.value) for one in names} == {"127.0.0.1", "fed.example.org"}
    deploy.configure(tmp_path / "flower", address)
    assert 'address = "127.0.0.1:9092"' in (tmp_path / "flower" / "config.toml").read_text()
    assert deploy.Address("::1", 9092, None).text == "[::1]:9092"
    made = address.file(keys.PRIVATE).read_bytes()
    hosting._certificates(address, address.host, ("fed.example.org",))
    with pytest.raises(FederatedError, match="is not for other.example.org; .* remove its folder"):
        hosting._certificates(address, address.host, ("other.example.org",))
    assert address.file(keys.PRIVATE).read_bytes() == made


def test_a_certificate_that_ended(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    address = deploy.Address("127.0.0.1", 9092, tmp_path)
    hosting._certificates(address, address.host, ())
    later = keys._now() + datetime.timedelta(days=keys.DAYS + 1)
    monkeypatch.setattr(keys, "_now", lambda: later)
    with pytest.raises(FederatedError, match="server.pem ended on"):
        hosting._certificates(address, address.host, ())
    with pytest.raises(FederatedError, match="ca.pem ended on"):
        keys.check_certificate(tmp_path / keys.CA)


def test_a_model_file_holds_what_the_clients_release(tmp_path):
    """With batch normalisation whose statistics the plans release they are part of the model, in the clients' order."""
    net = normalised()
    net.save(tmp_path / "m.keras")
    plain, whole = (hosting.read_keras(tmp_path / "m.keras", statistics) for statistics in (False, True))
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
        hosting.read_keras(tmp_path / "none.keras", True)
    with pytest.raises(FederatedError, match="--initial is missing"):
        hosting.read_keras(None)
    with pytest.raises(FederatedError, match="--initial must be a .keras file"):
        hosting.read_keras(tmp_path / "m.h5")
