#!/usr/bin/env python3
"""An experiment of the papers: claimed beside got: `tfdpbc reproduce` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="reproduce")
