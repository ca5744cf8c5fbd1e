"""``reset doctor``: parses, calls ``engines.machine.examine``, prints what it found."""

from __future__ import annotations

from resetcli.cli import options as o
from resetcli.cli.output import Output, pairs, size, table


def doctor(json: o.Json = False, quiet: o.Quiet = False, debug: o.Debug = False) -> None:
    """What this machine can run, and why not.

    Converts the embedded model if that has not been done yet (once, half a minute or so).

    \b
    Examples:
      reset doctor
      reset doctor --json
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.engines.machine import examine

    found = examine(out.reporter)

    def text() -> str:
        rows = [(name, value["available"], value["reason"]) for name, value in found["backends"].items()]
        devices = [
            (d["device"], f"{d['name']}, " + ", ".join(
                [f"{d['memory_bytes'] and size(d['memory_bytes'])}"]
                + ([f"{d['cores']} cores"] if "cores" in d else [f"sm_{d['capability'].replace('.', '')}"])
            ))
            for d in found["devices"]
        ]  # fmt: skip
        model = found["embedded_model"]
        return "\n\n".join(
            [
                pairs(devices),
                table(("backend", "there", "why"), rows),
                pairs([("embedded model", model["path"] or model["reason"]), ("cache", found["cache"])]),
                pairs(list(found["versions"].items())),
            ]
        )

    out.result(found, text)
