"""The report's style sheet: light, dark and print."""

from __future__ import annotations

_LIGHT = """
--paper:#fff; --panel:#f6f8fa; --ink:#1b2430; --soft:#56616f; --line:#d5dbe2; --faint:#e8ecf0; --accent:#b4460f;
--good:#1a7f37; --bad:#c21f2b; --wait:#6b7683; --member:#2f6fb5; --ensemble:#6f3fc4; --backbone:#67727f;
--tokens:#0f7d86; --train:#2f6fb5; --teacher:#6f3fc4; --evaluate:#b4460f;
--s0:#2563a8; --s1:#c2410c; --s2:#15803d; --s3:#7c3aed; --s4:#a16207; --s5:#0e7490; --s6:#be185d; --s7:#4d7c0f;
--s8:#7f4f35; --s9:#475569;
"""

_DARK = """
--paper:#12171d; --panel:#1a2129; --ink:#e4e9ef; --soft:#a2adba; --line:#36414d; --faint:#262f39; --accent:#ff9d5c;
--good:#4cc46a; --bad:#ff7b7b; --wait:#95a1ae; --member:#7ab5f5; --ensemble:#c1a3ff; --backbone:#a2adba;
--tokens:#4fc5cf; --train:#7ab5f5; --teacher:#c1a3ff; --evaluate:#ff9d5c;
--s0:#7ab8f5; --s1:#fb923c; --s2:#4ade80; --s3:#c4b5fd; --s4:#fbbf24; --s5:#22d3ee; --s6:#f9a8d4; --s7:#bef264;
--s8:#d7b8a8; --s9:#cbd5e1;
"""

_SERIES = "\n".join(f".s{i} {{ --series: var(--s{i}); }}" for i in range(10))

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }}
main {{ max-width: 1240px; margin: 0 auto; padding: 36px 24px 72px; }}
h1 {{ font-size: 28px; line-height: 1.2; margin: 0 0 2px; letter-spacing: -.01em; overflow-wrap: anywhere; }}
h2 {{ font-size: 19px; margin: 44px 0 12px; padding-bottom: 6px; border-bottom: 1px solid var(--line); }}
h3 {{ font-size: 15px; margin: 20px 0 6px; }}
p {{ margin: 0 0 10px; max-width: 88ch; }}
.meta, .hint, .empty, figcaption {{ color: var(--soft); font-size: 13.5px; max-width: 120ch; }}
.result {{ margin: 20px 0 0; padding: 16px 20px; background: var(--panel); border-left: 4px solid var(--accent);
  border-radius: 0 8px 8px 0; }}
.result p {{ margin: 0; max-width: none; }} .result p:first-child {{ font-size: 18px; line-height: 1.45; }}
.result p + p {{ margin-top: 6px; color: var(--soft); }}
.chips {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 12px 0 0; padding: 0; list-style: none; font-size: 13px; }}
.chips li {{ padding: 2px 10px; border: 1px solid var(--line); border-radius: 99px; color: var(--soft); }}
.chips .is-failed {{ color: var(--bad); border-color: currentColor; font-weight: 600; }}
.chips .is-done {{ color: var(--good); border-color: currentColor; }}
.scroll {{ overflow-x: auto; margin: 0 0 18px; }}
.scroll:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; min-width: 50%; }}
caption {{ text-align: left; color: var(--soft); font-size: 13.5px; padding: 0 0 6px; }}
th, td {{ padding: 7px 14px 7px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--faint); }}
th + th, td {{ padding-left: 10px; }}
thead th {{ border-bottom: 1.5px solid var(--line); font-size: 13px; white-space: nowrap; vertical-align: bottom; }}
tbody th {{ font-weight: 500; min-width: 130px; }}
.number {{ text-align: right; white-space: nowrap; }}
small {{ display: block; color: var(--soft); font-size: 11.5px; font-weight: 400; line-height: 1.4; }}
tbody th small {{ max-width: 34ch; white-space: normal; }}
tr.role-student > * {{ background: var(--panel); font-weight: 650; }}
tr.role-student > th {{ box-shadow: inset 3px 0 var(--accent); padding-left: 10px; }}
tr.role-best > * {{ color: var(--soft); }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); gap: 20px 28px; }}
figure {{ margin: 0 0 8px; max-width: 100%; }} figcaption {{ margin: 0 0 2px; }}
figcaption b {{ color: var(--ink); font-weight: 600; }}
svg {{ display: block; font-family: inherit; }} svg.chart {{ max-width: 100%; height: auto; }}
svg text {{ fill: var(--ink); font-size: 12px; }}
svg .tick {{ fill: var(--soft); font-size: 11px; }} svg .label {{ fill: var(--soft); }}
svg .strong {{ fill: var(--ink); }}
svg .number {{ font-size: 11.5px; font-variant-numeric: tabular-nums; white-space: pre; }}
.axis {{ stroke: var(--line); stroke-width: 1.2; }} .grid {{ stroke: var(--faint); }}
.line {{ fill: none; stroke: var(--series); stroke-width: 1.7; stroke-linejoin: round; }}
.dot {{ fill: var(--series); }} .touch {{ fill: transparent; }} .touch:hover {{ fill: var(--series); }}
.ring {{ fill: none; stroke: var(--series); stroke-width: 1.6; }}
{_SERIES}
.legend {{ display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 6px; padding: 0; list-style: none;
  font-size: 13px; color: var(--soft); }}
