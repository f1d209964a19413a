"""The log screen."""
