"""How the Python API's page shows the verbs that `Lifecycle` takes from its services: as its own methods."""

from __future__ import annotations

from copy import copy

from griffe import ExprCall, Extension, GriffeLoader, Module


class Verbs(Extension):
    """Replaces each `_verb(…)` of `Lifecycle` by the service's method, under the verb's name and at its place."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: object) -> None:
        api = pkg["api"]
        for name, member in list(api["Lifecycle"].members.items()):
            value = getattr(member, "value", None)
            if isinstance(value, ExprCall) and str(value.function) == "_verb":
                service, method = str(value.arguments[1]).split(".")
                verb = copy(loader.modules_collection[f"{api.resolve(service)}.{method}"])
                verb.name, verb.lineno, verb.parent = name, member.lineno, api["Lifecycle"]
                api["Lifecycle"].set_member(name, verb)
