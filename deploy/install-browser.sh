#!/usr/bin/env bash
# Finds Chromium for the browser tests, or installs Debian's; says what to do where it can't.
set -euo pipefail
for name in "${ENTROSTAT_CHROMIUM:-}" chromium chromium-browser google-chrome; do
  if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1; then
    echo "    found $(command -v "$name")"
    exit 0
  fi
done
if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  echo "    none found: installing Debian's chromium (about half a minute)"
  $as_root apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  command -v chromium >/dev/null && exit 0
fi
cat >&2 <<'MESSAGE'
The browser tests need Chromium, and it could not be found or installed here.
  Debian, Ubuntu:  sudo apt-get install chromium
  elsewhere:       install Chromium or Chrome and set ENTROSTAT_CHROMIUM to its path
  without it:      make test ARGS='-m "not browser"' runs the rest, after: touch-free `python -m pytest -m "not browser"`
MESSAGE
exit 1
