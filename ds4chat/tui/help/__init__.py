"""Help, about and the command palette."""
