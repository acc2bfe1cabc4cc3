"""The mission's rows, from real orbital element sets. Belongs here: orbits, ground stations, contacts, configuration
records. Does not belong: Spark, tables, or when a row is written.

The element sets are the verification set that the `sgp4` wheel ships (Vallado et al., AIAA 2006-6753). They were
measured between 1980 and 2006, each at an epoch of its own. The mission replays them: on mission day `n`, every object
is where SGP4 puts it `n mod 28` days after its own epoch, and the ground turns under it as it did then. Same day, same
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from artemis_lifecycle.errors import EnvironmentMissing

try:
    from sgp4.api import Satrec
except ImportError as error:
    raise EnvironmentMissing.extra("demo", error) from error

Array = npt.NDArray[np.float64]

REPLAY_DAYS = 28
"""After so many days the replay begins again: SGP4 is not made to be carried much further from its epoch."""

EARTH_RADIUS_KM = 6378.137
FLATTENING = 1 / 298.257223563
EARTH_ROTATION_RAD_PER_S = 7.292115e-5
LIGHT_KM_PER_S = 299_792.458
DOWNLINK_HZ = 2.25e9
"""S band, where most stations listen."""

STEP_SECONDS = 60
SYNTHETIC = frozenset({33333, 33334, 33335})
"""Element sets of the verification file that are broken on purpose."""


@dataclass(frozen=True)
class Station:
    """A ground station: geodetic degrees (WGS 84), meters, and the lowest elevation in degrees at which it tracks."""

    name: str
    latitude_deg: float
    longitude_deg: float
    altitude_m: float
    mask_deg: float


STATIONS = (
    Station("goldstone", 35.4267, -116.8900, 1001.0, 10.0),
    Station("madrid", 40.4314, -4.2486, 834.0, 10.0),
    Station("canberra", -35.4014, 148.9817, 691.0, 10.0),
    Station("kourou", 5.2514, -52.8047, 15.0, 7.0),
    Station("kiruna", 67.8572, 20.9644, 402.0, 5.0),
    Station("svalbard", 78.2306, 15.3894, 458.0, 5.0),
    Station("new-norcia", -31.0482, 116.1915, 252.0, 10.0),
    Station("malargue", -35.7760, -69.3982, 1550.0, 10.0),
)


@dataclass(frozen=True)
class ElementSet:
    """One two-line element set, as it was published."""

    catalog_number: int
    name: str
    international_designator: str
    line1: str
    line2: str

    @property
    def satellite(self) -> Satrec:
        return _satellite(self.line1, self.line2)

    @property
    def epoch(self) -> datetime:
        satellite = self.satellite
        return _instant(satellite.jdsatepoch, satellite.jdsatepochF)


@dataclass(frozen=True)
class RegistryRow:
    """An object of the registry, as its element set says and where SGP4 puts it at `catalogued_at`."""

    catalog_number: int
    object_name: str
    international_designator: str
    regime: str
    element_epoch: datetime
    propagated_to: datetime
    period_minutes: float
    perigee_km: float
    apogee_km: float
    eccentricity: float
    inclination_deg: float
    mean_motion_rev_per_day: float
    bstar: float
    x_km: float
    y_km: float
    z_km: float
    speed_km_per_s: float
    catalogued_at: datetime
    altitude_km: float | None = None


@dataclass(frozen=True)
class ContactRow:
    """A contact of a station with an object, from acquisition to loss of signal; cut at the edges of its window."""

    station: str
    catalog_number: int
    object_name: str
    acquired_at: datetime
    lost_at: datetime
    samples: int
    max_elevation_deg: float
    azimuth_at_acquisition_deg: float
    min_range_km: float
    doppler_at_acquisition_hz: float
    path_loss_db: float


@dataclass(frozen=True)
class ConfigRow:
    """One value of the mission's configuration, in force from `effective_from`."""

    section: str
    name: str
    revision: int
    value: float
    unit: str
    effective_from: datetime


