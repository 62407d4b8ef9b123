"""The option `--wait[=DURATION]`: its value may be left out, which typer has no word for."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

FOREVER = "forever"
OPTION = "--wait"


class OptionalWait(TyperCommand):
    """A command with `--wait`: without a value it means `FOREVER`, and takes no other argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line."""
        return super().parse_args(ctx, self._completed(args))

    def _completed(self, args: list[str]) -> list[str]:
        """The arguments with a value for `--wait`, up to the command that is to run."""
        with_value = {
            name
            for one in self.params
            if one.param_type_name == "option" and not getattr(one, "is_flag", False)
            for name in one.opts
        }
        done: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            done.append(f"{OPTION}={FOREVER}" if word == OPTION else word)
            if word != OPTION and word in with_value and rest:
                done.append(rest.pop(0))
        return done + rest
