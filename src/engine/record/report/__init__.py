"""The report of a run: its record (the run's folder) as one HTML page, with a timeline, curves and logs.

`contents` reads the record, `timeline` turns events into rows of spans (no I/O; also for `outrider.testing`'s reports),
`charts` draws curves, `overview` and `sections` make the HTML, with all text through `markup`. `assets/` has style and
script.

Public names: `page.write_report`, `page.parts_of`, `contents.read_contents`, `timeline.timeline_of`, `charts.Chart`.
Open first: `page.py`.
"""

__all__ = ["charts", "contents", "markup", "overview", "page", "sections", "timeline"]
