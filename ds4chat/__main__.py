"""``python -m ds4chat``."""

from __future__ import annotations

import sys

from ds4chat.cli import main

if __name__ == "__main__":
    sys.exit(main())
