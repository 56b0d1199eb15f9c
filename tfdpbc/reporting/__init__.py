"""Run folders, tables, plots and the HTML report. Reads and writes files only; never sees a live model or plan."""
