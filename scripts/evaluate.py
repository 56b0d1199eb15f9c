#!/usr/bin/env python3
"""Evaluate an exported model and show its guarantee: `tfdpbc evaluate` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="evaluate")
