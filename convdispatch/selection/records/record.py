"""Record: one measured result with its provenance, as an immutable value and as the JSON text that stores it.

The text is canonical (sorted keys, no spaces), so equal records have equal text.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from ...api.device import DeviceInfo
from ...device import jsontext

LEAST_SAMPLES = 6
"""The least number of samples that gives a confidence interval of 95 %."""
_MAX_KEY_LENGTH = 120
"""The most characters of a device's key, which names a folder."""
_MAX_TEXT_LENGTH = 10_000
"""The most characters of a record's text."""
SCHEMA = 1
"""The version of the record format. It is raised when an older convdispatch could misread a record; newer ones read
older records."""


class Damaged(ValueError):
    """The text is no valid record, because it is truncated, was altered or has impossible content."""


class NewerSchema(ValueError):
    """The text was written by a newer convdispatch and may mean something else."""


@dataclass(frozen=True)
class Provenance:
    """The provenance of a measurement, which is obsolete when one of these values changes."""

    plugin: str = ""
    plugin_version: str = ""
    kernel_hash: str = ""
    """Hash of the plugin's kernel and host source code; an empty hash is unknown and matches every other."""
    driver: str = ""
    workspace_limit: int | None = None
    """The most bytes of workspace that the search allowed; None for no limit."""


def device_key(device: DeviceInfo) -> str:
    """The name of a device's folder: vendor, architecture, name, compute units and processor, without the driver.

    Two devices of one key run one choice alike. The driver is a field of each record instead, so that an upgrade makes
    records doubtful but does not hide them.
    """
    words = f"{device.vendor}-{device.arch}-{device.name}-{device.compute_units}cu".lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_MAX_KEY_LENGTH]
    if not device.processor:
        return name
    processor = re.sub(r"[^a-z0-9]+", "-", device.processor.lower()).strip("-")
    return f"{name[: _MAX_KEY_LENGTH - len(processor) - 1]}-{processor}"


def now() -> str:
    """The time of day in UTC, ISO 8601 with microseconds, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def choice_text(solver: str, config: Mapping[str, Any]) -> str:
    """A text that identifies a solver with a configuration."""
    return f"{solver} {json.dumps(dict(config), sort_keys=True)}"


@dataclass(frozen=True)
class Record:
    """One solver's configuration, measured and verified for one problem on one device. Times are in milliseconds."""

    problem: str
    """The problem as text, ``str(ConvProblem)``: geometry, direction, dtype, layout, math, epilogue."""
    device: str
    """The device's key (``device_key``)."""
    solver: str
    config: Mapping[str, Any]
    median_ms: float
    ci_ms: tuple[float, float]
    p20_ms: float
    p80_ms: float
    count: int
    """The number of samples from which the times were computed."""
    benchmarked: bool | None = None
    """Whether the samples were interleaved with rivals'; False for screening; None if an older version did not store
    it."""
    screening_ms: float | None = None
    """The median time of screening, before benchmarking, in milliseconds."""
    default: bool = False
    """Whether the configuration is the one that the solver runs where nothing is measured."""
    error: float | None = None
    """The measured relative error (norm, against float64) on sampled outputs."""
    workspace: int = 0
    """Bytes of the plan's workspace."""
    deterministic: bool | None = None
    """Whether repeated runs gave the same bits; None if that was not tested."""
    device_name: str = ""
    provenance: Provenance = Provenance()
    budget_ms: float | None = None
    optimal: bool = True
    """False if memory or budget kept candidates from benchmarking, so that another search may find a better one."""
    conditions: str = ""
    """The reason why the search was not complete, as text."""
    created: str = ""
    """Time of the measurement: UTC, ISO 8601."""
    version: str = ""
    """Version of convdispatch."""
    contest: str = ""
    """The solvers that took part in the search, measured or not, as ``name:version``; stored in one record of each
    search."""
    inconclusive: str = ""
    """The reason why the times decide nothing: the device had other work, or the solver in use was not measured."""
    source: str = field(default="", compare=False)
    """The source of this copy: ``user``, ``shipped`` or a pack's name. It is not stored."""

    @property
    def sure(self) -> bool:
        """Whether the times come from benchmarking, with enough samples for a confidence interval."""
        return self.benchmarked is not False and self.count >= LEAST_SAMPLES

    @property
    def choice(self) -> tuple[str, str, str]:
        """The problem, solver and configuration of the record, as a key; a newer record with the same key replaces
        it."""
        return self.problem, self.solver, json.dumps(dict(self.config), sort_keys=True)

    @property
    def words(self) -> str:
        """Return how the time was measured, as a short text for reports."""
        return f"{self.median_ms:.4g} ms" + ("" if self.sure else " at screening, not benchmarked")

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values, schema included."""
        # ``dataclasses.asdict`` would copy each value deeply, which takes ten times as long.
        values = {name: getattr(self, name) for name in _STORED}
        nested = {"config": dict(self.config), "ci_ms": list(self.ci_ms), "provenance": vars(self.provenance).copy()}
        return {"schema": SCHEMA, **values, **nested}

    def text(self) -> str:
        """The canonical text that is stored."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, values: Any, source: str = "") -> Record:
        """The record that ``to_json`` wrote. Raises Damaged or NewerSchema."""
        if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
            raise Damaged("not a record: no schema number")
        if values["schema"] > SCHEMA:
            raise NewerSchema(f"schema {values['schema']}, this version reads up to {SCHEMA}")
        try:
            fields = {key: value for key, value in values.items() if key in _STORED}
            fields["provenance"] = Provenance(**fields.get("provenance", {}))
            fields["ci_ms"] = tuple(fields["ci_ms"])
            record = cls(**fields, source=source)
        except (TypeError, KeyError) as error:
            raise Damaged(f"not a record: {error}") from error
        record._check()
        return record

    def _check(self) -> None:
        """Raise Damaged for a field with a value that ``find`` cannot have written."""
        times = (self.median_ms, *self.ci_ms, self.p20_ms, self.p80_ms)
        if len(times) != 5 or not all(_is_number(t) and t > 0 for t in times):
            raise Damaged(f"times must be positive numbers of milliseconds, got {_shortened(times)}")
        if self.ci_ms[0] > self.ci_ms[1]:
            raise Damaged(f"an interval's lower end comes first, got {_shortened(self.ci_ms)}")
        if not all(_is_text(text) and text for text in (self.problem, self.device, self.solver)):
            raise Damaged("problem, device and solver must be texts")
        if not is_device_key(self.device):
            raise Damaged(f"a device's key is of small letters, digits and hyphens, got {_shortened(self.device)}")
        if not isinstance(self.config, Mapping) or not _is_count(self.count) or self.count < 1:
            raise Damaged(f"config must be a mapping and count at least 1, got {_shortened((self.config, self.count))}")
        if not _all_finite(self.config):
            raise Damaged(f"config's numbers must be finite, got {_shortened(self.config)}")
        origin = self.provenance
        texts = (self.device_name, self.conditions, self.created, self.version, self.contest, self.inconclusive)
        texts += (origin.plugin, origin.plugin_version, origin.kernel_hash, origin.driver)
        if not all(_is_text(text) for text in texts):
            raise Damaged("names, conditions, dates and versions must be texts of one line")
        if not all(
            value is None or (_is_number(value) and value >= 0)
            for value in (self.screening_ms, self.budget_ms, self.error)
        ):
            raise Damaged("error, budget and screening must be numbers of 0 or more, or null")
        if not _is_count(self.workspace) or not (origin.workspace_limit is None or _is_count(origin.workspace_limit)):
            raise Damaged("workspace and its limit must be whole numbers of bytes")
        flags = (self.default, self.optimal, self.benchmarked or False, self.deterministic or False)
        if not all(isinstance(flag, bool) for flag in flags):
            raise Damaged("benchmarked, default, optimal and deterministic must be true or false")


