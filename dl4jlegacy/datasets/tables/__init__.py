"""Tables from CSV, JSON, NumPy, svmlight, Parquet, Arrow and Feather files, and data frames."""
