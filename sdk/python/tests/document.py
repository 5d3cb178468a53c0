"""The API's document, and requests and answers held against it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import jsonschema
import yaml

PATH = Path(__file__).resolve().parents[3] / "runtime" / "api" / "openapi.yaml"


class Operation:
    def __init__(self, document: Document, method: str, path: str, item: Dict[str, Any], op: Dict[str, Any]):
        self.id: str = op["operationId"]
        self.method = method.upper()
        self.path = path
        # The proxy's last segment may hold more.
        self.pattern = re.compile(
            re.sub(r"\\\{path\\\}", "(.*)", re.sub(r"\\\{(?!path)\w+\\\}", "([^/]+)", re.escape(path)))
            + r"\Z"
        )
        self.op = op
        self.parameters = [
            document.resolve(p) for p in [*item.get("parameters", []), *op.get("parameters", [])]
        ]


class Document:
    """openapi.yaml."""

    def __init__(self) -> None:
        self.root: Dict[str, Any] = yaml.safe_load(PATH.read_text())
        self.operations: List[Operation] = list(self._operations())

    def _operations(self) -> Iterator[Operation]:
        for path, item in self.root["paths"].items():
            for method, op in item.items():
                if method in ("get", "post", "put", "patch", "delete"):
                    yield Operation(self, method, path, item, op)

    def resolve(self, node: Dict[str, Any]) -> Dict[str, Any]:
        while "$ref" in node:
            target = self.root
            for part in node["$ref"][2:].split("/"):
                target = target[part]
            node = target
        return node

    def schema(self, name: str) -> Dict[str, Any]:
        return {"$ref": f"#/components/schemas/{name}"}

    def expand(self, schema: Any) -> Any:
        """A schema of OpenAPI 3.0 as one of JSON Schema, without references."""
        if isinstance(schema, list):
            return [self.expand(s) for s in schema]
        if not isinstance(schema, dict):
            return schema
        schema = self.resolve(schema)
        plain = {
            k: self.expand(v) for k, v in schema.items() if k not in ("nullable", "format", "description")
        }
        if schema.get("nullable"):
            plain["type"] = [plain["type"], "null"]
        return plain

    def check(self, schema: Dict[str, Any], value: Any) -> None:
        jsonschema.Draft7Validator(self.expand(schema)).validate(value)

    def find(self, method: str, raw_path: str) -> Operation:
        for o in self.operations:
            if o.method == method and o.pattern.match(raw_path) and not o.id.startswith("arrakis"):
                return o
        raise AssertionError(f"no operation {method} {raw_path}")

    def check_request(
        self, op: Operation, query: List[Tuple[str, str]], headers: Dict[str, str], body: bytes
    ) -> None:
        known = {p["name"]: p for p in op.parameters if p["in"] == "query"}
        for name, text in query:
            assert name in known, f"{op.id} has no parameter {name}"
            self.check(_of_one(known[name]["schema"]), _typed(self.resolve(known[name]["schema"]), text))
        given = {name for name, _ in query}
        for name, p in known.items():
            assert not p.get("required") or name in given, f"{op.id} lacks {name}"
        wanted: Optional[Dict[str, Any]] = op.op.get("requestBody")
        if wanted is None:
            assert not body, f"{op.id} takes no body"
            return
        if not body:
            assert not wanted.get("required"), f"{op.id} lacks a body"
            return
        content_type = headers["content-type"]
        assert content_type in wanted["content"], f"{op.id} takes no {content_type}"
        if content_type == "application/json":
            self.check(wanted["content"][content_type]["schema"], json.loads(body))

    def check_answer(self, op: Operation, status: int, body: Any) -> None:
        answer = self.resolve(op.op["responses"].get(str(status), op.op["responses"]["default"]))
        content = answer.get("content", {})
        if "application/json" in content:
            self.check(content["application/json"]["schema"], body)


def _of_one(schema: Dict[str, Any]) -> Dict[str, Any]:
    items: Dict[str, Any] = schema["items"] if schema.get("type") == "array" else schema
    return items


def _typed(schema: Dict[str, Any], text: str) -> Any:
    kind = _of_one(schema).get("type")
    if kind == "integer":
        return int(text)
    if kind == "boolean":
        return {"true": True, "false": False}[text]
    return text


DOCUMENT = Document()