_STORED = tuple(each.name for each in fields(Record) if each.name != "source")


def is_device_key(text: str) -> bool:
    """Whether a text can be a device's key, and so the name of a folder in a database."""
    return re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*-?", text) is not None and len(text) <= _MAX_KEY_LENGTH


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _all_finite(value: Any) -> bool:
    """Whether every number of a JSON value is finite, because other numbers cannot be stored as JSON."""
    if isinstance(value, Mapping):
        return all(map(_all_finite, value.values()))
    if isinstance(value, list):
        return all(map(_all_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= _MAX_TEXT_LENGTH


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def stale(record: Record, current: Provenance) -> str | None:
    """Why a record should be measured again before it is trusted, or None. Empty fields are unknown and match."""
    measured_with = record.provenance
    for name, words in (
        ("plugin", "plugin"),
        ("plugin_version", f"version of {measured_with.plugin or 'the plugin'}"),
        ("kernel_hash", "kernel text"),
        ("driver", "driver"),
    ):
        old_value, new_value = getattr(measured_with, name), getattr(current, name)
        if old_value and new_value and old_value != new_value:
            return f"measured with another {words}: {old_value}, now {new_value}"
    if not record.optimal and measured_with.workspace_limit is not None:
        limit_now = current.workspace_limit
        if limit_now is None or limit_now > measured_with.workspace_limit:
            return f"measured under a workspace limit of {measured_with.workspace_limit} bytes, which is now wider"
    return None


_HASHED = re.compile(r"[0-9a-f]{32}\.json")


def file_text(records: Iterable[Record]) -> str:
    """The text of a file of records, one record on each line, so that version control shows changes of a pack."""
    lines = ",\n".join(record.text() for record in records)
    return f'{{"schema":{SCHEMA},"records":[\n{lines}\n]}}\n'


def text_name(text: str) -> str:
    """The name of a file with this text, which is the text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


def read_records(name: str, text: str, source: str = "") -> tuple[list[Record], list[str]]:
    """The valid records of a file's text, and a sentence for each invalid one. Raises Damaged or NewerSchema.

    A name of 32 hexadecimal digits must be the text's hash. Files with other names are packs, which people may edit.
    """
    if _HASHED.fullmatch(name) and text_name(text) != name:
        raise Damaged("its content does not fit its name: truncated or altered")
    try:
        values = jsontext.loads(text)
    except ValueError as error:
        raise Damaged(f"not JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("records"), list):
        raise Damaged("no list of records")
    if not isinstance(values.get("schema"), int) or values["schema"] > SCHEMA:
        raise NewerSchema(f"schema {values.get('schema')!r}, this version reads up to {SCHEMA}")
    records, faults = [], []
    for number, values_of_record in enumerate(values["records"], 1):
        try:
            records.append(Record.from_json(values_of_record, source))
        except (Damaged, NewerSchema) as error:
            faults.append(f"record {number}: {error}")
    return records, faults
