"""Makes the pictures of docs/ from the demo: python tools/pictures.py [FOLDER]

The real engine answers a prompt in the real chat, without a terminal; Textual exports the screen as SVG.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

PROMPT = "Write a Python function that reverses a string, and explain it."
SIZES = {"chat": (150, 45), "chat-80x24": (80, 24)}


async def picture(folder: Path, name: str, size: tuple[int, int]) -> None:
    """One picture of a finished reply at this size."""
    from ds4chat.settings.load import load
    from ds4chat.tui.app import ChatApp

    app = ChatApp(load({"demo": True, "predict": 120}, None, {}).settings)
    try:
        async with app.run_test(size=size) as pilot:
            while app.chat.state != "ready":
                await pilot.pause(0.1)
            app.chat_screen.prompt.text_field.insert(PROMPT)
            await pilot.press("enter")
            while app.chat.reply is not None or app.chat.conversation.last_reply is None:
                await pilot.pause(0.1)
            await pilot.pause(0.5)
            (folder / f"{name}.svg").write_text(app.export_screenshot(title="ds4chat --demo"))
    finally:
        app.chat.engine.close()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    folder.mkdir(parents=True, exist_ok=True)
    import os

    with tempfile.TemporaryDirectory() as home:
        os.environ["DS4CHAT_HOME"] = home
        for name, size in SIZES.items():
            asyncio.run(picture(folder, name, size))


if __name__ == "__main__":
    main()
