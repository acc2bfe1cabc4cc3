"""What the pages take from the code when they are built: the commands' help, and the assets, jobs and checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import typer


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace `{{ commands }}` and `{{ definitions }}`."""
    if "{{ commands }}" in markdown:
        markdown = markdown.replace("{{ commands }}", _commands())
    if "{{ definitions }}" in markdown:
        markdown = markdown.replace("{{ definitions }}", _definitions())
    return markdown


def _commands() -> str:
    from artemis_lifecycle.cli import app

    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    parts = []
    for name, each, inner in _leaves(command, click.Context(command, info_name="artemis"), ""):
        lines = [f"## {name}", "", each.help or "", "", "```text", each.get_usage(inner).removeprefix("Usage: "), "```"]
        for parameter in each.get_params(inner):
            record = parameter.get_help_record(inner)
            if record is not None and "--help" not in record[0]:
                lines += ["", f"`{record[0]}`", f":   {record[1]}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _leaves(
    group: click.Group, context: click.Context, before: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        if each is None or each.hidden:
            continue
        inner = click.Context(each, info_name=name, parent=context)
        if isinstance(each, click.Group):
            yield from _leaves(each, inner, f"{before}{name} ")
        else:
            yield f"{before}{name}", each, inner


def _definitions() -> str:
    from artemis_lifecycle.definitions import defs

    assets = []
    for key, node in sorted((key.to_user_string(), node) for key, node in _nodes(defs)):
        upstream = ", ".join(f"`{parent.to_user_string()}`" for parent in sorted(node.parent_keys)) or "nothing"
        checks = [f"- Check `{name}`: {' '.join((text or '').split())}" for name, text in _checks(defs, node.key)]
        assets += [f"### {key}", "", node.description or "", "", f"After {upstream}.", "", *checks, ""]
    jobs = [f"- `{job.name}`: {_first(job.description)}" for job in sorted(defs.jobs or (), key=lambda job: job.name)]
    schedules = [f"- `{each.name}`: `{each.cron_schedule}`" for each in sorted(defs.schedules or (), key=_name)]
    sensors = [f"- `{each.name}`: {_first(each.description)}" for each in sorted(defs.sensors or (), key=_name)]
    return "\n".join(
        [
            "## Assets",
            "",
            *assets,
            "## Jobs",
            "",
            *jobs,
            "",
            "## Schedules",
            "",
            *schedules,
            "",
            "## Sensors",
            "",
            *sensors,
        ]
    )


def _nodes(defs: Any) -> list[tuple[Any, Any]]:
    graph = defs.resolve_asset_graph()
    return [(key, graph.get(key)) for key in graph.get_all_asset_keys()]


def _checks(defs: Any, asset: Any) -> list[tuple[str, str | None]]:
    graph = defs.resolve_asset_graph()
    keys = sorted((key for key in graph.asset_check_keys if key.asset_key == asset), key=_name)
    return [(key.name, graph.get_check_spec(key).description) for key in keys]


def _name(each: Any) -> str:
    return str(each.name)


def _first(text: str | None) -> str:
    return (text or "").partition("\n")[0]
