"""EXPLAIN of plans: text, the plan diagram of the web page, and the physical graph of sliding joins as text, Mermaid and SVG.

Pure functions from plans to text or values; equal plans give equal output. `graph_layout` has the positions of both pictures:
of the plan diagram (`plan_diagram`, placed by `plan_drawing`) and of the physical graph (`plan_graph`, drawn by `render_graph`).
"""
