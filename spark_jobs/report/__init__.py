"""Write one HTML page about the history of a channel: `equipoise report`."""
