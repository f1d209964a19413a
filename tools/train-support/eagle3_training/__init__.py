"""Training of an EAGLE-3 support model for a small llama-type target; see the README beside this package."""
