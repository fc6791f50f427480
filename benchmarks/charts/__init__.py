"""Pictures of figures as SVG, drawn from the kept JSON lines.

`python -m benchmarks.charts.draw_curves` enters.
It never measures.
"""
