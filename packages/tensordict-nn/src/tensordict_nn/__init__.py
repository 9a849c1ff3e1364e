"""Modules that read and write tensordicts."""
