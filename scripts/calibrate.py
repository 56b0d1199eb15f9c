#!/usr/bin/env python3
"""Find the noise that keeps a promise: `tfdpbc calibrate` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="calibrate")
