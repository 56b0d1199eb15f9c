"""The models: their exact shapes and sizes, seeds, serialisation without this package, refusals."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from tfdpbc import models
from tfdpbc.data import NORMALIZATION, Dataset

SHAPES = [(28, 28, 1), (32, 32, 3)]
VARIANTS = [
    ("convnet", {}),
    ("convnet", {"normalization": "batch"}),
    ("bn_lenet5", {}),
    ("bn_lenet5", {"normalization": "none", "pooling": "max", "activation": "tanh"}),
    ("bn_lenet5", {"normalization": "group"}),
    ("tutorial_cnn", {}),
    ("mlp", {}),
    ("resnet18", {}),
    ("scattering_linear", {"orientations": 4}),
    ("scattering_cnn", {"orientations": 2, "filters": 4}),
]


def trainable_layers(model):
    return [layer.name for layer in model.layers if layer.trainable_weights]


def test_names():
    assert models.names() == [
        "bn_lenet5",
        "convnet",
        "mlp",
        "resnet18",
        "scattering_cnn",
        "scattering_linear",
        "tutorial_cnn",
    ]
    for name in models.names():
        assert callable(getattr(models, name))
    assert models.build("tutorial-cnn", (28, 28, 1), 10).name == "tutorial_cnn"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_forward(name, options, shape):
    model = models.build(name, shape, 7, **options)
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    logits = model(x).numpy()
    assert logits.shape == (3, 7) and logits.dtype == np.float32
    # Logits, not probabilities: a softmax layer would sum to one.
    assert not np.allclose(logits.sum(-1), 1, atol=1e-3)
    batch = any(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    assert batch == (options.get("normalization", "batch" if name == "bn_lenet5" else "none") == "batch")


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters", "layers"),
    [
        ("tutorial_cnn", (28, 28, 1), {}, 26_010, 4),  # Opacus and TF-Privacy: 26,010
        ("mlp", (28, 28, 1), {}, 785 * 512 + 513 * 512 + 513 * 10, 3),
        ("mlp", (20,), {"units": ()}, 210, 1),
        # LeNet-5: 156 + 2416 + 48120 + 10164 + 850 = 61,706; each BN adds scale and offset and replaces the bias.
        ("bn_lenet5", (28, 28, 1), {"normalization": "none"}, 61_706, 5),
        ("bn_lenet5", (28, 28, 1), {}, 61_706 + 6 + 16 + 120, 8),
        ("convnet", (32, 32, 3), {}, 896 + 18_496 + 36_928 + 73_856 + 1_290, 5),
        ("convnet", (32, 32, 3), {"normalization": "batch"}, 131_466 + 288, 9),
        ("convnet", (32, 32, 3), {"normalization": "group"}, 131_466 + 288, 9),
        ("scattering_linear", (28, 28, 1), {}, 49 * 81 * 10 + 10, 1),
        ("scattering_cnn", (28, 28, 1), {"filters": 16}, (81 * 9 + 1) * 16 + (16 * 9 + 1) * 16 + 170, 3),
        # The figure that the CIFAR variants of the field state.
        ("resnet18", (32, 32, 3), {}, 11_173_962, 41),
        ("resnet18", (32, 32, 3), {"normalization": "batch"}, 11_173_962, 41),
    ],
)
def test_sizes(name, shape, options, parameters, layers):
    model = models.build(name, shape, 10, **options)
    assert sum(int(np.prod(w.shape)) for w in model.trainable_weights) == parameters
    assert len(trainable_layers(model)) == layers  # L of layer-wise clipping


def test_lenet_pads_to_32():
    model = models.bn_lenet5((28, 28, 1), 10)
    assert model.get_layer("c1").input.shape == (None, 32, 32, 1)
    assert model.get_layer("c5").output.shape == (None, 1, 1, 120)
    assert models.bn_lenet5((32, 32, 3), 10).get_layer("c1").input.shape == (None, 32, 32, 3)
    assert models.bn_lenet5((27, 9, 1), 10).get_layer("c1").input.shape == (None, 32, 32, 1)
    assert models.bn_lenet5((40, 32, 1), 10).get_layer("c5").output.shape == (None, 3, 1, 120)


def test_block_order_of_paper_b():
    kinds = [type(layer).__name__ for layer in models.convnet((32, 32, 3), 10, normalization="batch").layers]
    block = ["Conv2D", "BatchNormalization", "Activation", "AveragePooling2D"]
    assert kinds == ["InputLayer", *block * 3, *block[:3], "GlobalAveragePooling2D", "Dense"]


def test_62_parameter_tensors_of_resnet():
    assert len(models.resnet18((32, 32, 3), 10, normalization="batch").trainable_weights) == 62
    assert len(trainable_layers(models.resnet18((32, 32, 3), 10, normalization="none"))) == 21


def test_seed():
    one, two, other = (models.tutorial_cnn((28, 28, 1), 10, seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(one.get_weights(), two.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or not np.array_equal(a, c)  # biases start at zero whatever the seed
    free = [models.mlp((30,), 10, units=(30,)).get_weights()[0] for _ in range(2)]
    assert not np.array_equal(*free)
    layers = models.mlp((30,), 30, units=(30,), seed=1).get_weights()  # equal shapes must not get equal weights
    assert not np.array_equal(layers[0], layers[2])


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_round_trip(name, options, tmp_path):
    """pitfall 21: `.keras` reloads and get_config round-trips."""
    model = models.build(name, (28, 28, 1), 10, seed=3, **options)
    clone = keras.Model.from_config(model.get_config())
    assert [layer.get_config() for layer in clone.layers] == [layer.get_config() for layer in model.layers]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).random((4, 28, 28, 1), np.float32)
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)


def test_loads_without_this_package(tmp_path):
    model = models.bn_lenet5((28, 28, 1), 10)
    model.save(tmp_path / "model.keras")
    code = "import keras, sys; keras.saving.load_model('model.keras'); assert 'tfdpbc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_mixed_precision_keeps_logits_in_float32():
    """pitfall 7: float32 or better under mixed precision."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = models.tutorial_cnn((28, 28, 1), 10)
    finally:
        keras.config.set_dtype_policy(policy)
    assert model.get_layer("conv1").compute_dtype == "bfloat16"
    assert model(np.zeros((1, 28, 28, 1), np.float32)).dtype == "float32"


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_standardize_is_a_fixed_part_of_the_model(name, options):
    """It is what the data set's own standardisation does outside; it has no weights, and is no layer to be clipped."""
    constants, x = NORMALIZATION["cifar10"], np.random.default_rng(0).random((3, 32, 32, 3), np.float32)
    plain, model = (models.build(name, (32, 32, 3), 7, seed=1, standardize=s, **options) for s in (None, constants))
    outside = Dataset(x, np.zeros(3), 7, "cifar10").standardized()
    np.testing.assert_allclose(model(x), plain(outside), rtol=1e-4, atol=1e-4)
    assert trainable_layers(model) == trainable_layers(plain) and model.count_params() == plain.count_params()


