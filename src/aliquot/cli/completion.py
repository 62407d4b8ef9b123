"""`aliquot completion`: scripts for bash, zsh and fish.

A script contains the commands, their options and the values of options, so that a Tab costs no
start of Python; only names of grants and jobs are asked for (`names`). All three scripts follow the
same steps over the same table:

- A value of an option that takes one, or else an option if the word begins with `-`.
- Otherwise a subcommand, or else the argument of the command.
- After `--` comes a command of the shell.
"""

from __future__ import annotations

import shlex
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.names import COMMAND as NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRANTS, _JOBS, _FILES, _ANY = "@grants", "@jobs", "@files", "@any"
_OF_GRANTS = {"resize", "kill", "slice delete"}  # commands whose NAME is a grant's


class Shell(StrEnum):
    """A shell that has a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script(shell: Shell, root: Any) -> str:
    """The script for a shell; `root` is the application as typer builds it."""
    table = dict(_table(root, ""))
    match shell:
        case Shell.BASH:
            return _BASH.replace("@TABLE@", _cases(table)).replace("@NAMES@", NAMES)
        case Shell.ZSH:
            return _ZSH.replace("@TABLE@", _cases(table)).replace("@NAMES@", NAMES)
        case Shell.FISH:
            return _FISH.replace("@TABLE@", _fish_cases(table)).replace("@NAMES@", NAMES)


def _table(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """What can follow, by key. `PATH`, which is empty or begins with a space, has subcommands.

    `PATH -` has the options, `PATH OPTION` the values of an option that takes one, and `PATH @`
    the argument.
    """
    inner = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    if inner:
        yield path, sorted(inner)
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    names = [name for one in options for name in (*one.opts, *one.secondary_opts)]
    yield f"{path} -", sorted({*(name for name in names if name.startswith("--")), "--help"})
    for one in options:
        if not one.is_flag and not (one.metavar or "").startswith("[="):  # only after =
            yield from ((f"{path} {name}", _values(one, path)) for name in one.opts)
    for one in command.params:
        if one.param_type_name == "argument":
            yield f"{path} @", _values(one, path)
            break
    for name, one in inner.items():
        yield from _table(one, f"{path} {name}")


def _values(parameter: Any, path: str) -> list[str]:
    """The values of an option or argument: words, or one of the kinds that begin with @."""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    shown = (parameter.metavar or "").rstrip(".").strip("[]")
    if shown.partition("[")[0] == "JOB":  # --after JOB[:ok|:any] too
        return [_JOBS]
    if shown == "NAME" and path.strip() in _OF_GRANTS:
        return [_GRANTS]
    return [_FILES] if shown == "FILE" or kind is Path else [_ANY]


def _cases(table: dict[str, list[str]]) -> str:
    return "\n".join(
        f"        {shlex.quote(key)}) reply={shlex.quote(' '.join(words))} ;;"
        for key, words in sorted(table.items())
    )


def _fish_cases(table: dict[str, list[str]]) -> str:
    return "\n".join(
        f"        case {shlex.quote(key)}\n            printf '%s\\n' {shlex.join(words)}"
        for key, words in sorted(table.items())
    )


# In bash and zsh alike: `words` are those before the current one, without the program; `current`
# is the word to complete. It sets `reply` to what can follow.
_STEPS = r"""
_aliquot_lookup() {
    reply=
    case "$1" in
@TABLE@
    *) return 1 ;;
    esac
}

_aliquot_find() {
    local current="$1" path= value= word
    shift
    for word in "$@"; do
        if [ -n "$value" ]; then
            value=
        elif [ "$word" = -- ]; then
            reply=@commands
            return
        elif [ "${word#-}" != "$word" ]; then
            case "$word" in
            *=*) ;;
            *) if _aliquot_lookup "$path $word"; then value="$word"; fi ;;
            esac
        elif _aliquot_lookup "$path" && case " $reply " in *" $word "*) ;; *) false ;; esac; then
            path="$path $word"
        fi
    done
    if [ -n "$value" ]; then
        _aliquot_lookup "$path $value"
    elif [ "${current#-}" != "$current" ]; then
        _aliquot_lookup "$path -"
    else
        _aliquot_lookup "$path" || _aliquot_lookup "$path @" || reply=@any
    fi
}
"""

_BASH = (
    '# bash completion of aliquot. For example: eval "$(aliquot completion bash)"\n'
    + _STEPS
    + r"""
