"""Schemas as an editor reads them: a file's schema by its name, with its references followed."""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from jsonschema import Draft7Validator
from referencing import Registry, Resource


class Schemas:
    """The schemas of a folder, by their names.

    Args:
        texts: Texts of the files.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.files = {name: json.loads(text) for name, text in texts.items()}
        self.shared = self.files["shared.json"]["definitions"]
        named = [(name, Resource.from_contents(one)) for name, one in self.files.items()]
        self._registry: Registry = Registry().with_resources(named)

    def validator(self, name: str, way: str = "") -> Draft7Validator:
        """Give what judges by a file, or by one of its definitions."""
        return Draft7Validator({"$ref": f"{name}#{way}"}, registry=self._registry)

    def refusals(self, name: str, node: Any) -> list[str]:
        """List what a schema refuses of a file's content: each dotted place with its words."""
        found = self.validator(name).iter_errors(with_texts(node))
        return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]


def with_texts(node: Any) -> Any:
    """Give a content with keys that are texts, as JSON has them."""
    if isinstance(node, dict):
        return {str(key): with_texts(value) for key, value in node.items()}
    return [with_texts(one) for one in node] if isinstance(node, list) else node


def content(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
