#!/usr/bin/env python3
"""State the guarantee of a plan: `tfdpbc account` as a script."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main(command="account")