@cache
def element_sets() -> tuple[ElementSet, ...]:
    """The element sets of the wheel's verification file, by catalog number; the ones broken on purpose left out."""
    text = resources.files("sgp4").joinpath("SGP4-VER.TLE").read_text(encoding="ascii")
    found: dict[int, ElementSet] = {}
    name, line1 = "", ""
    for line in text.splitlines():
        if line.startswith("#"):
            # A name stands in the fifth column; remarks on the test case stand further right, or behind another `#`.
            if len(line) > 4 and line[4].isalnum():
                name = line[4:].split("#")[0].strip()
        elif line.startswith("1 "):
            line1 = line[:69]
        elif line.startswith("2 "):
            number = int(line1[2:7])
            if number not in SYNTHETIC and number not in found:
                found[number] = ElementSet(number, name or f"OBJECT {number}", line1[9:17].strip(), line1, line[:69])
            name = ""
    return tuple(found[number] for number in sorted(found))


@lru_cache(maxsize=64)
def _satellite(line1: str, line2: str) -> Satrec:
    return Satrec.twoline2rv(line1, line2)


def _instant(day: float, fraction: float) -> datetime:
    """The Julian date as a datetime, to the millisecond."""
    since = timedelta(days=day - 2440587.5) + timedelta(milliseconds=round(fraction * 86_400_000))
    return datetime(1970, 1, 1, tzinfo=UTC) + since


# --- geometry -------------------------------------------------------------------------------------------------------


def sidereal_angle(julian_date: Array) -> Array:
    """Greenwich mean sidereal time in radians at UT1 Julian dates (IAU 1982, as TEME wants it)."""
    centuries = (julian_date - 2451545.0) / 36525.0
    seconds = (
        67310.54841 + (876600.0 * 3600 + 8640184.812866) * centuries + 0.093104 * centuries**2 - 6.2e-6 * centuries**3
    )
    angle: Array = np.remainder(np.radians(seconds / 240.0), 2 * np.pi)
    return angle


def earth_fixed(position: Array, velocity: Array, julian_date: Array) -> tuple[Array, Array]:
    """TEME position (km) and velocity (km/s), shape (n, 3), as the turning Earth sees them; no polar motion."""
    angle = sidereal_angle(julian_date)
    cosine, sine = np.cos(angle), np.sin(angle)

    def turn(vector: Array) -> Array:
        x, y, z = vector[:, 0], vector[:, 1], vector[:, 2]
        return np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=1)

    fixed = turn(position)
    carried = np.stack([-fixed[:, 1], fixed[:, 0], np.zeros(len(fixed))], axis=1) * EARTH_ROTATION_RAD_PER_S
    return fixed, turn(velocity) - carried


def station_position(station: Station) -> Array:
    """The station in Earth-fixed km."""
    latitude, longitude = math.radians(station.latitude_deg), math.radians(station.longitude_deg)
    squared = FLATTENING * (2 - FLATTENING)
    normal = EARTH_RADIUS_KM / math.sqrt(1 - squared * math.sin(latitude) ** 2)
    height = station.altitude_m / 1000
    return np.array(
        [
            (normal + height) * math.cos(latitude) * math.cos(longitude),
            (normal + height) * math.cos(latitude) * math.sin(longitude),
            (normal * (1 - squared) + height) * math.sin(latitude),
        ]
    )


@dataclass(frozen=True)
class View:
    """Where a station sees an object: degrees, km, km/s (positive when it goes away); one value per sample."""

    elevation_deg: Array
    azimuth_deg: Array
    range_km: Array
    range_rate_km_per_s: Array


def view_of(station: Station, position: Array, velocity: Array) -> View:
    """The station's view of Earth-fixed positions (km) and velocities (km/s), each of shape (n, 3)."""
    latitude, longitude = math.radians(station.latitude_deg), math.radians(station.longitude_deg)
    up = np.array(
        [math.cos(latitude) * math.cos(longitude), math.cos(latitude) * math.sin(longitude), math.sin(latitude)]
    )
    east = np.array([-math.sin(longitude), math.cos(longitude), 0.0])
    north = np.cross(up, east)
    away = position - station_position(station)
    distance = np.linalg.norm(away, axis=1)
    return View(
        elevation_deg=np.degrees(np.arcsin(np.clip(away @ up / distance, -1, 1))),
        azimuth_deg=np.degrees(np.arctan2(away @ east, away @ north)) % 360,
        range_km=distance,
        range_rate_km_per_s=np.einsum("ij,ij->i", away, velocity) / distance,
    )


