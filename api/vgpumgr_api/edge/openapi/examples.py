# SPDX-License-Identifier: Apache-2.0
"""The examples in the OpenAPI document, of each request and answer body, built from its schema.

Values that a schema does not determine are given here by the member's name, and by its model where the name is not
enough. A test validates the examples against the models, and sends those of requests to the API.
"""

from typing import Any

Content = dict[str, Any]

INSTANT, LATER = "2026-11-21T12:00:00Z", "2026-11-21T14:00:00Z"
TENANT, PROFILE, HOST = "blue", "quarter", "gpu-a"
SLICE = "51ce0000-0000-4000-8000-000000000001"

VALUES: dict[str, Any] = {
    "account": "acme",
    "account_id": "00000001-0000-4000-8000-000000000001",
    "action": "slice.claimed",
    "actor": "operator:root",
    "address": "0000:00:10.0",
    "agent_version": "0.1.0",
    "applied_permille": 250,
    "at": INSTANT,
    "backend": "kmod",
    "confirm": HOST,
    "created_at": INSTANT,
    "deadline_at": LATER,
    "ended_at": LATER,
    "deleted_at": LATER,
    "detail": {},
    "done_at": LATER,
    "engine": "soft",
    "enroll_token": "vgpu_" + "x" * 43,
    "epoch": "e90c0000-0000-4000-8000-000000000001",
    "expires_at": LATER,
    "expires_in_s": 7200,
    "external_id": "acme_prod",
    "from_host": "gpu-b",
    "gpu": "0000:00:10.0",
    "host": HOST,
    "kind": "slice.claimed",
    "labels": {"zone": "a"},
    "mdev_type": "vgpumgr-mem64m",
    "mem_bytes": 67108864,
    "message": "",
    "mode": "fair",
    "name": TENANT,
    "next_page_token": "",
    "object": SLICE,
    "profile": PROFILE,
    "profiles": [PROFILE],
    "reported_at": INSTANT,
    "requested_permille": 250,
    "role": "tenant",
    "scope": "tenant",
    "scopes": ["slices:read", "slices:write"],
    "secret": "vgpu_" + "x" * 43,
    "selector": {"zone": "a"},
    "share_permille": 250,
    "since": INSTANT,
    "slice_id": SLICE,
    "source": "10.0.0.7",
    "source_off": HOST,
    "subject": TENANT,
    "tenant": TENANT,
    "timeslice_max_us": 1000000,
    "timeslice_min_us": 100,
    "timeslice_us": 2000,
    "until": LATER,
    "vm_uuid": "aaaaaaaa-0000-4000-8000-00000000000a",
}
OF_MODELS: dict[tuple[str, str], Any] = {
    ("EventPage", "epoch"): "e90c00000000",
    ("Explanation", "detail"): None,
    ("Gpu", "adopted"): False,
    ("Gpu", "driver"): "vgpumgr",
    ("Gpu", "mem_bytes"): 1 << 30,
    ("Gpu", "share_permille"): 1000,
    ("Enforcement", "enforced_by"): "kernel",
    ("Enforcement", "granularity_us"): 2500,
    ("Enforcement", "mem_enforced_by"): "kernel",
    ("Enforcement", "semantics"): "weight",
    ("Host", "name"): HOST,
    ("Host", "fenced_at"): None,
    ("Host", "lost_at"): None,
    ("Host", "second_boot_at"): None,
    ("HostCreated", "fenced_at"): None,
    ("HostCreated", "lost_at"): None,
    ("HostCreated", "second_boot_at"): None,
    ("HostCreate", "name"): HOST,
    ("HostCreated", "name"): HOST,
    ("HostPatch", "state"): "cordoned",
    ("Host", "state"): "ready",
    ("MemoryClass", "id"): "vgpumgr-mem64m",
    ("ReportedType", "id"): "vgpumgr-mem64m",
    ("Operation", "kind"): "host.drain",
    ("Operation", "target"): HOST,
    ("Operation", "request"): {"deadline_s": 86400, "then": "cordoned", "labels": {}},
    ("Operation", "result"): None,
    ("Operation", "error"): None,
    ("Profile", "name"): PROFILE,
    ("Profile", "reserve_period_us"): None,
    ("ProfileCreate", "name"): PROFILE,
    ("ProfileCreate", "reserve_period_us"): None,
    ("Progress", "waiting_for"): [{"slice": SLICE, "tenant": TENANT, "vm_uuid": None, "state": "claimed"}],
    ("Reason", "about"): None,
    ("SliceMove", "host"): "gpu-b",
    ("SliceTie", "key"): "db",
    ("Tie", "key"): "db",
    ("Tenant", "kind"): "project",
    ("Versions", "versions"): ["v1"],
}
PATHS = {"/v1/profiles": PROFILE, "/v1/hosts": HOST}
"""The example of `name` in a path, by the path's prefix; otherwise it is a tenant."""
FORMATS = {"uuid": SLICE, "date-time": INSTANT}


def add(operation: Content, path: str, components: Content) -> None:
    """Adds examples to the path, the request body and the answer bodies of an operation."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            about = next((known for prefix, known in PATHS.items() if path.startswith(prefix)), TENANT)
            parameter["example"] = about if parameter["name"] == "name" else _value("", parameter["name"], parameter)
    good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    for body in (operation.get("requestBody", {}), *good):
        for media in body.get("content", {}).values():
            name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if name:
                known = components.setdefault("examples", {})
                known.setdefault(name, {"value": example(components, name)})
                media["examples"] = {"usual": {"$ref": f"#/components/examples/{name}"}}


def example(components: Content, name: str) -> Any:
    """Returns an example of one model."""
    return _Maker(components).of(name, "", {"$ref": f"#/components/schemas/{name}"})


def _value(model: str, member: str, schema: Content) -> Any:
    if (model, member) in OF_MODELS:
        return OF_MODELS[model, member]
    return VALUES.get(member, FORMATS.get(schema.get("schema", schema).get("format", ""), SLICE))


class _Maker:
    def __init__(self, components: Content) -> None:
        self._schemas = components["schemas"]

    def of(self, model: str, member: str, schema: Content) -> Any:
        """Returns an example of a member. `model`: the model that contains `member`, "" at the top."""
        if (model, member) in OF_MODELS:
            return OF_MODELS[model, member]
        while "$ref" in schema:
            model, schema = schema["$ref"].rpartition("/")[2], self._schemas[schema["$ref"].rpartition("/")[2]]
        if "properties" in schema:
            return {name: self.of(model, name, each) for name, each in schema["properties"].items()}
        known = VALUES.get(member)
        if member in VALUES and (isinstance(known, list) or schema.get("type") != "array") and _fits(known, schema):
            return known
        if schema.get("default"):
            return schema["default"]
        if "anyOf" in schema:
            return self.of(model, member, schema["anyOf"][0])
        if "enum" in schema or "const" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        match schema.get("type"):
            case "array":
                return [self.of(model, member, schema["items"])]
            case "object":
                return {}
            case "integer" | "number":
                return max(int(schema.get("minimum", 1)), 1)
            case "boolean":
                return True
        return FORMATS.get(schema.get("format", ""), "")


def _fits(value: Any, schema: Content) -> bool:
    """Whether a value has the schema's type: members of the same name have different types in different models."""
    choices = schema.get("anyOf", [schema])
    kinds = {"string": str, "integer": int, "number": int, "object": dict, "array": list, "boolean": bool}
    return any(
        isinstance(value, kinds.get(each.get("type", ""), str)) and value in each.get("enum", [value])
        for each in choices
        if "$ref" not in each
    )
