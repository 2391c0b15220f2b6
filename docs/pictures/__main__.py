"""Makes the pictures of the README and of the documentation, in the repository's root.

python -m docs.pictures                    # all, which takes about ten minutes
python -m docs.pictures promise charts  # some, by the names of the files here

What a page shows goes to docs/images, the other pictures to build/pictures. Those of pages need
Chromium (`apt-get install chromium`) and `make docs`' packages.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from docs.pictures.support import save

NAMES = sorted({file.stem for file in Path(__file__).parent.glob("*.py")} - {"__main__", "support"})


def main() -> None:
    """Make the pictures that are named, or all."""
    for name in sys.argv[1:] or NAMES:
        for picture in import_module(f"docs.pictures.{name}").pictures():
            save(picture)


if __name__ == "__main__":
    main()