def test_one_constant_serves_all_channels():
    x = np.random.default_rng(0).random((3, 9), np.float32)
    model = models.mlp((9,), 2, units=(), seed=1, standardize=((0.5,), [0.25]))
    np.testing.assert_allclose(model(x), models.mlp((9,), 2, units=(), seed=1)((x - 0.5) / 0.25), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.build("tutorialcnn", (28, 28, 1), 10), "model must be one of .*did you mean 'tutorial_cnn'"),
        (lambda: models.build("", (28, 28, 1), 10), "model must be one of"),
        (lambda: models.build("tutorial_cnn", (12, 28, 1), 10), "at least 13 x 13 pixels"),
        (lambda: models.build("convnet", (7, 7, 3), 10), "at least 8 x 8 pixels"),
        (lambda: models.build("convnet", (28, 28), 10), r"\(height, width, channels\)"),
        (lambda: models.build("bn_lenet5", (0, 28, 1), 10), "integer >= 1"),
        (lambda: models.build("bn_lenet5", (28, 28, 1), 10, pooling="min"), "pooling must be one of"),
        (lambda: models.build("resnet18", (32, 32, 3), 10, normalization="layer"), "normalization must be one of"),
        (lambda: models.build("mlp", (), 10), "at least one dimension"),
        (lambda: models.build("mlp", (4,), 1), "num_classes must be an integer >= 2"),
        (lambda: models.build("mlp", (4,), 3, units=(0,)), "units must be"),
        (lambda: models.build("mlp", (4,), 3, standardize=((0, 0), (1,))), "standardize must be"),
        (lambda: models.build("mlp", (4,), 3, standardize=((0,), (0,))), "standardize must be"),
        (lambda: models.build("mlp", (4,), 3, standardize=((float("nan"),), (1,))), "standardize must be"),
        (lambda: models.build("mlp", (4,), 3, standardize=0.5), "standardize must be"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("tutorial_cnn", 13), ("convnet", 8), ("bn_lenet5", 1), ("resnet18", 8), ("scattering_cnn", 4)],
)
def test_smallest_input_works(name, smallest):
    assert models.build(name, (smallest, smallest, 1), 2)(np.zeros((1, smallest, smallest, 1))).shape == (1, 2)


def test_wrong_types():
    with pytest.raises(TypeError):
        models.build("mlp", 784, 10)
    with pytest.raises(TypeError, match="normalization"):
        models.build("mlp", (784,), 10, normalization="batch")


def test_names_import_nothing_heavy():
    code = "import tfdpbc.models, sys; tfdpbc.models.names(); assert not {'keras', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
