#!/bin/sh
# Run one broker in a container. Variables set its addresses, so that the health check has them, too.
# EQUIPOISE_LOG names the channel. Pass other options as arguments, such as --set lookup_ms=5000.
case "$*" in
  # The broker itself demands the rest: authentication with TLS, and TLS with authentication, so that no token goes in clear text.
  *tls_certificate=* | *authentication=* | *--insecure*) ;;
  *)
    echo "no TLS is configured: passing --insecure; only the network of the containers keeps others out" >&2
    set -- --insecure "$@"
    ;;
esac
exec equipoise broker \
  --data /var/lib/equipoise/broker \
  --host 0.0.0.0 --advertised-host "${ADVERTISED_HOST:-$(hostname)}" \
  --http-port "$HTTP_PORT" --pulsar-port "$PULSAR_PORT" \
  "$@"
