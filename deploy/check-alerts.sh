#!/usr/bin/env bash
# Checks the alert rules and their tests (promtool) and the routes (amtool). Looks for both tools, on a Debian or Ubuntu
# takes them out of its packages (nothing is installed, no service started); elsewhere it says what to install.
#   deploy/check-alerts.sh FOLDER     the tools are kept in FOLDER
set -euo pipefail
cd "$(dirname "$0")"
kept=$(realpath -m "${OLDPWD}/${1:-.venv/prometheus}")

as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo -n"

tool() {  # name, Debian's package
  command -v "$1" 2>/dev/null && return
  [ -x "$kept/usr/bin/$1" ] && echo "$kept/usr/bin/$1" && return
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  mkdir -p "$kept/download"
  (
    cd "$kept/download"
    apt-get download -qq "$2" >/dev/null 2>&1 || { $as_root apt-get update -qq && apt-get download -qq "$2"; } >/dev/null 2>&1
    dpkg-deb --extract "$2"_*.deb "$kept"
  ) || return 1
  echo "$kept/usr/bin/$1"
}

missing() {
  echo "    not checked: no $1 (Debian, Ubuntu: apt-get install $2; macOS: brew install $2)"
}

if promtool=$(tool promtool prometheus); then
  "$promtool" check config --syntax-only prometheus/prometheus.yml
  "$promtool" check rules prometheus/alerts.yml
  "$promtool" test rules prometheus/alerts_test.yml
else
  missing promtool prometheus
fi
if amtool=$(tool amtool prometheus-alertmanager); then
  "$amtool" check-config alertmanager/alertmanager.yml
else
  missing amtool prometheus-alertmanager
fi
