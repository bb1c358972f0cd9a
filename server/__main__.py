"""``python -m entrostat.server``: the server alone."""

import argparse
import sys

from entrostat.server.run import serve
from entrostat.server.settings import Settings, sentence_of
from entrostat.wire import logs
from entrostat.wire.errors import EntrostatError


def main() -> int:
    """Serve until asked to stop; 2 where it cannot start."""
    parser = argparse.ArgumentParser("entrostat.server", description="The server of entrostat.")
    parser.add_argument("--host", help=sentence_of("host"))
    parser.add_argument("--port", type=int, help=sentence_of("port"))
    parser.add_argument("--data", help=sentence_of("data"))
    parser.add_argument("--tokens", help=sentence_of("tokens"))
    given = parser.parse_args()
    try:
        settings = Settings.from_environment(**vars(given))
        logs.configure(settings.log_format, settings.log_level)
        serve(settings)
    except (EntrostatError, ValueError) as error:
        sys.stderr.write(f"entrostat server: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
