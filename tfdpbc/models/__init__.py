"""The models of the papers and of the field, by name.

Each is a function ``model(input_shape, num_classes, **options) -> keras.Model`` of standard Keras layers (so it saves
and loads without this package; the scattering networks need it for one layer) whose outputs are logits
``[batch, num_classes]`` in float32: train with ``from_logits=True``. ``seed`` fixes the initial weights; without it
Keras's own random state decides.
"""

from tfdpbc.models._common import NORMALIZATIONS
from tfdpbc.models.convnet import convnet
from tfdpbc.models.lenet import bn_lenet5
from tfdpbc.models.mlp import mlp
from tfdpbc.models.registry import build, names
from tfdpbc.models.resnet import resnet18
from tfdpbc.models.scattering import fixed_features, scattering_cnn, scattering_linear
from tfdpbc.models.tutorial import tutorial_cnn

__all__ = [
    "NORMALIZATIONS",
    "bn_lenet5",
    "build",
    "convnet",
    "fixed_features",
    "mlp",
    "names",
    "resnet18",
    "scattering_cnn",
    "scattering_linear",
    "tutorial_cnn",
]
