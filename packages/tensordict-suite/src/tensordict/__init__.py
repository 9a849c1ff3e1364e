"""The drop-in name."""
