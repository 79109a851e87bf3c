"""Examples to run and to copy from. They import only the public API `equipoise`, as users do."""
