"""Reports as HTML: one file that needs no network; see docs/report.md.

Data flow: a result of `flexlegion.analysis` -> `views` (plain dicts and lists) -> `page`, which
fills the templates beside it. `groups` folds repeated operators, `layout` places them, `picture`
draws them; `tracks` makes timelines small.
"""
