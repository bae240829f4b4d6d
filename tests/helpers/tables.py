"""Tables as a test needs them: names of keys and their types, billed by request."""


def make_table(client, name, types, **more):
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": tag} for name, tag in types.items()],
        KeySchema=[
            {"AttributeName": name, "KeyType": kind} for name, kind in zip(types, ("HASH", "RANGE"), strict=False)
        ],
        BillingMode="PAY_PER_REQUEST",
        **more,
    )
