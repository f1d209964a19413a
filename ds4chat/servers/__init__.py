"""Engines elsewhere: servers that answer over HTTP, each in its own dialect, behind one remote session.

Imports nothing of llama.cpp and nothing of the screen.
"""
