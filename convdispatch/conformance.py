"""The kit's public address: ``pytest --pyargs convdispatch.conformance --plugin NAME`` collects its tests from here."""

from .measurement.conformance.test_plugin import (
    computed,
    kit,
    pytest_generate_tests,
    test_case,
    test_something_was_computed,
)

__all__ = ["computed", "kit", "pytest_generate_tests", "test_case", "test_something_was_computed"]
