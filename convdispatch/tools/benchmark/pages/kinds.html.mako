<%!
  WORDS = {"fwd": "forward", "bwd_data": "data gradient", "bwd_weights": "weights gradient"}
%><!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Convolutions on ${", ".join(side.label for side in sides)}: convdispatch bench</title>
<style>
${sheet | n}
iframe { width:100%; height:90vh; border:1px solid var(--grid) } td.least { font-weight:700 }
</style></head><body>
<button id="theme" type="button" hidden>light or dark</button>
<h1>How fast are convolutions on ${len(sides)} kinds of device?</h1>
<p class="soft">Measured with convdispatch bench --cluster, ${sides[0].report.environment["created"][:10]}</p>
<div class="scroll"><table>
<tr><th>device</th><th>driver</th><th class="n">problems</th><th>ceilings</th><th class="n">of the roofline, geometric mean</th></tr>
% for number_, side in enumerate(sides):
<tr><td><a href="#kind${number_}">${side.label}</a></td><td>${side.device["driver"]}</td><td class="n">${len(side.report.measured)}</td>
<td>${"; ".join(f"{dtype}: {number(roof['flops']['rate'] / 1e9)} GFLOP/s, {number(roof['bandwidth']['rate'] / 1e9)} GB/s" for dtype, roof in side.report.roofs.items())}</td>
<td class="n">${share(side.fraction)}</td></tr>
% endfor
</table></div>
% for side in sides:
% if side.report.interrupted:
<p class="warn">On ${side.label} the run was ended early, or parts of it failed: what is not measured is missing here.</p>
% endif
% if side.busy:
<p class="warn">${side.label}: ${side.busy}</p>
% endif
% endfor

<h2>Nets</h2>
<p>Milliseconds of the layers that every kind has a time for, as often as they run, each by the fastest solver there; the
fastest kind of device is bold.</p>
<div class="scroll"><table class="sortable">
<tr><th>net</th><th>direction</th><th class="n">layers</th>\
% for side in sides:
<th class="n">${side.label}</th>\
% endfor
</tr>
% for net, direction, layers, total, least in sums:
<tr><td>${net}</td><td>${WORDS.get(direction, direction)}</td><td class="n">${layers}</td>\
% for place, ms in enumerate(total):
<td class="n ${"least" if place == least else ""}">${number(ms)}</td>\
% endfor
</tr>
% endfor
</table></div>

<h2>Layers</h2>
<p>The fastest solver on each kind, its milliseconds and its share of that device's roofline. A <code>?</code> stands where other work
disturbed the layer. Click a heading to sort.</p>
<div class="scroll"><table class="sortable">
<tr><th>net</th><th>layer</th><th>problem</th>\
% for side in sides:
<th>${side.label}</th><th class="n">ms</th><th class="n">roofline</th>\
% endfor
</tr>
% for row in rows:
<tr><td>${row.net}</td><td>${row.name}</td><td><code>${row.problem}</code></td>\
% for place, (side, line) in enumerate(zip(sides, row.found)):
% if line is None or not line.ms:
<td class="soft">${"not measured" if line is None or not line.measured.failure else line.measured.failure}</td><td></td><td></td>\
% else:
<td>${line.verdict}</td><td class="n ${"least" if place == row.least else ""}" title="${interval(line.measured.best)}">${number(line.ms)}${"?" if side.is_disturbed(line) else ""}</td>\
<td class="n">${share(line.fraction)}</td>\
% endif
% endfor
</tr>
% endfor
</table></div>

<h2>Each kind by itself</h2>
% for number_, (side, text) in enumerate(zip(sides, pages)):
<details id="kind${number_}"><summary>${side.label}</summary><iframe title="${side.device["title"]}" loading="lazy" srcdoc="${text}"></iframe></details>
% endfor
<script>
${script | n}</script>
</body></html>
