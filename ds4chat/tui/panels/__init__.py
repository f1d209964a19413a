"""The live panels beside the transcript."""

from __future__ import annotations

from ds4chat.tui.panels.dock import PanelDock

__all__ = ["PanelDock"]
