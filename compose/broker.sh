#!/bin/sh
# One broker in a container: where it listens is said by variables, so that the check of its health knows it, too.
# EQUIPOISE_LOG names the channel; whatever else a broker can be told comes as arguments, such as --set lookup_ms=5000.
exec equipoise broker \
  --data /var/lib/equipoise/broker \
  --host 0.0.0.0 --insecure --advertised-host "${ADVERTISED_HOST:-$(hostname)}" \
  --http-port "$HTTP_PORT" --pulsar-port "$PULSAR_PORT" \
  "$@"
