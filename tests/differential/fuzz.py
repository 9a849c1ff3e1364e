"""Runs the differential fuzzer: ``python tests/differential/fuzz.py --seed 0 --calls 10000 --show 30``.

Prints differences that no row of docs/differences.md explains in clusters, the largest first, each with its smallest
program. ``--all`` shows those too that open_differences.txt lists; ``--write`` adds all to that file.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time

import torch
from fuzzing import programs
from fuzzing.search import OPEN, cluster, open_clusters, search


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--only", default="", help="names of calls, separated by commas")
    parser.add_argument("--kind", default="", help="only containers whose label contains this")
    parser.add_argument("--show", type=int, default=30)
    parser.add_argument("--all", action="store_true", help="show known differences too")
    parser.add_argument("--row", default="", help="show calls that rows explain which start with this")
    parser.add_argument("--device", default="cpu", help="where the programs make their tensors")
    parser.add_argument("--write", action="store_true", help="add what is found to open_differences.txt")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.device != "cpu":
        torch.set_default_device(given.device)
    sys.tracebacklimit = 0  # what the reference does inside is not looked at
    start = time.time()
    known = open_clusters()
    only = given.only.split(",") if given.only else None
    findings = search(given.seed, range(given.calls), only, given.kind, frozenset() if given.all else known, given.row)
    print(
        f"{findings.calls} calls in {time.time() - start:.0f} s: {findings.unexplained} new differences, "
        f"{sum(findings.known.values())} known ones in {len(findings.known)} clusters, "
        f"{sum(findings.explained.values())} explained"
    )
    for row, count in findings.explained.most_common() if not given.row else ():
        print(f"  {count:5} {row}")
    theirs, ours = programs.libraries()
    spaces = programs.namespace(theirs), programs.namespace(ours)
    for row, found in findings.examples.items():
        print(f"\n## {len(found)} {row}")
        for program in found[: given.show]:
            print("\n   " + "\n   ".join(program.lines()))
            for difference in programs.compare(program, *spaces)[:3]:
                print(f"   {difference.place} {difference.kind}: {difference.theirs[:200]} >> {difference.ours[:200]}")
    clusters = sorted(findings.clusters.items(), key=lambda item: -len(item[1]))
    for key, found in clusters[: given.show]:
        labels = collections.Counter(program.x.label for program in found)
        print(f"\n== {len(found)} {key} {dict(labels.most_common(4))}")
        smallest = min((programs.shrink(p, *spaces, cluster) for p in found[:4]), key=lambda p: len(str(p.lines())))
        print("   " + "\n   ".join(smallest.lines()))
        for difference in programs.compare(smallest, *spaces)[:3]:
            print(f"   {difference.place} {difference.kind}:")
            print(f"      theirs {difference.theirs}\n      ours   {difference.ours}")
    if given.write:
        lines = sorted(" | ".join(key) for key in {*known, *findings.clusters})
        head = "# call | place | kind: differences that no row of docs/differences.md explains yet"
        OPEN.write_text("\n".join([head, *lines]) + "\n")
    return 1 if findings.clusters else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of some results of the reference is that of a set
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    raise SystemExit(main())
