#!/usr/bin/env python3
"""Audit the guarantee by attacks: `tfdpbc audit` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="audit")
