<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Two runs of convdispatch bench</title>
<style>
${sheet | n}</style></head><body>
<button id="theme" type="button" hidden>light or dark</button>
<h1>Two runs beside each other</h1>
<p>${heading}.</p>
% for note in compared.notes:
<p class="warn">${note}</p>
% endfor
<table>
% for words, run in (("old", compared.old), ("new", compared.new)):
<tr><th>${words}</th><td>${run.environment["device"]["title"]}, driver ${run.environment["device"]["driver"]}, ${run.environment["created"]}</td><td><code>${run.settings.get("command") or "convdispatch bench"}</code></td></tr>
% endfor
</table>
<h2>Problems</h2>
<p>The most time lost first. <i>Faster</i> and <i>slower</i> need intervals (95 %) that stand apart and more than two per cent; a <code>?</code>
stands where other work disturbed one of the runs. Click a heading to sort.</p>
<div class="scroll"><table class="sortable">
<tr>
% for title in columns:
<th${"" if title in ("layer", "problem", "verdict", "solver") else ' class="n"' | n}>${title}</th>
% endfor
</tr>
% for row in rows:
<tr>
% for title, cell in zip(columns, row):
<td class="${"" if title in ("layer", "problem", "solver") else {"faster": "good", "slower": "bad"}.get(cell, "") if title == "verdict" else "n"}">${cell}</td>
% endfor
</tr>
% endfor
</table></div>
% for words, problems in (("Only in the old run", compared.only_old), ("Only in the new run", compared.only_new)):
% if problems:
<h2>${words}</h2>
<p><code>${", ".join(problems)}</code></p>
% endif
% endfor
<script>
${script | n}</script>
</body></html>
