"""What tests of containers need: the suite that every container must pass, and strategies that make examples."""
