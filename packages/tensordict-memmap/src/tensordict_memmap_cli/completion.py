"""Shell completion: scripts for bash, zsh and fish, generated from the parser of the command line."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_tensordict_memmap() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
        case "$word" in -*) ;; *) words="$words $(compgen -f -- "$word")" ;; esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _tensordict_memmap {prog}
"""


def script(shell: str, prog: str, commands: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script that makes a shell complete the commands and options, for ``source <(... completion bash)``.

    Args:
        shell: One of `SHELLS`.
        prog: The name of the program.
        commands: The parsers of the commands by name.
    """
    options = {name: [one for action in parser._actions for one in action.option_strings if one.startswith("--")]
               for name, parser in commands.items()}  # fmt: skip
    if shell == "fish":
        names = " ".join(commands)
        rows = [f"complete -c {prog} -n '__fish_use_subcommand' -f -a '{names}'"]
        for name, words in options.items():
            rows += [f"complete -c {prog} -n '__fish_seen_subcommand_from {name}' -l {word[2:]}" for word in words]
        return "\n".join(rows)
    cases = "\n".join(f'            {name}) words="{" ".join(words)}" ;;' for name, words in options.items())
    bash = _BASH.format(commands=" ".join(commands), cases=cases, prog=prog)
    # zsh runs scripts of bash once it is told to
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + bash
