"""YAML of the book's content, in which a key that is there twice is a mistake."""

from typing import Any

import yaml


class Strict(yaml.SafeLoader):
    """YAML itself takes the last of several values of a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _value in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(text: str) -> Any:
    """Raises yaml.YAMLError, which may have a problem_mark."""
    return yaml.load(text, Strict)  # noqa: S506  (a safe loader)
