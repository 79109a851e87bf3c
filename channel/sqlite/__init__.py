"""Keep the log in an SQLite file that the brokers of one machine share."""
