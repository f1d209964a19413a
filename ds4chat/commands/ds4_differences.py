"""How ds4chat differs from ds4, for its users: the source of the help and of docs/ds4.md."""

from __future__ import annotations

import textwrap

DIFFERENCES: tuple[tuple[str, str], ...] = (
    (
        "--mtp FILE, --mtp-model FILE, --mtp",
        "ds4 has used both spellings at different times. Here the first two name a support file, and "
        "--mtp without a file uses the block inside the model.",
    ),
    (
        "--mtp-draft 1",
        "In ds4 a depth of 1 means no speculation: its first draft is checked against logits that are "
        "already there. Here it is one real draft per step. Without --mtp and --lookup nothing speculates.",
    ),
    (
        "--mtp-margin F",
        "In ds4 a logit gap of the drafter, by default 3: below it two drafts are not verified together. "
        "It never decides what is accepted. Here it is a probability ratio from 0 to 1 that does decide "
        "it, and 1, the default, is exact. ds4's gap is --mtp-gate here, at any depth, and off by "
        "default.",
    ),
    (
        "DS4_MTP_MIN_MARGIN",
        "It overrides --mtp-margin, as in ds4. Here it is that ratio; a value that is not a number from 0 to "
        "1 is reported and ignored.",
    ),
    (
        "DS4_MTP_STRICT, DS4_MTP_PROBE, ... as switches",
        "In ds4 any value switches them on, even an empty one or 0. Here unset, empty or 0 means off.",
    ),
    (
        "--mtp-strict, DS4_MTP_STRICT",
        "In ds4 it picks another verifier for two drafts. Here the stream of one-token greedy decoding is "
        "proven by a self-test when the model loads, at any depth.",
    ),
    (
        "DS4_MTP_FULL_LOGITS, DS4_MTP_KEEP_ACCEPTED",
        "In ds4 the first reads back the drafter's logits, and the second does not exist. Here the first "
        "computes the target's whole distribution, and the second, on by default, keeps accepted tokens "
        "of a block in which a reply ends; 0 drops them.",
    ),
    (
        "--mtp-spec-log, --mtp-conf-log, --mtp-timing",
        "In ds4 the first two are variables only, and the third switches embedded MTP on. Here all three "
        "are options and variables that only print, and a miss of the first draft is counted like any "
        "other step.",
    ),
    (
        "--mtp-verify-depth N",
        "An option of ds4's test program without a value. Here it belongs to the tests, with a depth: "
        "pytest --mtp-verify-depth N.",
    ),
    (
        "--temp F",
        "ds4's default is 1, where its support-file drafter is not used. Here it is 0, and drafts are "
        "verified at any temperature.",
    ),
)
"""Options or variables, and how they differ."""


def help_text(width: int = 79) -> str:
    """The differences as the section of a help text."""
    lines = ["Where ds4chat and ds4 differ:"]
    for names, text in DIFFERENCES:
        lines.append(f"  {names}")
        lines += textwrap.wrap(
            text, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )
    return "\n".join(lines)
