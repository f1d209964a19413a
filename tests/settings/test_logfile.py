"""A log that cannot be written: what is said, and that nothing else is lost."""

from __future__ import annotations

import os
from pathlib import Path

from ds4chat.settings.logfile import usable_log


def test_why_no_log_is_kept_is_said_in_sentences_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "Logs").write_text("a file where the folder should be")
    log, problem = usable_log(tmp_path / "Logs" / "ds4chat.log")
    assert log == Path(os.devnull)
    assert problem == (
        f"No log is kept. {tmp_path}/Logs is not a folder, and ds4chat keeps its files in {tmp_path}/Logs. "
        "Move it away, or set DS4CHAT_HOME to a folder that can be written. Or name another "
        "file with log-file."
    )


def test_a_log_that_is_a_folder_names_the_system_s_reason(tmp_path: Path) -> None:
    log, problem = usable_log(tmp_path)
    assert log == Path(os.devnull)
    assert problem == (
        f"No log is kept. {tmp_path} cannot be written: Is a directory. Make it writable. Or name another "
        "file with log-file."
    )
