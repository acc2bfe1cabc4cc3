"""The mission's rows are where real orbits put them, and the same each time."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sgp4.propagation import gstime

from examples.mission import mission

START = datetime(2024, 9, 1, tzinfo=UTC)
DAY = START + timedelta(days=3)


def test_element_sets_are_the_wheels_own_without_those_broken_on_purpose() -> None:
    numbers = [elements.catalog_number for elements in mission.element_sets()]
    assert len(numbers) == len(set(numbers)) == 29
    assert not set(numbers) & mission.SYNTHETIC
    names = {elements.catalog_number: elements.name for elements in mission.element_sets()}
    assert (names[8195], names[28129], names[5]) == ("MOLNIYA 2-14", "NAVSTAR 53 (USA 175)", "OBJECT 5")
    assert mission.element_sets()[0].epoch.year == 2000


def test_sidereal_angle_equals_the_reference_implementation() -> None:
    dates = np.array([2451545.0, 2453911.8321544402, 2444514.48708465])
    assert mission.sidereal_angle(dates) == pytest.approx([gstime(date) for date in dates], abs=1e-9)


def test_station_sees_the_zenith_above_and_a_compass_around_itself() -> None:
    station = mission.Station("equator", 0.0, 0.0, 0.0, 5.0)
    here = mission.station_position(station)
    assert here == pytest.approx([mission.EARTH_RADIUS_KM, 0, 0])
    places = here + np.array([[500.0, 0, 0], [0, 500, 0], [0, 0, 500]])
    seen = mission.view_of(station, places, np.array([[1.0, 0, 0]] * 3))
    assert seen.elevation_deg == pytest.approx([90, 0, 0], abs=1e-6)
    assert seen.azimuth_deg[1:] == pytest.approx([90, 0], abs=1e-6)
    assert seen.range_km == pytest.approx([500, 500, 500])
    assert seen.range_rate_km_per_s == pytest.approx([1, 0, 0], abs=1e-9)


def test_a_satellite_on_the_geostationary_ring_does_not_move_in_the_sky() -> None:
    rows = [row for row in mission.contacts(START, DAY, DAY + timedelta(days=1)) if row.object_name == "INTELSAT 902"]
    assert rows
    for row in rows:
        assert row.lost_at - row.acquired_at == timedelta(days=1)
        assert 35_700 < row.min_range_km < 42_000
        assert abs(row.doppler_at_acquisition_hz) < 100


def test_contacts_are_above_the_mask_in_their_window_and_at_distances_that_exist() -> None:
    masks = {station.name: station.mask_deg for station in mission.STATIONS}
    since, until = DAY + timedelta(hours=6), DAY + timedelta(hours=12)
    rows = mission.contacts(START, since, until)
    assert len(rows) > 100
    for row in rows:
        assert since <= row.acquired_at < row.lost_at <= until
        assert row.samples == (row.lost_at - row.acquired_at) / timedelta(minutes=1)
        assert masks[row.station] <= row.max_elevation_deg <= 90
        assert 0 <= row.azimuth_at_acquisition_deg < 360
        # WIND went out to the Lagrange point; nothing of the set goes further.
        assert 150 < row.min_range_km < 500_000
        # No orbit here is faster than 11 km/s, the Earth's own turning included.
        assert abs(row.doppler_at_acquisition_hz) < mission.DOWNLINK_HZ * 11 / mission.LIGHT_KM_PER_S
        assert 140 < row.path_loss_db < 215


def test_quarters_of_a_day_hold_what_the_day_holds() -> None:
    whole = mission.contacts(START, DAY, DAY + timedelta(days=1))
    quarters = [
        row
        for quarter in range(4)
        for row in mission.contacts(START, DAY + timedelta(hours=6 * quarter), DAY + timedelta(hours=6 * quarter + 6))
    ]
    assert sum(row.samples for row in quarters) == sum(row.samples for row in whole)


def test_registry_has_each_object_on_its_orbit_and_drops_those_that_have_decayed() -> None:
    first = mission.registry(START, START)
    later = mission.registry(START, START + timedelta(days=20), with_altitude=True)
    assert len(first) == 29
    gone = {row.catalog_number for row in first} - {row.catalog_number for row in later}
    assert gone == {22312, 23333, 28350, 28872, 29141}
    assert {row.regime for row in first} == {"LEO", "MEO", "GEO", "HEO"}
    for row in later:
        assert row.altitude_km is not None
        assert row.perigee_km - 100 < row.altitude_km < 1.1 * row.apogee_km + 600
        assert row.catalogued_at == START + timedelta(days=20)
        assert row.propagated_to - row.element_epoch == timedelta(days=20)
    assert all(row.altitude_km is None for row in first)


def test_the_same_day_of_the_mission_gives_the_same_rows() -> None:
    assert mission.registry(START, DAY) == mission.registry(START, DAY)
    mission._sightings.cache_clear()
    once = mission.contacts(START, DAY, DAY + timedelta(days=1))
    mission._sightings.cache_clear()
    assert mission.contacts(START, DAY, DAY + timedelta(days=1)) == once


def test_configuration_follows_stations_orbits_and_yesterdays_contacts() -> None:
    at = DAY + timedelta(hours=2)
    stations = mission.station_table(at, 1)
    assert len(stations) == 4 * len(mission.STATIONS)
    limits = {row.name: row.value for row in mission.tracking_thresholds(START, at, 2)}
    assert limits["26900.max-range"] == pytest.approx(41_700, rel=0.01)
    assert limits["26900.max-path-loss"] == pytest.approx(mission.path_loss_db(limits["26900.max-range"]))
    seen = mission.contacts(START, DAY - timedelta(days=1), DAY)
    counted = {row.name: row.value for row in mission.calibration(START, at, 3)}
    assert counted["kiruna.contacts"] == sum(1 for row in seen if row.station == "kiruna")
    assert all(math.isfinite(value) for value in (*limits.values(), *counted.values()))
