"""Public home of the callbacks (`tfdpbc.callbacks.PrivacyMeter`)."""

from tfdpbc.training.callbacks import PrivacyMeter

__all__ = ["PrivacyMeter"]
