// Cargo wants a target; see Cargo.toml.
