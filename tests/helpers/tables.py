"""Tables as a test needs them: names of keys and their types, billed by request."""


def make_table(client, name, types, *, indexes=None, **more):
    """Makes a table; ``indexes`` are global secondary indexes as ``Table(indexes=)`` takes them."""
    every = {**types, **{key: tag for keys in (indexes or {}).values() for key, tag in keys.items()}}
    if indexes:
        more["GlobalSecondaryIndexes"] = [
            {"IndexName": index, "KeySchema": _schema(keys), "Projection": {"ProjectionType": "ALL"}}
            for index, keys in indexes.items()
        ]
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": tag} for key, tag in every.items()],
        KeySchema=_schema(types),
        BillingMode="PAY_PER_REQUEST",
        **more,
    )


def _schema(keys):
    kinds = zip(keys, ("HASH", "RANGE"), strict=False)
    return [{"AttributeName": key, "KeyType": kind} for key, kind in kinds]
