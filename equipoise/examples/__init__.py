"""Examples to run and to copy from. They import nothing of Equipoise but `equipoise` itself, as users do."""
