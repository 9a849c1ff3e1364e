"""Runs the differential fuzzer: ``python tests/differential/fuzz.py --seed 0 --calls 10000 --show 30``.

Prints the unexplained differences in clusters, the largest first, each with its smallest program.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time

import torch
from fuzzing import calls, programs, rules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--only", default="", help="names of calls, separated by commas")
    parser.add_argument("--kind", default="", help="only containers whose label contains this")
    parser.add_argument("--show", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.tracebacklimit = 0  # what the reference does inside is not looked at
    theirs, ours = programs.libraries()
    spaces = programs.namespace(theirs), programs.namespace(ours)
    names = given.only.split(",") if given.only else calls.call_names(ours.TensorDict, theirs.TensorDict)
    clusters: dict[tuple[str, str, str], list[calls.Program]] = collections.defaultdict(list)
    explained: collections.Counter[str] = collections.Counter()
    start, errors = time.time(), 0
    for number in range(given.calls):
        rng = random.Random(f"{given.seed}-{number}")
        program = calls.program(rng, ours.TensorDict, theirs.TensorDict, names)
        if given.kind and given.kind not in program.x.label:
            continue
        found = programs.compare(program, *spaces)
        row = rules.explain(program, found) if found else None
        if row:
            explained[row] += 1
        elif found:
            errors += 1
            built = found[0].place.startswith("construct")
            clusters[("" if built else program.call.name, found[0].place.split(".")[0], found[0].kind)].append(program)
    print(
        f"{given.calls} calls in {time.time() - start:.0f} s: {errors} unexplained, {sum(explained.values())} explained"
    )
    for row, count in explained.most_common():
        print(f"  {count:5} {row}")
    for key, found_programs in sorted(clusters.items(), key=lambda item: -len(item[1]))[: given.show]:
        labels = collections.Counter(program.x.label for program in found_programs)
        print(f"\n== {len(found_programs)} {key} {dict(labels.most_common(4))}")
        smallest = min((programs.shrink(p, *spaces) for p in found_programs[:4]), key=lambda p: len(str(p.lines())))
        print("   " + "\n   ".join(smallest.lines()))
        for difference in programs.compare(smallest, *spaces)[:3]:
            print(f"   {difference.place} {difference.kind}:")
            print(f"      theirs {difference.theirs}\n      ours   {difference.ours}")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
