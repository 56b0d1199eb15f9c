"""What a bare `tfdpbc train` does, and the names the options accept (the registries themselves load TensorFlow)."""

# Data and model.
DATASET = "glyphs"
MODEL = "tutorial_cnn"

# The plan: the practice of the field (individual clipping of Poisson rounds), a promise instead of a noise multiplier.
SAMPLING = "poisson"
CLIP = "individual"
BATCH_SIZE = 1024
CLIPPING = "full"
NORM = 0.1
NORM_DECAY = 1.0
STATISTICS_NORM = 1.0
STATISTICS_NOISE_RATIO = 1.0
AGGREGATION = "sum"
EPSILON = 3.0
DELTA = 1e-5
EPOCHS = 15

# The optimizer: SGD with momentum. A small norm asks for a large step.
AUGMENTATIONS = 1
LEARNING_RATE = 2.0
LEARNING_RATE_DECAY = 1.0
MOMENTUM = 0.9

# The inner algorithm, where it is a local optimizer: a step size for gradients of single examples.
LOCAL_LEARNING_RATE = 0.01
PASSES = 1
MINIBATCH_SIZE = 1

# Names of the options' choices; a test compares them with the registries.
SAMPLINGS = ("poisson", "balls-in-bins", "shuffling", "subsampling")
CLIPPINGS = ("full", "layerwise", "grouped", "scaled", "quantile", "automatic")
NORM_ESTIMATES = ("released", "fixed", "private", "public")
AGGREGATIONS = ("sum", "trimmed", "global-trimmed", "coordinate-median", "geometric-median")
ALGORITHMS = (
    "batch-gradient",
    *("local-sgd", "local-momentum", "local-nesterov", "local-adam", "local-adagrad", "local-rmsprop"),
)
ENGINES = ("auto", "onepass", "vectorized")
AUGMENTS = ("none", "paper")
STATISTICS = ("private", "public", "batch", "unprotected")
