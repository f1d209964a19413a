"""ds4chat: a terminal chat that shows and steers multi-token prediction on llama.cpp."""

__version__ = "0.1.0"
