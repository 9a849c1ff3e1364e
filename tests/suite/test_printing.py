"""The suite prints as the release that it stands in for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch, tensordict
print(tensordict.TensorDict({"a": torch.zeros(3, 4)}, [3]))
with tensordict.set_printoptions(compact=False):
    print("fields={\\n        a: Tensor(shape" in repr(tensordict.TensorDict({"a": torch.zeros(3, 4)}, [3])))
print(tensordict.get_printoptions()["compact"])
"""


def test_the_compact_form_is_the_default_of_the_suite():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["TensorDict(batch_size=[3], fields={a: f32[4]})", "True", "True"]
