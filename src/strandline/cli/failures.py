"""What a command prints when it fails: one line that names the next step. And its exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from strandline.errors import Conflict, Forbidden, Invalid, NotFound, OutcomeUnknown, StrandlineError, Unavailable

FAILED = 1
USAGE = 2
UNAVAILABLE = 3

# For errors whose text names no next step. The first family that matches is used.
_NEXT_STEPS: tuple[tuple[type[StrandlineError], str], ...] = (
    (NotFound, "see `strandline event-types list`"),
    (Conflict, "see `strandline event-types show`"),
    (Forbidden, "check the permissions of the files, or the rules of the proxy in front of the server"),
    (OutcomeUnknown, "check whether it was done before you retry"),
    (Unavailable, "retry later, or check with `strandline doctor`"),
    (Invalid, "correct the request and try again"),
)


def guarded(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. An error is printed, its traceback only with --debug."""
    try:
        result = command.main(list(arguments), prog_name="strandline", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return abandon_output()
    except Exception as error:
        if "--debug" in arguments:
            raise
        return _fail(error, as_json="--json" in arguments)
    return result if isinstance(result, int) else 0


def abandon_output() -> int:
    """The reader closed the pipe, which is no error: the flush of the interpreter at exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(error: Exception, *, as_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return USAGE
    code, exit_code, detail, info = _described(error)
    if as_json:
        print(json.dumps({"error": {"code": code, "detail": detail, **info}}, default=str), file=sys.stderr)
    else:
        print(f"error: {' '.join(detail.split())}", file=sys.stderr)
    return exit_code


def _described(error: Exception) -> tuple[str, int, str, dict[str, Any]]:
    """Code, exit code, text and further members of any error."""
    if isinstance(error, StrandlineError):
        exit_code = UNAVAILABLE if isinstance(error, Unavailable) else FAILED
        return error.code, exit_code, with_next_step(error), error.info
    if isinstance(error, click.Abort):
        return "aborted", FAILED, "aborted before it was done", {}
    if isinstance(error, click.ClickException):
        return "usage", error.exit_code, _usage(error), {}
    kind = type(error).__name__
    return "internal_error", FAILED, f"{kind}: {error}; run it again with --debug for the traceback", {}


def with_next_step(error: StrandlineError) -> str:
    """The text of the error. If it names no next step after a semicolon, a general one is added."""
    if "; " in error.detail:
        return error.detail
    step = next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), None)
    return f"{error.detail}; {step}" if step else error.detail


def _usage(error: click.ClickException) -> str:
    text = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text.rstrip('.')}; see `{context.command_path} --help`" if context else text
