"""Bytes in, messages out; whatever else comes in is refused as malformed, and nothing else is ever raised."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tfdpbc.errors import MalformedMessage, TfdpbcError
from tfdpbc.federated import messages
from tfdpbc.federated.messages import GlobalModel, Update, check_update, decode, encode

WEIGHTS = st.lists(arrays(np.float32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)), max_size=3)
UPDATE = Update("alice", 3, 2, (np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([1.5])))
NUMBERS = st.integers(-(2**53), 2**53)


@given(WEIGHTS, NUMBERS, NUMBERS)
def test_update_there_and_back(weights, number, base):
    back = decode(encode(Update("a.B_c-9", number, base, tuple(weights))))
    assert (type(back), back.client, back.round, back.base_version) == (Update, "a.B_c-9", number, base)
    for one, other in zip(back.weights, weights, strict=True):
        assert one.dtype == np.float32 and one.shape == other.shape
        assert one.tobytes() == other.tobytes()  # NaN payloads and signs of zeros as well


@given(WEIGHTS, st.integers(0, 2**53))
def test_model_there_and_back(weights, version):
    back = decode(encode(GlobalModel(version, tuple(weights))))
    assert type(back) is GlobalModel and back.version == version
    assert [one.tobytes() for one in back.weights] == [other.tobytes() for other in weights]


def test_arrays_of_other_layouts_arrive_as_they_read():
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    big_endian = np.arange(4, dtype=">f4")
    back = decode(encode(Update("a", 1, 0, (turned, big_endian))))
    np.testing.assert_array_equal(back.weights[0], turned)
    np.testing.assert_array_equal(back.weights[1], np.arange(4))
    assert not back.weights[0].flags.writeable


@given(st.binary(max_size=200))
def test_noise_is_malformed(data):
    with pytest.raises(MalformedMessage):
        decode(data)


@given(st.data())
def test_a_changed_message_is_malformed_or_another_message(data):
    """One byte changed anywhere: never another exception, never a message of another length."""
    raw = bytearray(encode(UPDATE))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        back = decode(bytes(raw))
    except MalformedMessage:
        return
    assert isinstance(back, Update | GlobalModel)
    assert len(encode(back)) == len(raw)


@given(st.integers(0, len(encode(UPDATE)) - 1))
def test_a_cut_message_is_malformed(length):
    with pytest.raises(MalformedMessage):
        decode(encode(UPDATE)[:length])
    with pytest.raises(MalformedMessage):
        decode(encode(UPDATE) + bytes(length + 1))


def crafted(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<6sBI", messages.MAGIC, messages.FORMAT, len(text)) + text + body


def fields(**changed):
    return {"kind": "update", "client": "a", "round": 1, "base_version": 0, "arrays": []} | changed


def test_the_crafted_message_is_one():
    assert decode(crafted(fields())).client == "a"


@pytest.mark.parametrize(
    "header",
    [
        [],
        "update",
        {"kind": "update"},
        {"kind": []},
        fields(kind="pickle"),
        fields(more=1),
        fields(client="../../etc/passwd"),
        fields(client="a" * 65),
        fields(client="a\n"),
        fields(client="é"),
        fields(client=7),
        fields(client=""),
        fields(round=True),
        fields(round=1.0),
        fields(round=2**53 + 1),
        fields(round=None),
        fields(base_version="0"),
        {"kind": "model", "version": -1, "arrays": []},
        fields(arrays={}),
        fields(arrays=[["|O", [1]]]),
        fields(arrays=[["<f4", [-1]]]),
        fields(arrays=[["<f4", [True]]]),
        fields(arrays=[["<f4", [1.0]]]),
        fields(arrays=[["<f4", 3]]),
        fields(arrays=[["<f4", [1 << 30]]]),
        fields(arrays=[["<f4", [1 << 20] * 8]]),
        fields(arrays=[["<f4", [0] * 9]]),
        fields(arrays=[["<f4"]]),
        fields(arrays=[[["<f4"], [1]]]),
        fields(arrays=[["<f4", [0]]] * (messages.MAX_ARRAYS + 1)),
        b'{"kind":"model","version":NaN,"arrays":[]}',
        b'{"kind":"model","version":' + b"9" * 5000 + b',"arrays":[]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_crafted_headers_are_malformed(header):
    with pytest.raises(MalformedMessage):
        decode(crafted(header))


@pytest.mark.parametrize("data", [None, "text", 3, bytearray(encode(UPDATE)), b""])
def test_other_things_are_malformed(data):
    with pytest.raises(MalformedMessage):
        decode(data)


def test_limits_hold_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(messages, "MAX_BYTES", 100)
    big = Update("a", 1, 0, (np.zeros(100, np.float32),))
    with pytest.raises(MalformedMessage):
        encode(big)
    monkeypatch.undo()
    data = encode(big)
    monkeypatch.setattr(messages, "MAX_BYTES", 100)
    with pytest.raises(MalformedMessage):
        decode(data)
    with pytest.raises(MalformedMessage):
        decode(struct.pack("<6sBI", messages.MAGIC, 1, messages.MAX_HEADER + 1) + b"{}")


@pytest.mark.parametrize(
    "message",
    [
        Update("bad name", 1, 0, ()),
        Update("a", 1.5, 0, ()),
        Update("a", 1, 0, (np.array(["x"]),)),
        Update("a", 1, 0, (np.array([object()]),)),
        Update("a", 1, 0, (np.zeros(3, np.int64),)),
        GlobalModel(-1, ()),
        b"bytes",
    ],
)
def test_what_decode_refuses_is_not_encoded(message):
    with pytest.raises(MalformedMessage):
        encode(message)


def test_numpy_integers_are_integers():
    assert decode(encode(Update("a", np.int64(4), np.int32(-1), ()))).round == 4


def test_the_error_is_the_users_to_mend():
    assert issubclass(MalformedMessage, ValueError) and issubclass(MalformedMessage, TfdpbcError)


def step(*arrays, number=1, base=0):
    return Update("a", number, base, tuple(np.asarray(array, np.float32) for array in arrays))


@pytest.mark.parametrize(
    "update, reason",
    [
        (step([3, 4], [[0]]), None),
        (step([3, 4], [[1e-3]]), "too-large"),
        (step([1e30, 0], [[0]]), "too-large"),
        (step([np.nan, 0], [[0]]), "non-finite"),
        (step([0, 0], [[-np.inf]]), "non-finite"),
        (step([3, 4]), "wrong-shape"),
        (step([3, 4], [0]), "wrong-shape"),
        (step([[0]], [3, 4]), "wrong-shape"),
        (step([3, 4, 0], [[0]]), "wrong-shape"),
        (step([3, 4], [[0]], number=-1), "negative-round"),
        (step([3, 4], [[0]], base=-1), None),
        (step([3, 4], [[0]], base=-2), "negative-round"),
        (Update("a", 1, 0, (np.zeros(2), np.zeros((1, 1)))), "wrong-type"),
    ],
)
def test_check_update(update, reason):
    assert check_update(update, [(2,), (1, 1)], 5.0) == reason
