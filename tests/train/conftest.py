"""Makes the training package, which is not installed, and what these tests share importable."""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools" / "train-support"
if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))
if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))
