"""Tests mirror the package path for path: tests/<room>/test_<module>.py."""
