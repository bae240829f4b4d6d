"""The music library: ids, covers and albums, from the songs and albums that are there at the end."""

from collections import defaultdict

import pytest

from handlers.music import ALBUM, ALBUM_BY_YEAR, ALBUM_SONGS, COVER, EXTERNAL_ID, SONG
from tests.systems import Replayed


@pytest.fixture(scope="module")
def library():
    return Replayed("music")


@pytest.fixture(scope="module")
def songs(library):
    return library.items(SONG)


def test_a_song_is_found_by_each_of_its_ids(library, songs):
    expected = {
        (provider, external_id, *name): {"seconds": song["seconds"]}
        for name, song in songs.items()
        for provider, external_id in song["external_ids"].items()
    }
    assert library.rows(EXTERNAL_ID) == expected


def test_an_id_that_was_given_to_another_song_leads_to_that_one_alone(library):
    holders = defaultdict(set)
    for name, images in library.images(SONG).items():
        for external_id in {each for image in images if image for each in image["external_ids"].items()}:
            holders[external_id].add(name)
    assert any(len(names) > 1 for names in holders.values())


def test_covers_are_found_by_the_song_that_they_cover(library, songs):
    expected = {
        (song["covers"]["artist"], song["covers"]["song"], *name): {"seconds": song["seconds"]}
        for name, song in songs.items()
        if "covers" in song
    }
    assert expected
    assert library.rows(COVER) == expected


def test_songs_that_turned_out_to_be_no_covers_or_of_another_song_were_among_them(library):
    said = [[image and image.get("covers") for image in images] for images in library.images(SONG).values()]
    assert any(None in covers and any(covers) for covers in said)
    assert any(len({cover["song"] for cover in covers if cover}) > 1 for covers in said)


def test_an_artists_albums_are_listed_by_year(library):
    albums = library.items(ALBUM).items()
    expected = {(artist, album["year"], name): {"label": album["label"]} for (artist, name), album in albums}
    assert library.rows(ALBUM_BY_YEAR) == expected


def test_an_album_lists_its_songs_and_is_as_long_as_they_are(library, songs):
    albums = defaultdict(list)
    for (artist, album, title), song in songs.items():
        albums[artist, album].append((title, song["seconds"]))
    expected = {
        album: {"titles": sorted(title for title, _ in held), "seconds": sum(s for _, s in held), "songs": len(held)}
        for album, held in albums.items()
    }
    assert library.rows(ALBUM_SONGS) == expected
