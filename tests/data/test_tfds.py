"""TensorFlow Datasets: found, read whole, refused in one clear line; small data sets written here, real ones if at
hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from tfdpbc import data
from tfdpbc.data import tfds as reader
from tfdpbc.errors import DataError

tfds = pytest.importorskip("tensorflow_datasets")
tf = pytest.importorskip("tensorflow")

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "tfds"
IMAGES = np.random.default_rng(0).integers(0, 256, (9, 6, 5, 1), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0])
FEATURES = {"image": tfds.features.Image(shape=(6, 5, 1)), "label": tfds.features.ClassLabel(num_classes=3)}


def write(data_dir, name="tiny", version="1.0.0", config=None, features=None, columns=None):
    columns = columns or {"image": IMAGES, "label": LABELS}
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        config=config,
        data_dir=data_dir,
        features=tfds.features.FeaturesDict(features or FEATURES),
        split_datasets={
            "train": tf.data.Dataset.from_tensor_slices(columns).take(-1),
            "test": tf.data.Dataset.from_tensor_slices(columns).take(4),
        },
        disable_shuffling=True,
    )
    return data_dir


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def own(tmp_path):
    """A folder that the test may damage, and the path of its data set."""
    return write(tmp_path), tmp_path / "tiny" / "1.0.0"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test of this file reaches for the network."""
    monkeypatch.setattr(reader, "network_allows", lambda: False)


def refused(match, *arguments, **options):
    with pytest.raises(DataError, match=match) as caught:
        data.load(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_reads_whole(tiny, capfd):
    for split, size in (("train", 9), ("test", 4)):
        got = data.load("tiny", tiny, split)
        np.testing.assert_array_equal(got.x, IMAGES[:size])
        np.testing.assert_array_equal(got.y, LABELS[:size])
        assert got.x.dtype == np.uint8 and got.y.dtype == np.int64
        assert (got.num_classes, got.name) == (3, "tiny")
    assert capfd.readouterr().out == ""


def test_parts(tiny):
    np.testing.assert_array_equal(data.load("tiny", str(tiny), "train[3:7]").x, IMAGES[3:7])
    np.testing.assert_array_equal(data.load("tiny", tiny, limit=2).y, LABELS[:2])
    np.testing.assert_array_equal(data.load("tiny", tiny, "train[5:]", limit=2).y, LABELS[5:7])
    assert len(data.load("tiny", tiny, limit=1000)) == 9
    refused("is empty", "tiny", tiny, "train[:0]")


def test_default_folder(tiny, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tiny))
    assert len(data.load("tiny")) == 9


def test_versions(tmp_path):
    for version in ("2.0.0", "10.0.0"):
        write(tmp_path, version=version, columns={"image": IMAGES[: len(version)], "label": LABELS[: len(version)]})
    assert len(data.load("tiny", tmp_path)) == len("10.0.0")
    got = data.load("tiny:2.0.0", tmp_path)
    assert len(got) == len("2.0.0") and got.name == "tiny"
    refused("unknown data set|not prepared", "tiny:3.0.0", tmp_path)


def test_configurations(tmp_path):
    write(tmp_path, config="small")
    assert len(data.load("tiny", tmp_path)) == len(data.load("tiny/small", tmp_path)) == 9
    write(tmp_path, config="large")
    assert len(data.load("tiny/large", tmp_path)) == 9
    refused("name one: tiny/large, tiny/small", "tiny", tmp_path)


def test_supervised_keys(tmp_path):
    features = {"picture": FEATURES["image"], "kind": FEATURES["label"], "id": tfds.features.Scalar(tf.int64)}
    columns = {"picture": IMAGES, "kind": LABELS, "id": np.arange(9)}
    write(tmp_path, features=features, columns=columns)
    refused("no pair of image and label", "tiny", tmp_path)
    path = tmp_path / "tiny" / "1.0.0" / "dataset_info.json"
    keys = {"tuple": {"items": [{"featureKey": "picture"}, {"featureKey": "kind"}]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "supervisedKeys": keys}))
    np.testing.assert_array_equal(data.load("tiny", tmp_path).x, IMAGES)


