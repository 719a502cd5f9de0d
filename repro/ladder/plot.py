"""One picture with two axes as SVG text: lines, bands, markers and a legend, and nothing to import for it.

A plotting library takes longer to start than a whole audit takes to run, so these few shapes are written by hand.
Each SVG stands alone: white background, a title for screen readers, ids with the picture's own prefix, and no font,
date or address to load. Equal input gives equal bytes. Every text is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 440
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 12, 62  # margins around the axes; RIGHT grows where there is a colour bar
BAR = 84
FONT, SMALL = 18, 16  # of 640 across: on a phone of 390 pixels at least 9.7 pixels
LETTER = 0.58  # of the font size, a generous mean for a sans-serif
GREY, GRID = "#6b6b6b", "#e4e4e4"
# From pale to dark as viridis goes, without its palest yellow, which is lost on white.
SHADES = ((144, 215, 67), (53, 183, 121), (33, 145, 140), (49, 104, 142), (68, 58, 131), (68, 1, 84))
SHAPES = {  # outlines around the origin, one unit in radius
    "s": "M-.9,-.9H.9V.9H-.9Z",
    "D": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "^": "M0,-1.15L1.1,.85H-1.1Z",
    "v": "M0,1.15L1.1,-.85H-1.1Z",
    "<": "M-1.15,0L.85,-1.1V1.1Z",
    ">": "M1.15,0L-.85,-1.1V1.1Z",
    "P": "M-.4,-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
    "*": "M0,-1.3L.35,-.4H1.25L.55,.2L.8,1.1L0,.6L-.8,1.1L-.55,.2L-1.25,-.4H-.35Z",
    "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "x": "M-1,-1L1,1M-1,1L1,-1",
    "_": "M-1.6,0H1.6",
}
OPEN_SHAPES = "x_"  # lines, not areas


@dataclass(frozen=True)
class Axis:
    """What an axis shows: its ends, and its ticks with their words."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points joined; `upper` makes it the lower edge of a band instead."""

    points: Sequence[Point]
    colour: str
    label: str = ""
    width: float = 2.2
    dash: str = ""
    upper: Sequence[Point] = ()


