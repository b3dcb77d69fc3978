"""The committed API reference is what the routes say."""

from local.api_reference import documents


def test_the_api_reference_is_not_stale() -> None:
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"