@pytest.mark.parametrize(
    ("features", "columns", "why"),
    [
        ({"text": tfds.features.Text()}, {"text": np.array(["a", "b"] * 4)}, "no pair of image and label"),
        (
            {"image": tfds.features.Tensor(shape=(6, 5, 1), dtype=tf.uint8), "label": FEATURES["label"]},
            {"image": IMAGES, "label": LABELS},
            "'image' is no image",
        ),
        (
            {"image": FEATURES["image"], "label": tfds.features.Scalar(tf.int64)},
            {"image": IMAGES, "label": LABELS},
            "'label' is no class label",
        ),
        (
            {"image": tfds.features.Image(shape=(None, None, 1)), "label": FEATURES["label"]},
            {"image": IMAGES, "label": LABELS},
            "no fixed size",
        ),
    ],
)
def test_not_image_classification(tmp_path, features, columns, why):
    write(tmp_path, features=features, columns=columns)
    assert why in refused("tiny is not a data set for image classification", "tiny", tmp_path)


def test_unknown_names(tiny):
    refused("unknown data set 'minst'; did you mean mnist", "minst", tiny)
    refused("did you mean glyphs", "glyph", tiny)
    for name in ("", "../tiny", "tiny/../tiny", "/etc", "a b", "tiny:x", "no_such_set_at_all"):
        refused("unknown data set", name, tiny)
    with pytest.raises(TypeError, match="name must be a string"):
        data.load(3, tiny)


def test_unknown_splits(tiny):
    for split in ("valid", "train[", "", "train[a:b]"):
        refused("tiny has no split .* it has train, test", "tiny", tiny, split)
    refused("glyphs has no split 'valid'; it has train, test", "glyphs", None, "valid")


def test_missing_folder_and_network(tmp_path):
    refused("folder .*nowhere does not exist", "mnist", tmp_path / "nowhere")
    message = refused("mnist is not prepared in", "mnist", tmp_path)
    assert "no network" in message and "tfds build mnist" in message
    assert list(tmp_path.iterdir()) == []  # nothing half-made


def test_download_is_asked_for(tmp_path, monkeypatch):
    asked = []

    def fake(name, data_dir):
        asked.append((name, data_dir))
        write(data_dir, name="mnist")

    monkeypatch.setattr(reader, "network_allows", lambda: True)
    monkeypatch.setattr(reader, "download", fake)
    assert len(data.load("mnist", tmp_path)) == 9 and asked == [("mnist", tmp_path)]
    assert len(data.load("mnist", tmp_path)) == 9 and len(asked) == 1
    monkeypatch.setattr(reader, "download", lambda *_: None)
    refused("no prepared version", "kmnist", tmp_path)


@pytest.mark.parametrize("file", ["tiny-train.tfrecord-00000-of-00001", "dataset_info.json", "features.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "overwritten"])
def test_damaged_files(own, file, damage):
    data_dir, folder = own
    path = folder / file
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        half = whole[: len(whole) // 2]
        path.write_bytes(
            {"empty": b"", "truncated": half, "overwritten": half + b"\0" * (len(whole) - len(half))}[damage]
        )
    assert "prepare the data set again" in refused(r"tiny in .*1\.0\.0 is damaged", "tiny", data_dir)


def test_fewer_examples_than_stated(own):
    data_dir, folder = own
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["12"]
    info["splits"][1]["shardLengths"] = ["12"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    assert "{{" not in refused("is damaged .*12", "tiny", data_dir)


def test_labels_beyond_the_classes(own):
    data_dir, folder = own
    features = (folder / "features.json").read_text()
    (folder / "features.json").write_text(features.replace('"numClasses": "3"', '"numClasses": "2"'))
    refused(r"is damaged .*labels outside 0\.\.1", "tiny", data_dir)


@pytest.mark.parametrize(
    ("name", "shape", "split"), [("mnist", (28, 28, 1), "test"), ("cifar10", (32, 32, 3), "train[:5%]")]
)
def test_real_data(name, shape, split):
    if not (REAL / name).is_dir():
        pytest.skip(f"no {name} beside this repository")
    got = data.load(name, REAL, split, limit=1500)
    assert got.x.shape == (1500, *shape) and got.x.dtype == np.uint8 and got.num_classes == 10
    assert set(got.y) == set(range(10))
    # The published constants fit these images; nothing random here.
    standardized = got.standardized()
    assert abs(standardized.mean()) < 0.15 and 0.85 < standardized.std() < 1.15
