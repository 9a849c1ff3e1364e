"""Sets the version of all distributions, and the bounds that they put on each other: ``set_version.py 0.2.0``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def version(text: str) -> tuple[str, str]:
    """The version, and the bounds on distributions of the same minor version."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.\d+(?:(?:a|b|rc)\d+)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no version; pass one such as 0.2.0 or 0.2.0rc1")
    major, minor = int(match[1]), int(match[2])
    return text, f">={major}.{minor},<{major}.{minor + 1}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", type=version)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another checkout")
    arguments = parser.parse_args()
    text, bounds = arguments.version
    replaced = 0
    for package in sorted((arguments.root / "packages").glob("tensordict-*")):
        edits = {
            package / "pyproject.toml": (r'("tensordict-[a-z]+(?:\[[a-z0-9,]+\])?)>=[0-9.]+,<[0-9.]+"', rf'\1{bounds}"')
        }
        for source in [*package.glob("src/*/__init__.py"), *package.glob("src/*/_serve/aliases.py")]:
            edits[source] = (r'^((?:__version__|SUITE_VERSION) = )".*"$', rf'\1"{text}"')
        for path, (pattern, new) in edits.items():
            changed, count = re.subn(pattern, new, path.read_text(), flags=re.MULTILINE)
            path.write_text(changed)
            replaced += count
    print(f"{replaced} places say {text}; write the section {text} of docs/changelog.md")


if __name__ == "__main__":
    main()
