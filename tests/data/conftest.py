"""What the tests of this room share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory):
    """Keep decoded images of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDWINNOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
