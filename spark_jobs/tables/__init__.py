"""Keep the history of a channel as tables of Delta Lake: columns, writer and reader."""
