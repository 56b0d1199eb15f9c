#!/usr/bin/env python3
"""Put plans side by side under one promise: `tfdpbc compare` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="compare")
