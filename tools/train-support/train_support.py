"""Entry point: ``python tools/train-support/train_support.py STEP ...``; ``--help`` lists the steps."""

from __future__ import annotations

import sys

from eagle3_training.cli import main

if __name__ == "__main__":
    sys.exit(main())
