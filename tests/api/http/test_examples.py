# SPDX-License-Identifier: Apache-2.0
"""The examples of the OpenAPI document are valid for the models, and the API accepts them."""

import json
from typing import Any

from pydantic import TypeAdapter
from vgpumgr_api.edge.openapi import document

from tests.api.http.cloud import Cloud
from vgpumgr.wire.problem import Code

JSON = "application/json"
ITSELF = "get_openapi"


def shown(said: dict[str, Any], body: dict[str, Any]) -> Any:
    """Returns the example of a body; None if the body is not JSON."""
    media = body.get("content", {}).get(JSON)
    if media is None:
        return None
    name = media["examples"]["usual"]["$ref"].rpartition("/")[2]
    return said["components"]["examples"][name]["value"]


def test_every_body_has_an_example_that_its_model_takes(cloud: Cloud) -> None:
    app: Any = cloud.http.app
    said = app.openapi()
    requests = answers = 0
    for path, method, route in document.operations(app):
        operation = said["paths"][path][method]
        if route.name == ITSELF:
            continue
        if route.body_field is not None:
            sent = shown(said, operation["requestBody"])
            model = route.body_field.field_info.annotation
            assert model.model_validate_json(json.dumps(sent)).model_dump(mode="json", exclude_unset=True).keys() == (
                model.model_fields.keys()
            ), "an example shows every member"
            requests += 1
        for status, answer in operation["responses"].items():
            if status.startswith("2") and (content := shown(said, answer)) is not None:
                TypeAdapter(route.response_model).validate_json(json.dumps(content))
                answers += 1
    assert requests >= 20
    assert answers >= 50


def test_what_the_examples_ask_for_is_understood(cloud: Cloud) -> None:
    """The API may refuse an example because an object is missing, never because of its form."""
    app: Any = cloud.http.app
    said = app.openapi()
    host = cloud.host("gpu-a")
    tenant = cloud.tenant("blue")
    cloud.profile("quarter", 250)
    for path, method, route in document.operations(app):
        operation = said["paths"][path][method]
        if "requestBody" not in operation:
            continue
        names = {each["name"]: str(each["example"]) for each in operation.get("parameters", ()) if each["in"] == "path"}
        body = shown(said, operation["requestBody"])
        for who in (cloud.operator, tenant, host):
            answer = who(method.upper(), path.format(**names), body, headers={"If-Match": '"1"'})
            assert answer.status_code < 500, (route.name, answer.text)
            code = answer.json().get("code") if answer.status_code >= 400 else None
            assert code not in (Code.BODY_INVALID, Code.FIELD_INVALID), (route.name, answer.text)