@dataclass(frozen=True, kw_only=True)
class Dots:
    """A marker at each point, filled or hollow; a colour for all, or one for each."""

    points: Sequence[Point]
    colours: Sequence[str]
    label: str = ""
    shape: str = "o"
    size: float = 4.0
    filled: bool = True


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A dotted line across the picture: upright at `x`, or level at `y`."""

    colour: str
    x: float | None = None
    y: float | None = None
    label: str = ""
    width: float = 1.8
    dash: str = "2 4"


Mark = Line | Dots | Rule


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Axes and what is drawn between them, in order. `bar` labels a colour bar of `shade` from `bar_low` to 100%."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    legend: str = "upper right"
    bar: str = ""
    bar_low: float = 0.0
    keys: Sequence[Mark] = field(default=())  # in the legend only


def linear_axis(
    label: str, values: Iterable[float], words: Callable[[float], str] = "{:g}".format, ends: Point | None = None
) -> Axis:
    """An axis around the values, a twentieth wider on each side, or between `ends`, with four to eight round ticks."""
    seen = sorted(values)
    low, high = ends or (seen[0], seen[-1])
    if ends is None:
        wider = (high - low) / 20 or abs(high) / 20 or 1.0
        low, high = low - wider, high + wider
    unit = 10 ** math.floor(math.log10(high - low))
    step = next(unit * one for one in (0.1, 0.2, 0.5, 1, 2) if (high - low) / (unit * one) <= 8)
    first, last = math.ceil(low / step), math.floor(high / step)
    return Axis(label, low, high, tuple((k * step, words(round(k * step, 12))) for k in range(first, last + 1)))


def logarithmic_axis(
    label: str, values: Iterable[float], words: Callable[[float], str], multiples: Sequence[float] = (1,)
) -> Axis:
    """An axis around the values, a twentieth wider on each side, with ticks at multiples of powers of ten."""
    seen = sorted(values)
    wider = (seen[-1] / seen[0]) ** 0.05
    low, high = seen[0] / wider, seen[-1] * wider
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [multiple * 10.0**power for power in powers for multiple in multiples]
    return Axis(label, low, high, tuple((one, words(one)) for one in ticks if low <= one <= high), logarithmic=True)


def shade(place: float) -> str:
    """The colour at a place from 0, pale, to 1, dark."""
    at = min(max(place, 0.0), 1.0) * (len(SHADES) - 1)
    first = min(int(at), len(SHADES) - 2)
    mixed = (round(a + (b - a) * (at - first)) for a, b in zip(SHADES[first], SHADES[first + 1], strict=True))
    return "#" + "".join(f"{one:02x}" for one in mixed)


def as_svg(picture: Picture, name: str, description: str) -> str:
    """The picture as an <svg> element that can be put into a page as it is; ids begin with its name."""
    right = WIDTH - RIGHT - (BAR if picture.bar else 0)
    bottom = HEIGHT - BOTTOM

    def at(point: Point) -> Point:
        across, up = picture.x.place(point[0]), picture.y.place(point[1])
        return LEFT + across * (right - LEFT), bottom - up * (bottom - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="{name}-title" viewBox="0 0 {WIDTH} '
        f'{HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="{FONT}">',
        f'<title id="{name}-title">{html.escape(description)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<clipPath id="{name}-axes"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
        "</clipPath>",
        *_axes(picture, at, right, bottom),
        f'<g clip-path="url(#{name}-axes)">',
        *(_drawn(mark, at, right, bottom) for mark in picture.marks),
        "</g>",
        *_legend([mark for mark in (*picture.keys, *picture.marks) if mark.label], picture.legend, right, bottom),
        *(_bar(picture, right, bottom) if picture.bar else ()),
        "</svg>",
    ]
    return "\n".join(parts)


def _axes(picture: Picture, at: Callable[[Point], Point], right: float, bottom: float) -> list[str]:
    parts = []
    for value, words in picture.x.ticks:
        x = at((value, picture.y.low))[0]
        parts.append(f'<path d="M{x:.1f},{TOP}V{bottom}" stroke="{GRID}"/>')
        parts.append(_text(x, bottom + 22, words, "middle", FONT - 1))
    for value, words in picture.y.ticks:
        y = at((picture.x.low, value))[1]
        parts.append(f'<path d="M{LEFT},{y:.1f}H{right}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 8, y + 6, words, "end", FONT - 1))
    parts.append(f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="#1c2330" stroke-width="1.2"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 12, picture.x.label, "middle"))
    parts.append(_text(20, (TOP + bottom) / 2, picture.y.label, "middle", turned=True))
    return parts


def _drawn(mark: Mark, at: Callable[[Point], Point], right: float, bottom: float) -> str:
    if isinstance(mark, Rule):
        x, y = at((mark.x if mark.x is not None else 1.0, mark.y if mark.y is not None else 1.0))
        path = f"M{x:.1f},{TOP}V{bottom}" if mark.x is not None else f"M{LEFT},{y:.1f}H{right}"
        return _stroke(path, mark.colour, mark.width, mark.dash)
    places = [at(point) for point in mark.points]
    if isinstance(mark, Dots):
        colours = mark.colours if len(mark.colours) > 1 else [*mark.colours] * len(places)
        return "".join(_marker(mark, place, colour) for place, colour in zip(places, colours, strict=True))
    if mark.upper:
        around = (*places, *(at(point) for point in reversed(mark.upper)))
        return f'<path d="{_path(around)}Z" fill="{mark.colour}" fill-opacity="0.16"/>'
    return _stroke(_path(places), mark.colour, mark.width, mark.dash)


def _path(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _stroke(path: str, colour: str, width: float, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def _marker(dots: Dots, place: Point, colour: str) -> str:
    x, y = place
    fill = "none" if dots.shape in OPEN_SHAPES else colour if dots.filled else "#ffffff"
    if dots.shape == "o":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{dots.size}" fill="{fill}" stroke="{colour}"/>'
    thin = f"{(2 if dots.shape in OPEN_SHAPES else 1) / dots.size:.3g}"
    move = f'transform="translate({x:.1f} {y:.1f}) scale({dots.size})"'
    return f'<path d="{SHAPES[dots.shape]}" {move} fill="{fill}" stroke="{colour}" stroke-width="{thin}"/>'


def _legend(marks: Sequence[Mark], corner: str, right: float, bottom: float) -> list[str]:
    """A row a mark, in a corner of the axes."""
    if not marks:
        return []
    wide = 48 + LETTER * SMALL * max(len(mark.label) for mark in marks)
    row = SMALL + 5
    high = row * len(marks) + 8
    left = right - wide - 4 if corner.endswith("right") else LEFT + 6
    top = bottom - high - 6 if corner.startswith("lower") else TOP + 4
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high}" fill="#ffffff" fill-opacity="0.9"/>'
    ]
    for number, mark in enumerate(marks):
        y = top + row * (number + 0.5) + 4
        parts.append(_key(mark, left + 6, y))
        parts.append(_text(left + 42, y + 5.5, mark.label, "start", SMALL))
    return parts


def _key(mark: Mark, x: float, y: float) -> str:
    if isinstance(mark, Dots):
        return _marker(mark, (x + 14, y), mark.colours[0])
    if isinstance(mark, Line) and mark.upper:
        return f'<rect x="{x:.1f}" y="{y - 6:.1f}" width="28" height="12" fill="{mark.colour}" fill-opacity="0.16"/>'
    return _stroke(f"M{x:.1f},{y:.1f}h28", mark.colour, mark.width, mark.dash)


def _bar(picture: Picture, right: float, bottom: float) -> list[str]:
    """The colours of `shade`, with their meaning."""
    left, pieces = right + 10, 40
    high = (bottom - TOP) / pieces
    parts = [
        f'<rect x="{left}" y="{bottom - (k + 1) * high:.2f}" width="16" height="{high + 0.5:.2f}" '
        f'fill="{shade(k / (pieces - 1))}"/>'
        for k in range(pieces)
    ]
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        y = bottom - (share - picture.bar_low) / (1 - picture.bar_low) * (bottom - TOP)
        if TOP <= y <= bottom:
            parts.append(_text(left + 20, max(y + 6, TOP + 12), f"{share:.0%}", "start", SMALL))
    parts.append(_text(WIDTH - 8, (TOP + bottom) / 2, picture.bar, "middle", SMALL, turned=True))
    return parts


def _text(x: float, y: float, words: str, anchor: str, size: int = FONT, turned: bool = False) -> str:
    around = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#1c2330"{around}>'
        f"{html.escape(words)}</text>"
    )
