"""EXPLAIN of plans: text, the plan diagram of the web page, and the physical graph of sliding joins as text, Mermaid and SVG.

Pure functions from plans to text or values; equal plans give equal output.
"""
