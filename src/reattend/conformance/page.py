"""A report as a page for people."""

from __future__ import annotations

import textwrap

from reattend.conformance.results import Report, Result, Status

WIDTH = 110
OTHERS: tuple[Status, ...] = ("passed", "not applicable")


def as_text(report: Report) -> str:
    """The page for a terminal: the verdict, failures with what to look at, then all else in a line each."""
    lines = [verdict(report), *_about(report)]
    for result in report.having("failed"):
        lines += ["", f"FAILED  {result.title}  [{result.check}]"]
        for label, words in _failure(result):
            lines += textwrap.wrap(
                words, WIDTH, initial_indent=f"  {label:<10}", subsequent_indent=" " * 12, break_long_words=False
            )
    for status in OTHERS:
        results = report.having(status)
        lines += ["", status] if results else []
        for result in results:
            lines += textwrap.wrap(
                result.title + (f": {result.note}" if result.note else ""),
                WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
                break_long_words=False,
            )
    return "\n".join(lines)


def as_markdown(report: Report) -> str:
    """The same page in Markdown."""
    lines = [f"# {verdict(report)}", "", *(f"- {line}" for line in _about(report))]
    for result in report.having("failed"):
        lines += ["", f"## Failed: {result.title}", "", f"`{result.check}`", ""]
        lines += [f"- **{label}**: {words}" for label, words in _failure(result)]
    for status in OTHERS:
        results = report.having(status)
        if results:
            lines += ["", f"## {status.capitalize()}", "", "| check | what holds | remark |", "|---|---|---|"]
            lines += [f"| {r.check} | {r.title} | {_cell(r.note)} |" for r in results]
    return "\n".join(lines) + "\n"


def verdict(report: Report) -> str:
    """One line: what passed and what did not."""
    failed, passed = len(report.having("failed")), len(report.having("passed"))
    left = len(report.having("not applicable"))
    words = f"all {passed} checks passed" if not failed else f"{failed} of {failed + passed} checks failed"
    return f"{report.mechanism}: {words}" + (f", {left} do not apply" if left else "")


def _about(report: Report) -> list[str]:
    flops = (
        "does not state its operations" if report.flops is None else f"{report.flops:,} operations a sample (stated)"
    )
    printed = report.printed.strip().splitlines()
    return [
        f"{report.location}   {report.asked}".rstrip(),
        *(f"built for {place}" for place in report.places),
        f"{report.parameters:,} parameters, {flops}; checked in {report.seconds:.1f} s",
        *([f"it prints: {len(printed)} line(s), left out here, the first {printed[0][:60]!r}"] if printed else []),
    ]


def _failure(result: Result) -> list[tuple[str, str]]:
    return [
        ("expected", result.expected),
        ("seen", result.seen),
        ("look at", result.look_at),
        ("built for", result.place),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
