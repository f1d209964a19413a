"""Stored conversations: the list, search, branches."""
