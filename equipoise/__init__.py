"""The face of Equipoise: what users import. It only names what lives in other packages, and has no logic of its own."""
