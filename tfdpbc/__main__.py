"""``python -m tfdpbc`` is ``tfdpbc``."""

from tfdpbc.cli import main

if __name__ == "__main__":
    main()