def path_loss_db(range_km: float, frequency_hz: float = DOWNLINK_HZ) -> float:
    """Free-space path loss in dB over `range_km`."""
    return 20 * math.log10(4 * math.pi * range_km * frequency_hz / LIGHT_KM_PER_S)


def placed(satellite: Satrec, error: npt.NDArray[np.uint8], position: Array) -> npt.NDArray[np.bool_]:
    """Which samples are on the orbit at all: SGP4 goes on after a decay, far off, and does not always say so."""
    radius = np.linalg.norm(np.nan_to_num(position), axis=1)
    apogee = (1 + satellite.alta) * satellite.radiusearthkm
    on_orbit: npt.NDArray[np.bool_] = (error == 0) & (radius > EARTH_RADIUS_KM + 50) & (radius < 1.1 * apogee + 500)
    return on_orbit


@cache
def _lifetime_days(elements: ElementSet) -> float:
    """How long after its epoch the object is on its orbit, at most the replay; by ten minutes."""
    satellite = elements.satellite
    days = np.arange(0, REPLAY_DAYS, 1 / 144)
    error, position, _ = satellite.sgp4_array(np.full_like(days, satellite.jdsatepoch), satellite.jdsatepochF + days)
    lost = np.flatnonzero(~placed(satellite, error, position))
    return float(days[lost[0]]) if len(lost) else float(REPLAY_DAYS)


# --- rows -----------------------------------------------------------------------------------------------------------


def mission_day(start: datetime, at: datetime) -> float:
    """Days since the mission's `start`."""
    return (at - start) / timedelta(days=1)


def regime(period_minutes: float, eccentricity: float) -> str:
    """LEO, MEO, GEO or HEO, by period and shape."""
    if eccentricity > 0.25:
        return "HEO"
    if period_minutes < 128:
        return "LEO"
    return "GEO" if period_minutes > 1300 else "MEO"


def registry(start: datetime, at: datetime, *, with_altitude: bool = False) -> tuple[RegistryRow, ...]:
    """Every object of the registry that SGP4 can still place at `at`; those that have decayed by then are left out."""
    shift = mission_day(start, at) % REPLAY_DAYS
    rows = []
    for elements in element_sets():
        satellite = elements.satellite
        error, position, velocity = satellite.sgp4(satellite.jdsatepoch, satellite.jdsatepochF + shift)
        if error or shift >= _lifetime_days(elements):
            continue
        # Per minute, in units of the Earth's radius that SGP4 itself uses.
        period = 2 * math.pi / satellite.no_kozai
        radius = satellite.radiusearthkm
        rows.append(
            RegistryRow(
                catalog_number=elements.catalog_number,
                object_name=elements.name,
                international_designator=elements.international_designator,
                regime=regime(period, satellite.ecco),
                element_epoch=elements.epoch,
                propagated_to=elements.epoch + timedelta(days=shift),
                period_minutes=period,
                perigee_km=satellite.altp * radius,
                apogee_km=satellite.alta * radius,
                eccentricity=satellite.ecco,
                inclination_deg=math.degrees(satellite.inclo),
                mean_motion_rev_per_day=1440 / period,
                bstar=satellite.bstar,
                x_km=position[0],
                y_km=position[1],
                z_km=position[2],
                speed_km_per_s=math.dist(velocity, (0, 0, 0)),
                catalogued_at=at,
                altitude_km=math.dist(position, (0, 0, 0)) - EARTH_RADIUS_KM if with_altitude else None,
            )
        )
    return tuple(rows)


@dataclass(frozen=True)
class _Sighting:
    """One object over one station through one day of the replay: a sample a minute."""

    station: Station
    elements: ElementSet
    view: View
    visible: npt.NDArray[np.bool_]