_aliquot() {
    local line="${COMP_LINE:0:COMP_POINT}" reply current program words one
    COMPREPLY=()
    read -ra words <<<"$line"
    current=
    case "$line" in
    *[[:space:]]) ;;
    *) current="${words[-1]}"; unset 'words[-1]' ;;
    esac
    program="${words[0]}"
    _aliquot_find "$current" "${words[@]:1}"
    case "$reply" in
    @grants | @jobs) reply="$("$program" @NAMES@ "${reply#@}" 2>/dev/null)" ;;
    @commands)
        if [ "${words[-1]}" = -- ]; then mapfile -t COMPREPLY < <(compgen -c -- "$current"); fi
        compopt -o default 2>/dev/null
        return ;;
    @files) compopt -o default 2>/dev/null; return ;;
    @any) return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$reply" -- "$current")
    # Bash completes only what comes after a colon.
    case "$current" in
    *:*) for one in "${!COMPREPLY[@]}"; do
            COMPREPLY[one]="${COMPREPLY[one]#"${current%"${current##*:}"}"}"
        done ;;
    esac
}
complete -F _aliquot aliquot
"""
)

_ZSH = (
    "#compdef aliquot\n# zsh completion of aliquot. For example: source <(aliquot completion zsh)\n"
    + _STEPS
    + r"""
_aliquot() {
    emulate -L zsh
    local reply program="${words[1]}" current="${words[CURRENT]}"
    _aliquot_find "$current" "${(@)words[2,CURRENT-1]}"
    case "$reply" in
    (@grants|@jobs) reply="$(command "$program" @NAMES@ "${reply#@}" 2>/dev/null)" ;;
    (@commands) if [[ "${words[CURRENT-1]}" == -- ]]; then _command_names -e; fi; _files; return ;;
    (@files) _files; return ;;
    (@any) return ;;
    esac
    local -a found
    found=(${=reply})
    (( $#found )) && compadd -- "${found[@]}"
}
if [[ "${zsh_eval_context[-1]}" == loadautofunc ]]; then
    _aliquot "$@"
else
    compdef _aliquot aliquot
fi
"""
)

_FISH = r"""# fish completion of aliquot. For example: aliquot completion fish | source
function __aliquot_lookup
    switch "$argv[1]"
@TABLE@
        case '*'
            return 1
    end
end

function __aliquot_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -l path ''
    set -l value ''
    set -l reply
    for word in $words[2..-1]
        if test -n "$value"
            set value ''
        else if test "$word" = --
            set -l first (math (contains -i -- -- $words) + 1)
            __fish_complete_subcommand --commandline $words[$first..-1]
            return
        else if string match -q -- '-*' $word
            if not string match -q -- '*=*' $word; and __aliquot_lookup "$path $word" >/dev/null
                set value $word
            end
        else if contains -- $word (__aliquot_lookup "$path")
            set path "$path $word"
        end
    end
    if test -n "$value"
        set reply (__aliquot_lookup "$path $value")
    else if string match -q -- '-*' "$current"
        set reply (__aliquot_lookup "$path -")
    else
        set reply (__aliquot_lookup "$path"; or __aliquot_lookup "$path @")
    end
    switch "$reply[1]"
        case @grants @jobs
            command $program @NAMES@ (string sub -s 2 -- $reply[1]) 2>/dev/null
        case @files
            __fish_complete_path "$current"
        case @any ''
            return
        case '*'
            printf '%s\n' $reply
    end
end
complete -c aliquot -f -a '(__aliquot_complete)'
"""
