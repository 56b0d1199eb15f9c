#!/usr/bin/env python3
"""Train a model under a stated guarantee: `tfdpbc train` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="train")