@lru_cache(maxsize=REPLAY_DAYS)
def _sightings(day: int) -> tuple[_Sighting, ...]:
    minutes = np.arange(0, 86_400 // STEP_SECONDS) * (STEP_SECONDS / 86_400)
    found = []
    for elements in element_sets():
        satellite = elements.satellite
        whole = np.full_like(minutes, satellite.jdsatepoch)
        fraction = satellite.jdsatepochF + day + minutes
        error, position, velocity = satellite.sgp4_array(whole, fraction)
        there = placed(satellite, error, position) & (day + minutes < _lifetime_days(elements))
        if not there.any():
            continue
        fixed, moving = earth_fixed(np.nan_to_num(position), np.nan_to_num(velocity), whole + fraction)
        for station in STATIONS:
            view = view_of(station, fixed, moving)
            visible = there & (view.elevation_deg >= station.mask_deg)
            if visible.any():
                found.append(_Sighting(station, elements, view, visible))
    return tuple(found)


def contacts(start: datetime, since: datetime, until: datetime) -> tuple[ContactRow, ...]:
    """Contacts of every station with every object from `since` to `until`, inside one mission day.

    Sampled each minute; a contact shorter than that is not seen.
    """
    day = math.floor(mission_day(start, since))
    midnight = start + timedelta(days=day)
    first = math.ceil((since - midnight).total_seconds() / STEP_SECONDS)
    last = min(math.ceil((until - midnight).total_seconds() / STEP_SECONDS), 86_400 // STEP_SECONDS)
    rows = []
    for sighting in _sightings(day % REPLAY_DAYS):
        view = sighting.view
        for begin, end in _runs(sighting.visible[first:last]):
            here = slice(first + begin, first + end)
            nearest = float(view.range_km[here].min())
            rows.append(
                ContactRow(
                    station=sighting.station.name,
                    catalog_number=sighting.elements.catalog_number,
                    object_name=sighting.elements.name,
                    acquired_at=midnight + timedelta(seconds=(first + begin) * STEP_SECONDS),
                    lost_at=midnight + timedelta(seconds=(first + end) * STEP_SECONDS),
                    samples=end - begin,
                    max_elevation_deg=float(view.elevation_deg[here].max()),
                    azimuth_at_acquisition_deg=float(view.azimuth_deg[first + begin]),
                    min_range_km=nearest,
                    doppler_at_acquisition_hz=-DOWNLINK_HZ
                    * float(view.range_rate_km_per_s[first + begin])
                    / LIGHT_KM_PER_S,
                    path_loss_db=path_loss_db(nearest),
                )
            )
    return tuple(sorted(rows, key=lambda row: (row.acquired_at, row.station, row.catalog_number)))


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Begin and end (exclusive) of each run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def station_table(at: datetime, revision: int) -> tuple[ConfigRow, ...]:
    """Section `station`: where each station stands, and its mask."""
    return tuple(
        ConfigRow("station", f"{station.name}.{name}", revision, value, unit, at)
        for station in STATIONS
        for name, value, unit in (
            ("latitude", station.latitude_deg, "deg"),
            ("longitude", station.longitude_deg, "deg"),
            ("altitude", station.altitude_m, "m"),
            ("mask", station.mask_deg, "deg"),
        )
    )


def tracking_thresholds(start: datetime, at: datetime, revision: int) -> tuple[ConfigRow, ...]:
    """Section `tracking`: for each object the largest range, Doppler shift and path loss that a receiver must bear."""
    rows = []
    for row in registry(start, at):
        horizon = math.sqrt(max((EARTH_RADIUS_KM + row.apogee_km) ** 2 - EARTH_RADIUS_KM**2, 1.0))
        for name, value, unit in (
            ("max-range", horizon, "km"),
            ("max-doppler", DOWNLINK_HZ * row.speed_km_per_s / LIGHT_KM_PER_S, "Hz"),
            ("max-path-loss", path_loss_db(horizon), "dB"),
        ):
            rows.append(ConfigRow("tracking", f"{row.catalog_number}.{name}", revision, value, unit, at))
    return tuple(rows)


def calibration(start: datetime, at: datetime, revision: int) -> tuple[ConfigRow, ...]:
    """Section `calibration`: what each station saw on the mission day before `at`."""
    until = start + timedelta(days=math.floor(mission_day(start, at)))
    seen = contacts(start, until - timedelta(days=1), until)
    rows = []
    for station in STATIONS:
        own = [row for row in seen if row.station == station.name]
        if not own:
            continue
        for name, value, unit in (
            ("contacts", float(len(own)), "1"),
            ("mean-max-elevation", sum(row.max_elevation_deg for row in own) / len(own), "deg"),
            ("mean-path-loss", sum(row.path_loss_db for row in own) / len(own), "dB"),
        ):
            rows.append(ConfigRow("calibration", f"{station.name}.{name}", revision, value, unit, at))
    return tuple(rows)
