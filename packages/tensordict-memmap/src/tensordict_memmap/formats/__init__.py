"""Formats on disk: how each describes tensordicts. Reading and writing files is left to others."""
