"""The music library: songs found by their ids at other services and by whom they cover, albums with their songs.

A song that has no ids, or loses one, simply yields fewer rows.
"""

from collections.abc import Iterator

from streamfold import Collect, Count, Item, Key, Router, Row, Sum

SONG = Key("song#{artist}#{album}", "{song}")
EXTERNAL_ID = Key("external#{provider}#{external_id}", "song#{artist}#{album}#{song}")
COVER = Key("covers#{original_artist}#{original}", "song#{artist}#{album}#{song}")
ALBUM = Key("album#{artist}", "{album}")
ALBUM_BY_YEAR = Key("albums#{artist}", "{year:04d}#{album}")
ALBUM_SONGS = Key("albumsongs#{artist}", "{album}")

router = Router()


@router.index(SONG, into=EXTERNAL_ID)
def external_ids(song: Item) -> Iterator[Row]:
    for provider, external_id in song.get("external_ids", {}).items():
        yield Row(provider=provider, external_id=external_id, seconds=song["seconds"])


@router.index(SONG, into=COVER)  # who covered a song is one query
def covers(song: Item) -> Row | None:
    if original := song.get("covers"):
        return Row(original_artist=original["artist"], original=original["song"], seconds=song["seconds"])
    return None


@router.index(ALBUM, into=ALBUM_BY_YEAR)
def albums_by_year(album: Item) -> Row:
    return Row(year=album["year"], label=album["label"])


@router.view(SONG, into=ALBUM_SONGS)
def album_songs(item: Item, song: str) -> Row:
    return Row(titles=Collect(song, into=list), seconds=Sum(item["seconds"]), songs=Count())
