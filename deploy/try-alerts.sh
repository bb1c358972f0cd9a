#!/usr/bin/env bash
# Shows that an alert arrives: a real server, Prometheus and Alertmanager (Debian: prometheus, prometheus-alertmanager)
# with the files of this folder, and a receiver that prints what it is sent. Then the server is killed, and started again.
# Only the addresses and the waits (minutes become seconds) differ from what docker-compose.yml runs.
#   PYTHON=.venv/bin/python deploy/try-alerts.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
for tool in prometheus prometheus-alertmanager; do
  command -v $tool >/dev/null || { echo "no $tool: apt-get install prometheus prometheus-alertmanager" >&2; exit 1; }
done
work=$(mktemp -d)
running=()
trap 'kill "${running[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
read -r server_port prometheus_port alertmanager_port receiver_port < <("$python" - <<'PORTS'
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(s.getsockname()[1] for s in held))
PORTS
)

start_server() {
  "$python" -m entrostat.server --port "$server_port" --data "$work/data" >>"$work/server.log" 2>&1 &
  server=$!
  running+=("$server")
}

wait_for() {  # what, seconds, command
  for _ in $(seq "$(($2 * 10))"); do
    if eval "$3" >/dev/null 2>&1; then echo "--- $1"; return; fi
    sleep 0.1
  done
  echo "gave up waiting: $1" >&2
  tail -n 5 "$work"/*.log >&2
  exit 1
}

"$python" - "$receiver_port" >"$work/received" <<'RECEIVER' &
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["attachments"][0]
        print(self.path, said["title"], "|", said["text"].strip(), flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
RECEIVER
running+=($!)

echo -n "http://127.0.0.1:$receiver_port/urgent" >"$work/urgent.url"
echo -n "http://127.0.0.1:$receiver_port/people" >"$work/people.url"
sed -E "s#/run/secrets/alerts_urgent_url#$work/urgent.url#; s#/run/secrets/alerts_url#$work/people.url#
  s#(group_wait|group_interval): [0-9]+[ms].*#\1: 1s#" deploy/alertmanager/alertmanager.yml >"$work/alertmanager.yml"
sed -E 's#for: [0-9]+[ms]+#for: 2s#' deploy/prometheus/alerts.yml >"$work/alerts.yml"
sed -E "s#_interval: 10s#_interval: 1s#; s#alertmanager:9093#127.0.0.1:$alertmanager_port#; s#server:8321#127.0.0.1:$server_port#
  /authorization:/d; /type: Bearer/d; /credentials_file/d" deploy/prometheus/prometheus.yml >"$work/prometheus.yml"

start_server
wait_for "the server is ready" 60 "curl --silent --noproxy 127.0.0.1 --fail http://127.0.0.1:$server_port/v1/ready"
prometheus-alertmanager --config.file="$work/alertmanager.yml" --storage.path="$work/am" --cluster.listen-address= \
  --web.listen-address="127.0.0.1:$alertmanager_port" >"$work/alertmanager.log" 2>&1 &
running+=($!)
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
  --web.listen-address="127.0.0.1:$prometheus_port" >"$work/prometheus.log" 2>&1 &
running+=($!)
is_up() {
  curl --silent --noproxy '*' --get "http://127.0.0.1:$prometheus_port/api/v1/query" \
    --data-urlencode 'query=up{job="entrostat"} * on (instance) entrostat_ready' | grep --quiet '"1"'
}
wait_for "Prometheus reads it: up and ready are 1" 60 is_up
if grep --quiet EntrostatServerDown "$work/received"; then echo "an alert without a reason" >&2; exit 1; fi

kill -KILL "$server"
wait_for "killed with SIGKILL; the alert has arrived" 120 "grep --quiet 'FIRING EntrostatServerDown' '$work/received'"
start_server
wait_for "started again; it is resolved" 120 "grep --quiet 'RESOLVED EntrostatServerDown' '$work/received'"
wait_for "and it says that it came back after a crash" 120 "grep --quiet 'EntrostatRecovered' '$work/received'"
echo "--- what the receiver was sent (path, title, text):"
cat "$work/received"
echo "--- the server's log:"
cat "$work/server.log"
