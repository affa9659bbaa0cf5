"""Draws docs/overview.svg, the picture of README: python docs/overview.py."""

from __future__ import annotations

from pathlib import Path

BOX = 'rx="8" fill="{fill}" stroke="{line}" stroke-width="1.5"'
INPUT, WORK, RESULT = ("#e8f1fb", "#4078b8"), ("#fdf3dc", "#b8860b"), ("#e4f5e9", "#3a8a57")


def box(x: int, y: int, kind: tuple[str, str], title: str, *lines: str) -> str:
    """A box of 168 x 84 points, with a title and what it says below."""
    shape = BOX.format(fill=kind[0], line=kind[1])
    text = [f'<rect x="{x}" y="{y}" width="168" height="84" {shape}/>']
    text.append(f'<text x="{x + 84}" y="{y + 28}" font-weight="bold">{title}</text>')
    for number, line in enumerate(lines):
        text.append(f'<text x="{x + 84}" y="{y + 50 + 18 * number}" font-size="12">{line}</text>')
    return "\n".join(text)


def arrow(*points: tuple[int, int]) -> str:
    """A line through the points, with a head at its end."""
    path = " L".join(f"{x} {y}" for x, y in points)
    return (
        f'<path d="M{path}" fill="none" stroke="#666" stroke-width="1.5" marker-end="url(#head)"/>'
    )


def picture() -> str:
    """The whole SVG."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 236" role="img" '
        'font-family="sans-serif" font-size="15" text-anchor="middle">',
        "<title>A model and a machine go into the search, a strategy comes out, and training "
        "follows it</title>",
        '<rect width="760" height="236" fill="white"/>',
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker>',
        box(16, 20, INPUT, "model", "PyTorch, or", "flexlegion's layers"),
        box(16, 132, INPUT, "machine", "a file: devices and links;", "you need not own it"),
        box(240, 76, WORK, "search", "thousands of strategies,", "simulated, none run"),
        box(464, 20, RESULT, "strategy", "a file: each operator,", "how split, and where"),
        box(464, 132, WORK, "training", "on Legion: same results", "under every strategy"),
        arrow((184, 62), (212, 62), (212, 104), (238, 104)),
        arrow((184, 174), (212, 174), (212, 132), (238, 132)),
        arrow((408, 104), (436, 104), (436, 62), (462, 62)),
        arrow((548, 104), (548, 130)),
        arrow((632, 62), (660, 62)),
        arrow((632, 174), (660, 174)),
        '<text x="702" y="58" font-size="12">times, bytes,</text>',
        '<text x="702" y="76" font-size="12">memory, why</text>',
        '<text x="702" y="170" font-size="12">a trained</text>',
        '<text x="702" y="188" font-size="12">model</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
