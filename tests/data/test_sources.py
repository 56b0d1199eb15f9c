"""Sources: what is accepted, what comes back for an index array, and what is refused in one clear line."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from tfdpbc.data.sources import ArraySource, RandomAccessSource, Source, as_source, check_labels
from tfdpbc.errors import DataError

N = 12
X = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
Y = np.arange(N) % 4
W = np.linspace(0, 1, N)
INDICES = np.array([[[3, 0], [11, 3]], [[5, 5], [1, 2]]])  # unsorted, with repeats: [rounds, m, s]


class Reader:
    """A random-access object; records what it was asked for."""

    def __init__(self, answer, length=N):
        self.answer, self.length, self.asked = answer, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, indices):
        self.asked.append(indices)
        return self.answer(indices)


class ListReader:
    """The protocol of `tfds.data_source` and of PyTorch data sets: single integers, or lists of them."""

    def __init__(self, element, **attributes):
        self.element = element
        self.__dict__.update(attributes)

    def __len__(self):
        return N

    def __getitem__(self, index):
        if not isinstance(index, int):
            raise TypeError("one record at a time")
        return self.element(index)

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def check(source, x=X, y=Y, w=None):
    assert len(source) == N
    got_x, got_y, got_w = source.gather(INDICES)
    np.testing.assert_array_equal(got_x, x[INDICES])
    assert got_x.shape == INDICES.shape + x.shape[1:]
    for got, want in ((got_y, y), (got_w, w)):
        if want is None:
            assert got is None
        else:
            np.testing.assert_array_equal(got, want[INDICES])
    return source


def test_arrays():
    source = check(as_source(X, Y, W), w=W)
    assert isinstance(source, Source)
    x, y, w = source.tensors
    assert x is X and y is Y and w is W  # no copy of the user's data
    check(as_source(X), y=None)


def test_memory_mapped_arrays_stay_on_disk(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = check(as_source(mapped, Y))
    assert np.shares_memory(source.tensors[0], mapped)


def test_tensors():
    tf = pytest.importorskip("tensorflow")
    source = check(as_source(tf.constant(X), tf.constant(Y)))
    assert all(isinstance(leaf, np.ndarray) for leaf in source.tensors[:2])


@pytest.mark.parametrize("pair", [tuple, list, namedtuple("Pair", "a b")._make])
def test_nested_inputs_keep_structure_and_dtype(pair):
    """pitfall 10: dict and tuple inputs keep structure and dtype."""
    nest = {"image": X.astype(np.uint8), "meta": pair([Y.astype(np.float64), W.astype(np.float16)])}
    x, y, w = as_source(nest, {"out": Y}, None).gather(INDICES)
    assert list(x) == ["image", "meta"] and type(x["meta"]) is type(nest["meta"])
    assert [x["image"].dtype, x["meta"][0].dtype, x["meta"][1].dtype] == [np.uint8, np.float64, np.float16]
    np.testing.assert_array_equal(x["meta"][1], W.astype(np.float16)[INDICES])
    np.testing.assert_array_equal(y["out"], Y[INDICES])
    assert w is None


def test_source_passes_through():
    source = as_source(X, Y)
    assert as_source(source) is source
    with pytest.raises(DataError, match="must come inside"):
        as_source(source, Y)


@pytest.mark.parametrize(
    ("x", "y", "w", "message"),
    [
        (X, Y[:-1], None, "same length; got x: 12, y: 11"),
        ({"a": X, "b": X[:3]}, None, None, r"x\['a'\]: 12, x\['b'\]: 3"),
        (X, Y, W[:2], "sample_weight: 2"),
        (X[:0], Y[:0], None, "empty"),
        ({}, None, None, "x holds no arrays"),
        (np.array(["a", "b"]), None, None, "must be numeric"),
        (np.array([None, 1]), None, None, "must be numeric; got an array of object"),
        (np.float32(3.0), None, None, "first axis"),
    ],
)
def test_bad_arrays(x, y, w, message):
    with pytest.raises(DataError, match=message) as caught:
        as_source(x, y, w)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("x", [(i for i in range(3)), 3, "mnist", [1, 2, 3], iter([X]), object()])
def test_wrong_kinds(x):
    with pytest.raises(TypeError, match="must be"):
        as_source(x)


def test_keras_batch_sequences_are_refused():
    keras = pytest.importorskip("keras")

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return X[index : index + 1], Y[index : index + 1]

    with pytest.raises(TypeError, match="indexed by batch"):
        as_source(Batches())


@pytest.mark.parametrize("indices", [[-1], [N], [[0, N + 5]]])
@pytest.mark.parametrize("source", [as_source(X, Y), as_source(Reader(lambda i: X[i]))])
def test_indices_outside(source, indices):
    with pytest.raises(IndexError, match=r"must be in 0\.\.11"):
        source.gather(np.array(indices))


def test_indices_must_be_integers():
    with pytest.raises(TypeError, match="array of integers"):
        as_source(X, Y).gather(np.array([True, False]))


def test_random_access():
    reader = Reader(lambda i: (X[i], Y[i], W[i]))
    source = check(as_source(reader), w=W)
    assert isinstance(source, RandomAccessSource) and source.tensors is None
    # Sorted and distinct, so that HDF5-like files accept it and no example is read twice.
    np.testing.assert_array_equal(reader.asked[-1], np.unique(INDICES))
    check(as_source(Reader(lambda i: (X[i], Y[i]))))
    check(as_source(Reader(lambda i: X[i])), y=None)
    check(as_source(Reader(lambda i: {"image": X[i], "label": Y[i]})))
    x, _, _ = as_source(Reader(lambda i: {"a": X[i], "b": Y[i]})).gather(INDICES)
    np.testing.assert_array_equal(x["b"], Y[INDICES])


def test_random_access_with_labels_beside():
    check(as_source(Reader(lambda i: X[i]), Y, W), w=W)
    with pytest.raises(DataError, match="x has 12 examples, y and sample_weight have 11"):
        as_source(Reader(lambda i: X[i]), Y[:-1])
    with pytest.raises(DataError, match="labels of its own"):
        as_source(Reader(lambda i: (X[i], Y[i])), Y)


def test_list_readers():
    check(as_source(ListReader(lambda i: {"image": X[i], "label": int(Y[i])})))
    check(as_source(ListReader(lambda i: (X[i], Y[i]))))
    info = SimpleNamespace(supervised_keys=("picture", "kind"))
    check(as_source(ListReader(lambda i: {"picture": X[i], "kind": Y[i], "id": b"x"}, dataset_info=info)))


def test_random_access_that_misbehaves():
    with pytest.raises(DataError, match="returned 12 examples for 1 indices"):
        as_source(Reader(lambda i: X))
    with pytest.raises(DataError, match="KeyError"):
        as_source(Reader(lambda i: {}["missing"]))
    with pytest.raises(DataError, match="empty"):
        as_source(Reader(lambda i: X[i], length=0))
    changing = as_source(Reader(lambda i: X[i] if len(i) == 1 else (X[i], Y[i])))
    with pytest.raises(DataError, match="changed its structure"):
        changing.gather(INDICES)
    with pytest.raises(DataError, match="tuple of 4"):
        as_source(Reader(lambda i: (X[i],) * 4))


class TestTfData:
    tf = pytest.importorskip("tensorflow")

    def dataset(self, *parts):
        return self.tf.data.Dataset.from_tensor_slices(parts)

    def test_single_examples(self):
        check(as_source(self.dataset(X, Y, W)), w=W)
        check(as_source(self.dataset(X, np.eye(4)[Y])), y=np.eye(4)[Y])  # no scalar, but first dimensions differ

    def test_batches(self):
        source = check(as_source(self.dataset(X, Y).batch(5)))  # the last batch is smaller
        assert isinstance(source, ArraySource)
        check(as_source(self.dataset(X).batch(4).map(lambda x: x)), y=None)

    def test_dictionaries(self):
        x, y, _ = as_source(self.dataset({"a": X, "b": W}, Y).batch(4)).gather(INDICES)
        np.testing.assert_array_equal(x["b"], W[INDICES])
        np.testing.assert_array_equal(y, Y[INDICES])

    def test_refused(self):
        with pytest.raises(DataError, match="infinite"):
            as_source(self.dataset(X, Y).repeat())
        with pytest.raises(DataError, match="length of the tf.data set is unknown"):
            as_source(self.dataset(X, Y).filter(lambda x, y: y > 1))
        with pytest.raises(DataError, match="empty"):
            as_source(self.dataset(X, Y).take(0))
        with pytest.raises(DataError, match="must come inside"):
            as_source(self.dataset(X, Y), Y)
        with pytest.raises(DataError, match="dense tensor"):
            as_source(self.tf.data.Dataset.from_tensors(self.tf.ragged.constant([[1], [2, 3]])))


class TestCheckLabels:
    def test_good(self):
        check_labels(np.arange(10), 10)
        check_labels(np.array([0.0, 9.0]), 10)
        check_labels(np.array([True, False]), 2)

    @pytest.mark.parametrize("bad", [10, -1, 255])
    def test_out_of_range(self, bad):
        with pytest.raises(DataError, match=rf"0\.\.9; got {bad} at position 3 \(1 of 5"):
            check_labels(np.array([0, 1, 9, bad, 2]), 10)

    @pytest.mark.parametrize("bad", [np.nan, 0.5, np.inf])
    def test_not_whole(self, bad):
        with pytest.raises(DataError, match="whole numbers"):
            check_labels(np.array([0.0, bad]), 10)

    def test_not_numbers(self):
        with pytest.raises(DataError, match="whole numbers"):
            check_labels(np.array(["cat", "dog"]), 2)
