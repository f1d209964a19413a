"""``python -m ds4chat``."""

from __future__ import annotations

import sys

from ds4chat.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
