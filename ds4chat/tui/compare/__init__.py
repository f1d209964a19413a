"""The last prompt under two settings: which they are, their figures, and the screen."""
