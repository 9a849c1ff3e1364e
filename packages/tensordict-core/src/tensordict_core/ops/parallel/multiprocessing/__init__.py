"""Several processes on one machine: workers that map over a tensordict, shared memory."""
