"""The controller of draft depth auto."""
