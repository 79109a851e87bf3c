"""Run services around Equipoise: files for docker compose, and a local Kafka for machines without
Docker.

The product neither imports nor installs this package.
"""
