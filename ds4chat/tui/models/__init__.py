"""The model picker."""
