"""Dataclasses of tensors that behave like one tensor."""
