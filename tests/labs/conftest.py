"""Let pytest explain the assertions of the shared tests as well."""

import pytest

pytest.register_assert_rewrite("tests.labs.common")