.legend li::before {{ content: ""; display: inline-block; width: 16px; height: 3px; margin: 0 6px 4px 0;
  border-radius: 2px; background: var(--series); }}
.role-member {{ --role: var(--member); }} .role-ensemble {{ --role: var(--ensemble); }}
.role-student {{ --role: var(--accent); }} .role-backbone, .role-baseline {{ --role: var(--backbone); }}
.mark {{ fill: var(--role); }} .interval {{ stroke: var(--role); stroke-width: 2; }}
.interval.thin {{ stroke-width: 1.2; opacity: .45; }} .mean {{ stroke: var(--role); stroke-width: 2; }}
.arrow {{ fill: none; stroke: var(--backbone); stroke-width: 1.6; }}
.edges path {{ fill: none; stroke: var(--wait); stroke-width: 1.1; opacity: .55; }}
.node .box {{ fill: var(--panel); stroke: var(--line); }} .node .stripe {{ fill: var(--kind); }}
.kind-tokens {{ --kind: var(--tokens); }} .kind-train {{ --kind: var(--train); }}
.kind-teacher {{ --kind: var(--teacher); }} .kind-evaluate {{ --kind: var(--evaluate); }}
svg .name {{ font-weight: 600; font-size: 11.5px; }} svg .what {{ fill: var(--soft); font-size: 11px; }}
svg .id {{ fill: var(--soft); font: 9.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
.is-done .sign {{ fill: var(--good); }} .is-failed .sign {{ fill: var(--bad); font-weight: 700; }}
.is-failed .box {{ stroke: var(--bad); stroke-width: 1.8; }} .is-waiting .box {{ stroke-dasharray: 4 3; fill: none; }}
details {{ margin: 12px 0; border: 1px solid var(--line); border-radius: 8px; padding: 0 16px; }}
summary {{ cursor: pointer; padding: 10px 0; font-weight: 600; }}
summary:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
pre {{ margin: 0 0 14px; padding: 12px 14px; background: var(--panel); border: 1px solid var(--faint);
  border-radius: 8px; font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
.failure {{ border-left: 4px solid var(--bad); padding-left: 14px; margin-bottom: 16px; }}
@media print {{
  :root {{ color-scheme: light; {_LIGHT} }}
  body {{ font-size: 11px; }} main {{ padding: 0; max-width: none; }}
  h2, h3, .legend, .hint {{ break-after: avoid; }} h2 {{ margin-top: 24px; }}
  figure, tr, .result, .failure {{ break-inside: avoid; }}
  .scroll {{ overflow: visible; }} svg {{ max-width: 100%; height: auto; }}
  table {{ font-size: 10px; }} th, td {{ padding: 4px 6px; }} small {{ font-size: 8.5px; }}
  .charts {{ gap: 8px 4%; }} .charts {{ grid-template-columns: 1fr 1fr; }} pre {{ font-size: 10px; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""
