"""llama.cpp's own server in a process of its own: ``llama_host.py MODEL KIND [DRAFT]``.

Prints its address on stdout once it answers, logs on stderr, and ends with its stdin.
"""

from __future__ import annotations

import sys

import xllamacpp as llama

KINDS = {"plain": "NONE", "eagle3": "DRAFT_EAGLE3", "ngram": "NGRAM_SIMPLE", "mtp": "DRAFT_MTP"}


def main(model: str, kind: str, draft: str = "", key: str = "", log: str = "log") -> None:
    """Serve until stdin ends."""
    params = llama.CommonParams()
    params.model.path = model
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port = 0
    params.endpoint_slots = params.endpoint_metrics = True
    params.verbosity = 5 if log else 1
    params.warmup = params.fit_params = False
    if key:
        params.api_keys = [key]
    if kind != "plain":
        params.speculative.types = [
            getattr(llama.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{KINDS[kind]}")
        ]
        params.speculative.draft.n_max = 3
        params.speculative.draft.cpuparams.n_threads = 1
        params.speculative.draft.mparams.path = draft
        params.speculative.ngram_simple.size_n = 3
        params.speculative.ngram_simple.size_m = 6
    server = llama.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
