"""Widgets and helpers that every screen shares."""
