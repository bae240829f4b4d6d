"""The music library: songs found by their ids at other services, and the lengths of albums.

A song that has no ids, or loses one, simply yields fewer rows.
"""

from collections.abc import Iterator

from streamfold import Count, Item, Key, Router, Row, Sum

SONG = Key("song#{artist}#{album}", "{song}")
EXTERNAL_ID = Key("external#{provider}#{external_id}", "song#{artist}#{album}#{song}")
ALBUM_LENGTH = Key("albumtotal#{artist}", "{album}")

router = Router()


@router.index(SONG, into=EXTERNAL_ID)
def external_ids(song: Item) -> Iterator[Row]:
    for provider, external_id in song.get("external_ids", {}).items():
        yield Row(provider=provider, external_id=external_id, seconds=song["seconds"])


@router.view(SONG, into=ALBUM_LENGTH)
def album_length(song: Item) -> Iterator[Row]:
    yield Row(seconds=Sum(song["seconds"]), songs=Count())
