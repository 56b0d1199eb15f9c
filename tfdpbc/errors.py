"""The exceptions a user of this library may want to catch.

Argument errors are plain ``ValueError``/``TypeError`` (raised through :mod:`tfdpbc._validate`); the classes here mark
situations that a program may want to handle apart from a typing mistake.
"""


class TfdpbcError(Exception):
    """Base class of every error the user can mend; the command line prints its message in one line and exits with 1."""


class BudgetExhausted(TfdpbcError):
    """More rounds were asked for than the plan holds. Raised before anything is released."""


class IncompatibleModel(TfdpbcError, ValueError):
    """The model (or its loss) cannot be trained under this plan without breaking the guarantee."""


class UnreachableTarget(TfdpbcError, ValueError):
    """No noise multiplier keeps the promise that was asked for; the message says what can be reached."""


class DataError(TfdpbcError):
    """A data set is unknown, missing, damaged, or does not fit the plan or the model."""


class RunFolderError(TfdpbcError):
    """A run folder, a config file, a checkpoint or an exported model is missing or damaged."""


class MalformedMessage(TfdpbcError, ValueError):
    """Bytes that are no message of the federated format. The server counts such messages; it never fails on one."""


class FederatedError(TfdpbcError):
    """A federated training cannot start or go on: Flower is missing, a process died, a key or a setting does not fit."""
