"""The live panels beside the transcript."""

from __future__ import annotations

from ds4chat.tui.panels.dock import PANELS, PanelDock

__all__ = ["PANELS", "PanelDock"]
