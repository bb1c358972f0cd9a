"""What a run left in its spool, in a store: the way to the views without a server."""

import json

from entrostat.wire import codec
from entrostat.wire.messages import StreamOpen


def stored(folder, store):
    """Everything spooled under ``folder``, sent to ``store``."""
    for opening in folder.glob("*/*/open.json"):
        stream = opening.parent.name
        store.open_stream(stream, StreamOpen.model_validate(json.loads(opening.read_text())))
        for batch in sorted(opening.parent.glob("*.batch")):
            body = batch.read_bytes()
            store.add_batch(stream, int(batch.stem), codec.decode(body), len(body)).result(30)
