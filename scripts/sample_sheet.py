#!/usr/bin/env python3
"""Draws the sample sheet of the built-in data set that the README shows: a row per digit, test images."""

import click
import numpy as np
from PIL import Image

from tfdpbc.data import glyphs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--columns", default=16, show_default=True, help="Images per digit.")
@click.option("--out", type=click.Path(dir_okay=False), default="docs/images/glyphs.png", show_default=True)
def main(columns: int, out: str) -> None:
    """Writes the sample sheet as a PNG of 16 grey levels."""
    x, y = glyphs.generate("test", num_examples=1_000)
    sheet = np.vstack([np.hstack(list(x[y == digit][:columns, :, :, 0])) for digit in range(glyphs.NUM_CLASSES)])
    sheet = sheet.repeat(2, 0).repeat(2, 1) >> 4
    levels = Image.frombytes("P", sheet.shape[::-1], sheet.tobytes())
    levels.putpalette([17 * level for level in range(16) for _ in range(3)])
    levels.save(out, bits=4, optimize=True)


if __name__ == "__main__":
    main()
