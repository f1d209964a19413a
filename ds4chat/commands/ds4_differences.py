"""Where ds4chat and ds4 differ, for a reader who comes from ds4: the help and docs/ds4.md say the same."""

from __future__ import annotations

import textwrap

DIFFERENCES: tuple[tuple[str, str], ...] = (
    (
        "--mtp FILE, --mtp-model FILE, --mtp",
        "ds4 has used both spellings at different times. Here the first two name a support file, and "
        "--mtp alone takes the block inside the model.",
    ),
    (
        "--mtp-draft 1",
        "In ds4 a depth of 1 means no speculation: its first draft is checked against logits that are "
        "already there. Here it is one real draft a step. No speculation is no --mtp and no --lookup.",
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
        "It wins over --mtp-margin, as in ds4. Here it is that ratio; a value that is no number from 0 to "
        "1 is reported and ignored.",
    ),
    (
        "DS4_MTP_STRICT, DS4_MTP_PROBE, ... as switches",
        "In ds4 any value switches them on, an empty one and 0 too. Here unset, empty or 0 is off.",
    ),
    (
        "--mtp-strict, DS4_MTP_STRICT",
        "In ds4 it picks another verifier for two drafts. Here the stream of one-token greedy decoding is "
        "proven by a self-test when the model loads, at any depth.",
    ),
    (
        "DS4_MTP_FULL_LOGITS, DS4_MTP_KEEP_ACCEPTED",
        "In ds4 the first reads back the drafter's logits, and the second is no variable. Here the first "
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
"""What the option or variable is, and how it differs."""


def help_text(width: int = 79) -> str:
    """The differences as the section of a help text."""
    lines = ["Where ds4chat and ds4 differ:"]
    for names, text in DIFFERENCES:
        lines.append(f"  {names}")
        lines += textwrap.wrap(
            text, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )
    return "\n".join(lines)
