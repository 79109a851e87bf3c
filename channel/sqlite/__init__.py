"""The embedded log: an SQLite file that the brokers of one machine share."""
