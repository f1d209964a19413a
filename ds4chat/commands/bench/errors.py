"""What can go wrong with a measurement."""


class BenchError(Exception):
    """The measurement, or the server beside it, cannot go on; the text is a sentence for the user."""
