"""The description of the JSON interface is valid, and has every route."""

import json
import re

import jsonschema
import pytest
from tests.support.page_server import serving

from headgate.ui.api import Api
from headgate.ui.openapi import describe
from headgate.ui.routes import OPERATIONS
from headgate.ui.views import Views

DOCUMENT = json.loads(json.dumps(describe(OPERATIONS)))


def test_every_route_is_described():
    app = Api(Views(dict), allow_control=False).app
    routes = {(route.path, method.lower()) for route in app.routes for method in route.methods - {"HEAD"}}
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert routes == described


def test_every_reference_exists_and_every_schema_is_used():
    found = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(DOCUMENT)))
    assert found == set(DOCUMENT["components"]["schemas"])


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_every_schema_is_one_and_is_explained_without_examples(name):
    schema = DOCUMENT["components"]["schemas"][name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"] if "properties" in schema else True
    assert ">>>" not in str(schema)


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_every_operation_is_whole(path):
    for method, one in DOCUMENT["paths"][path].items():
        assert one["summary"].endswith(".")
        in_path = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert {"200", "403", "404"} <= set(one["responses"])
        assert ("204" in one["responses"]) == (path.endswith(("/pressure", "/why")) and method == "get")
    names = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_it_is_served():
    with serving() as client:
        assert client.get("/api/openapi.json").json == DOCUMENT
        assert client.ask("/api/openapi.json").status == 403
