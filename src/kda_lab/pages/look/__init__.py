"""One source for the visual language: `tokens`, and `css`, which style sheets read; `lines` is for matplotlib."""

from kda_lab.pages.look import tokens


def css(fonts: str = "fonts") -> str:
    """The style sheet of the tokens: font faces, custom properties of both themes, a class for each symbol.

    fonts: the folder of the font files, as seen from the style sheet.

    >>> "--kda-key: #56b4e9;" in css()
    True
    """
    faces = "\n".join(
        f'@font-face {{ font-family: "{family}"; src: url({fonts}/{file}) format("woff2"); font-weight: {weights}; '
        f"font-style: {slant}; font-display: swap; }}"
        for family, file, weights, slant in tokens.FACES
    )
    fixed = [f"--kda-{name}: {stack};" for name, stack in tokens.FAMILIES.items()]
    fixed += [
        f"--kda-{name}-{what}: {px:g}px;"
        for name, sizes in tokens.SIZES.items()
        for what, px in zip(("size", "line"), sizes, strict=True)
    ]
    fixed += [f"--kda-space-{name}: {px}px;" for name, px in tokens.SPACE.items()]
    fixed += [f"--kda-smallest-{name}: {px}px;" for name, px in tokens.SMALLEST.items()]
    fixed += [f"--kda-measure: {tokens.MEASURE};"]
    for name, line in tokens.RULES.items():
        slug = name.lower().replace(" ", "-")
        dash = " ".join(f"{part:g}" for part in line.dash) or "none"
        fixed += [f"--kda-dash-{slug}: {dash};", f"--kda-width-{slug}: {line.width:g};"]
    dark = variables("dark")
    return "\n".join(
        [
            "/* Made from kda_lab.pages.look.tokens; changes belong there. */",
            faces,
            f":root {{ {' '.join(fixed)} color-scheme: light; {variables('light')} }}",
            f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}',
            *(f".kda-{name} {{ color: var(--kda-{name}); }}" for name in tokens.SYMBOLS),
            "",
        ]
    )


def variables(theme: str) -> str:
    """The custom properties of the colours for the theme "light" or "dark".

    >>> variables("light").split(";")[0]
    '--kda-key: #0072b2'
    """
    return " ".join(f"--kda-{name}: {getattr(colour, theme)};" for name, colour in tokens.colours().items())
